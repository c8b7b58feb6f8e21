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
// Drives by number, in place of these.
inline const std::string small_table = R"([ssd]
count = 12
capacity = "46.08TB"
by_count = [
  { count = 1, read = "4.2GB/s", write = "4.2GB/s", total = "4.2GB/s" },
  { count = 2, read = "7.4GB/s", write = "7.4GB/s", total = "7.4GB/s" },
  { count = 3, read = "9.9GB/s", write = "9.9GB/s", total = "9.9GB/s" },
  { count = 6, read = "16GB/s", write = "16GB/s", total = "16GB/s" },
  { count = 12, read = "20GB/s", write = "20GB/s", total = "20GB/s" }]
)";

}  // namespace spillway
