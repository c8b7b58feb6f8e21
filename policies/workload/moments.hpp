// How wide AdamW keeps its two moments: part of the workload, so every policy does the same.
//
//   fp32   4 bytes each: with the fp32 master weights, 12 bytes of optimizer state a parameter
//   bf16   2 bytes each, 8 in all: on the host, on the drives and on every link between them.
//          Rounded stochastically (exec/cpu/stochastic_rounding.hpp); the update itself stays fp32
#pragma once

#include <cstdint>
#include <string>

namespace spillway {

enum class MomentWidth : std::uint8_t { fp32, bf16 };

const char* to_string(MomentWidth moments);  // "fp32", "bf16"
// The inverse. Throws InputError that names the setting moments.
MomentWidth parse_moments(const std::string& text);

// Bytes of one moment of one parameter.
constexpr std::uint64_t moment_bytes(MomentWidth moments) {
  return moments == MomentWidth::bf16 ? 2 : 4;
}
// Bytes of the optimizer state of one parameter: fp32 master weight and both moments.
constexpr std::uint64_t state_bytes(MomentWidth moments) { return 4 + 2 * moment_bytes(moments); }

}  // namespace spillway
