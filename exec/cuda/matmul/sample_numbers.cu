// A digest is the sum, modulo 2^64, of a mix of each 16-bit word with its place: integers, so that
// the order of addition does not matter.
#include "exec/cuda/matmul/sample_numbers.hpp"

#include <algorithm>
#include <vector>

#include "exec/cuda/kernels/device_math.hpp"

namespace spillway::cuda {

namespace {

constexpr int sample_threads = 256;
constexpr std::int64_t per_thread = 16;  // elements or words, at least
constexpr std::int64_t most_blocks = digest_workspace_bytes / sizeof(std::uint64_t);

Launch sample_launch(std::int64_t count) {
  const std::int64_t blocks =
      std::clamp<std::int64_t>(count / (sample_threads * per_thread), 1, most_blocks);
  return {dim3(grid_size(blocks)), dim3(sample_threads)};
}

// A bijection of 64-bit words in which every bit of the input changes half of the output's
// (SplitMix64, Steele et al., 2014).
__device__ inline std::uint64_t mixed(std::uint64_t word) {
  word += 0x9e3779b97f4a7c15u;
  word = (word ^ word >> 30) * 0xbf58476d1ce4e5b9u;
  word = (word ^ word >> 27) * 0x94d049bb133111ebu;
  return word ^ word >> 31;
}

// Of the words that the threads of all blocks add up.
__global__ void __launch_bounds__(sample_threads)
    digest_kernel(const std::uint16_t* __restrict__ words, std::int64_t count, std::int64_t step,
                  std::uint64_t* __restrict__ sums) {
  __shared__ std::uint64_t of_threads[sample_threads];
  std::uint64_t sum = 0;
  for (std::int64_t i = block_x() * sample_threads + thread_x(); i < count; i += step)
    sum += mixed(static_cast<std::uint64_t>(i) << 16 | words[i]);
  of_threads[thread_x()] = sum;
  __syncthreads();
  if (thread_x() > 0) return;
  for (int i = 1; i < sample_threads; ++i) sum += of_threads[i];
  sums[block_x()] = sum;
}

template <class Element>
__global__ void __launch_bounds__(sample_threads)
    fill_kernel(Element* data, MatmulOperand operand, SampleNumbers numbers, std::int64_t step) {
  const std::int64_t count = operand.rows * operand.columns;
  const bool over_rows = numbers.over == SummedOver::rows;
  const std::int64_t terms = over_rows ? operand.rows : operand.columns;
  for (std::int64_t i = block_x() * sample_threads + thread_x(); i < count; i += step) {
    const std::int64_t row = i % operand.rows, column = i / operand.rows;
    std::int64_t summed = over_rows ? row : column;
    const std::int64_t other = over_rows ? column : row;
    float sign = 1;
    const std::int64_t mirrored = terms - 1 - summed;
    if (numbers.repeats && summed >= mirrored) {
      if (numbers.negated) sign = -1;
      if (summed == mirrored) sign = 0;  // the middle one of an odd number
      summed = mirrored;
    }
    const std::uint64_t bits = mixed(mixed(numbers.seed ^ static_cast<std::uint64_t>(other) << 32) ^
                                     static_cast<std::uint64_t>(summed));
    // 24 bits of it, around zero. Of sizes that differ, so that sums of a few bf16 products round.
    if (numbers.repeats)
      sign *= __uint_as_float(static_cast<std::uint32_t>(127 - (bits & 7)) << 23);
    const float value = (static_cast<float>(bits >> 40) - 8388607.5f) * (sign / 8388608.0f);
    data[column * operand.stride + row] = from_float<Element>(value);
  }
}

}  // namespace

void fill(void* data, cudaDataType_t type, const MatmulOperand& operand,
          const SampleNumbers& numbers, cudaStream_t stream) {
  const Launch shape = sample_launch(operand.rows * operand.columns);
  const std::int64_t step = std::int64_t{shape.grid.x} * sample_threads;
  if (type == CUDA_R_32F) {
    launch("fill", fill_kernel<float>, shape, stream, static_cast<float*>(data), operand, numbers,
           step);
  } else {
    launch("fill", fill_kernel<bf16>, shape, stream, static_cast<bf16*>(data), operand, numbers,
           step);
  }
}

std::uint64_t digest(const void* data, std::size_t bytes, std::byte* workspace,
                     cudaStream_t stream) {
  SPILLWAY_ASSERT(bytes % sizeof(std::uint16_t) == 0);
  const auto count = static_cast<std::int64_t>(bytes / sizeof(std::uint16_t));
  const Launch shape = sample_launch(count);
  auto* const sums = reinterpret_cast<std::uint64_t*>(workspace);
  launch("digest", digest_kernel, shape, stream, static_cast<const std::uint16_t*>(data), count,
         std::int64_t{shape.grid.x} * sample_threads, sums);
  std::vector<std::uint64_t> parts(shape.grid.x);
  SPILLWAY_CUDA(cudaMemcpyAsync(parts.data(), sums, parts.size() * sizeof(std::uint64_t),
                                cudaMemcpyDeviceToHost, stream));
  SPILLWAY_CUDA(cudaStreamSynchronize(stream));
  std::uint64_t sum = 0;
  for (const std::uint64_t part : parts) sum += part;
  return sum;
}

}  // namespace spillway::cuda
