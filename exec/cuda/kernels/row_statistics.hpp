// Where the statistics of a row lie; for the kernels of layer norm.
#pragma once

#include <cstdint>

#include "base/errors.hpp"
#include "exec/cuda/kernels/kernels.hpp"

namespace spillway::cuda {

inline void require_rows(const RowStatistics& statistics, std::int64_t rows) {
  SPILLWAY_ASSERT(statistics.tokens > 0 && statistics.tokens < 0x7fffffff);
  SPILLWAY_ASSERT(rows >= 0 && rows < 0x7fffffff);
}

// By 32-bit division: one of 64 bits costs as much as the arithmetic of a short row.
__device__ inline std::int64_t place_of_row(const RowStatistics& statistics, std::int64_t row) {
  const auto number = static_cast<std::uint32_t>(row);
  const auto tokens = static_cast<std::uint32_t>(statistics.tokens);
  const std::uint32_t sequence = number / tokens;
  return sequence * statistics.stride + (number - sequence * tokens);
}

}  // namespace spillway::cuda
