// Quantities as people write them: "24GB", "21GB/s", "160TFLOPS", "10us".
//
// Decimal prefixes are powers of 1000 (GB = 1e9), binary ones powers of 1024 (GiB = 2^30).
// The unit is required, for bytes too: 8 may be bytes or
// gigabytes; 0 is 0. A parse failure throws InputError that names the text, what was expected, and
// an example.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace spillway {

std::uint64_t parse_bytes(std::string_view text);       // "64MB", "1.5 GiB", "4096B"
double parse_bytes_per_second(std::string_view text);   // "800MB/s", "21GB/s"
double parse_flops_per_second(std::string_view text);   // "160TFLOPS", "95GFLOPS"
double parse_params_per_second(std::string_view text);  // "1.2Gparam/s"
std::int64_t parse_nanoseconds(std::string_view text);  // "10us", "2ms", "0.5s", "150ns"

std::string format_bytes(double bytes);             // "1.61 GB"
std::string size_setting(std::uint64_t bytes);      // "286.5GB": to six digits, as settings have it
std::string format_bytes_per_second(double bytes);  // "21.0 GB/s"
std::string format_flops_per_second(double flops);  // "160.4 TFLOPS"
std::string format_seconds(double seconds);         // "19.86 s", "4.21 ms", "38 us"

// To three digits, up or down: 286,123,456,789 up is 287 GB.
std::uint64_t round_size(std::uint64_t bytes, bool up);

}  // namespace spillway
