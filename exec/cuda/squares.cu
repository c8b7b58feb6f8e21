// The sum of squares of a gradient, with the bits of the CPU's (CpuKernels::sum_of_squares): blocks
// of 2048 elements, each in 32 sums (element i in sum i mod 32) that are added up pairwise, and the
// blocks' sums one after the other from the first on.
//
// A warp takes a block, each lane one of the 32 sums, so that a load of the warp is one line of 128
// (bf16: 64) bytes. Reads the gradient once (4 or 2 bytes of an element, twice that with a second).
// That the blocks' sums are added up in order costs one addition after the other on one thread:
// about 10 ns each, 5 ns per 1000 elements, which is what reading 20 KB takes.
#include "exec/cuda/device_math.hpp"
#include "exec/cuda/kernels.hpp"
#include "exec/cuda/partials.hpp"

namespace spillway::cuda {

namespace {

constexpr int warps = 8;
constexpr int rounds = squares_block / warp_size;
template <class Gradient>
constexpr int in_flight = 64 / static_cast<int>(sizeof(Gradient));  // loads of a lane

// The squares of a lane's elements in rounds [round, round + in_flight), added to `sum`. `left`:
// elements of the block from the lane's first on; unless `whole`, some of the rounds are beyond.
template <bool whole, bool two, class Gradient>
__device__ inline void add_squares(double& sum, const Gradient* gradient, const Gradient* second,
                                   int left) {
  constexpr int count = in_flight<Gradient>;
  Gradient a[count], b[two ? count : 1];
  SPILLWAY_UNROLL
  for (int k = 0; k < count; ++k) {
    if (!whole && k * warp_size >= left) continue;
    a[k] = gradient[k * warp_size];
    if constexpr (two) b[k] = second[k * warp_size];
  }
  SPILLWAY_UNROLL
  for (int k = 0; k < count; ++k) {
    if (!whole && k * warp_size >= left) continue;
    float g = to_float(a[k]);
    if constexpr (two) g = add(g, to_float(b[k]));
    const double wide = static_cast<double>(g);
    sum += wide * wide;  // the product is exact: one rounding, fused or not
  }
}

template <class Gradient, bool two>
__global__ void __launch_bounds__(warps* warp_size)
    block_squares_kernel(const Gradient* __restrict__ gradient, const Gradient* __restrict__ second,
                         std::int64_t n, double* __restrict__ sums) {
  const std::int64_t block = block_x() * warps + thread_x() / warp_size;
  const std::int64_t begin = block * squares_block;
  if (begin >= n) return;  // a whole warp
  const int lane = thread_x() % warp_size;
  const int count = n - begin < squares_block ? static_cast<int>(n - begin) : squares_block;
  double sum = 0;
  for (int round = 0; round < rounds; round += in_flight<Gradient>) {
    const int at = round * warp_size + lane;
    const Gradient* const from = gradient + begin + at;
    const Gradient* const from_second = two ? second + begin + at : nullptr;
    if (count == squares_block)
      add_squares<true, two>(sum, from, from_second, count - at);
    else
      add_squares<false, two>(sum, from, from_second, count - at);
  }
  sum = warp_sum(sum);
  if (lane == 0) sums[block] = sum;
}

constexpr int order_threads = 256;
constexpr int order_chunk = 2048;
constexpr int order_loads = order_chunk / order_threads;

// One block: its first thread adds up a chunk while all of them read the next.
__global__ void __launch_bounds__(order_threads)
    add_in_order_kernel(const double* __restrict__ sums, std::int64_t count, double* result,
                        double* report) {
  __shared__ double chunk[order_chunk];
  double next[order_loads], total = 0;
  const auto read = [&](std::int64_t from) {
    SPILLWAY_UNROLL
    for (int k = 0; k < order_loads; ++k) {
      const std::int64_t at = from + k * order_threads + thread_x();
      next[k] = at < count ? sums[at] : 0.0;
    }
  };
  read(0);
  for (std::int64_t from = 0; from < count; from += order_chunk) {
    SPILLWAY_UNROLL
    for (int k = 0; k < order_loads; ++k) chunk[k * order_threads + thread_x()] = next[k];
    __syncthreads();
    read(from + order_chunk);
    if (thread_x() == 0) {
      const int here = count - from < order_chunk ? static_cast<int>(count - from) : order_chunk;
      int i = 0;
      for (; i + 16 <= here; i += 16) {
        SPILLWAY_UNROLL
        for (int k = 0; k < 16; ++k) total = add(total, chunk[i + k]);
      }
      for (; i < here; ++i) total = add(total, chunk[i]);
    }
    __syncthreads();
  }
  if (thread_x() > 0) return;
  *result = total;
  if (report != nullptr) *report = total;
}

}  // namespace

template <class Gradient>
void sum_of_squares(const Gradient* gradient, const Gradient* second, std::int64_t n,
                    double* result, double* report, const Workspace& workspace,
                    cudaStream_t stream) {
  const std::int64_t blocks = divide_up(n, squares_block);
  SPILLWAY_ASSERT(static_cast<std::size_t>(blocks) * sizeof(double) <= workspace.bytes);
  auto* const sums = reinterpret_cast<double*>(workspace.data);
  if (n > 0) {
    const Launch shape{dim3(grid_size(divide_up(blocks, warps))), dim3(warps * warp_size)};
    launch("sum_of_squares",
           second != nullptr ? block_squares_kernel<Gradient, true>
                             : block_squares_kernel<Gradient, false>,
           shape, stream, gradient, second, n, sums);
  }
  launch("sum_of_squares", add_in_order_kernel, {dim3(1), dim3(order_threads)}, stream, sums,
         blocks, result, report);
}

template void sum_of_squares(const float*, const float*, std::int64_t, double*, double*,
                             const Workspace&, cudaStream_t);
template void sum_of_squares(const bf16*, const bf16*, std::int64_t, double*, double*,
                             const Workspace&, cudaStream_t);

}  // namespace spillway::cuda
