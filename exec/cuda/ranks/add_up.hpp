// Sums over ranks.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <span>

namespace spillway::cuda {

constexpr int most_sums = 256;  // what is added up at once

// to (n) = ((from[0] + from[1]) + from[2]) + ..., in fp32 and this order, [+ to], rounded once:
// elements are fp32 (width 4) or bf16 (width 2), of which all start on an element. `to` may be one
// of `from`.
void add_up(std::span<const std::byte* const> from, std::byte* to, std::int64_t n,
            std::uint64_t width, bool adds, cudaStream_t stream);

}  // namespace spillway::cuda
