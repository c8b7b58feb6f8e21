// What parameters and activations are kept in.
#pragma once

#include <cstdint>

namespace spillway {

enum class Precision : std::uint8_t {
  bf16,  // 16-bit parameters and activations, fp32 master and accumulation
  fp32   // everything fp32
};

}  // namespace spillway
