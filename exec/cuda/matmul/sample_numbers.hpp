// Numbers to try matrix products on, made on the device, and a number for the bits of what comes
// out: so that algorithms can be compared where there is room for one result only.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "exec/cuda/matmul/matmul_shape.hpp"

namespace spillway::cuda {

// Which dimension of a column-major operand its product sums over.
enum class SummedOver : std::uint8_t { rows, columns };

// The same numbers again for the same arguments.
struct SampleNumbers {
  std::uint64_t seed = 0;
  // The second half of what is summed over repeats the first, last one first, and is its negative
  // if `negated`. So the product of one operand that repeats and one that is negated is zero but
  // for the roundings on the way: what is left of it says in which order it was added up, and how.
  // The second half goes backwards so that an algorithm which adds up both halves by themselves
  // does not round them alike, which would leave nothing.
  bool repeats = false, negated = false;
  SummedOver over = SummedOver::rows;
};

// Uniform in (-1, 1); what lies between columns is left alone.
void fill(void* data, cudaDataType_t type, const MatmulOperand& operand,
          const SampleNumbers& numbers, cudaStream_t stream);

// Device memory that digest() works in, on 256 bytes.
constexpr std::size_t digest_workspace_bytes = 1024 * sizeof(std::uint64_t);

// Of `bytes` bytes (a multiple of 2) at `data`, on 2 bytes, once all that was enqueued on `stream`
// is done; waits for it. Equal bits have equal digests, and others, but for a chance of 2^-64,
// others.
std::uint64_t digest(const void* data, std::size_t bytes, std::byte* workspace,
                     cudaStream_t stream);

}  // namespace spillway::cuda
