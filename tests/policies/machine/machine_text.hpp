// A machine file with the keys that every one has, and drives for it. Tests name its lines.
#pragma once

#include <string>

namespace spillway {

inline const std::string small_machine = R"(name = "m"
[gpu]
memory = "8GB"
flops = "10TFLOPS"
memory_bandwidth = "280GB/s"
[pcie]
h2d = "12GB/s"
d2h = "11GB/s"
[host]
memory = "32GB"
bandwidth = "56GB/s"
cores = 8
)";
// Behind it: lines 13 to 17.
inline const std::string small_drives = R"([ssd]
count = 2
capacity = "1TB"
read = "3GB/s"
write = "2GB/s"
)";

}  // namespace spillway
