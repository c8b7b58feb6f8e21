// The sum of squares of a gradient, with the bits of the CPU's (CpuKernels::sum_of_squares): blocks
// of 2048 elements, each in 32 sums (element i in sum i mod 32) that are added up pairwise; blocks
// one after the other in groups of 64, and so the groups.
//
// A warp takes a block, each lane one of the 32 sums, so that a load of the warp is one line of 128
// (bf16: 64) bytes. Reads the gradient once (4 or 2 bytes of an element, twice that with a second).
// What must be added one after the other is 64 blocks, side by side for 512 groups, and then a
// group per 131,072 elements: some 5 us for up to 67 million elements, which take 31 (bf16) or 62
// to read.
#include "exec/cuda/kernels/device_math.hpp"
#include "exec/cuda/kernels/kernels.hpp"
#include "exec/cuda/kernels/partials.hpp"

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

constexpr int group_blocks = 64;
constexpr int group_threads = 512;

// One block: a thread per group adds up its blocks; of the groups, while the others are at the next
// 512, the first thread of one more warp.
__global__ void __launch_bounds__(group_threads + warp_size)
    add_in_order_kernel(const double* __restrict__ sums, std::int64_t count, double* result,
                        double* report) {
  __shared__ double of_groups[2][group_threads];
  const std::int64_t groups = (count + group_blocks - 1) / group_blocks;
  double total = 0;
  int turn = 0;
  for (std::int64_t first = 0; first < groups + group_threads; first += group_threads, turn ^= 1) {
    const std::int64_t group = first + thread_x();
    if (thread_x() < group_threads && group < groups) {
      const double* const blocks = sums + group * group_blocks;
      const std::int64_t left = count - group * group_blocks;
      double sum = 0;
      if (left >= group_blocks) {
        for (int k = 0; k < group_blocks; k += 16) {
          double part[16];
          SPILLWAY_UNROLL
          for (int i = 0; i < 16; ++i) part[i] = blocks[k + i];
          SPILLWAY_UNROLL
          for (int i = 0; i < 16; ++i) sum = add(sum, part[i]);
        }
      } else {
        for (std::int64_t k = 0; k < left; ++k) sum = add(sum, blocks[k]);
      }
      of_groups[turn][thread_x()] = sum;
    }
    if (thread_x() == group_threads && first > 0) {  // those of the round before
      const std::int64_t before = groups - (first - group_threads);
      const int here = before < group_threads ? static_cast<int>(before) : group_threads;
      for (int i = 0; i < here; ++i) total = add(total, of_groups[turn ^ 1][i]);
    }
    __syncthreads();
  }
  if (thread_x() != group_threads) return;
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
  launch("sum_of_squares", add_in_order_kernel, {dim3(1), dim3(group_threads + warp_size)}, stream,
         sums, blocks, result, report);
}

template void sum_of_squares(const float*, const float*, std::int64_t, double*, double*,
                             const Workspace&, cudaStream_t);
template void sum_of_squares(const bf16*, const bf16*, std::int64_t, double*, double*,
                             const Workspace&, cudaStream_t);

}  // namespace spillway::cuda
