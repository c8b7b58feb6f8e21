// The emulated device runs kernels as CUDA says they run, and finds what CUDA leaves undefined.
#include <cuda_runtime.h>

#include <catch2/catch.hpp>
#include <cmath>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include "exec/cuda/launch.hpp"
#include "tests/emulator/emulator.hpp"

namespace {

using Catch::Matchers::Contains;

// Launches on the default stream and waits; returns what went wrong on the device.
template <class... Parameters, class... Arguments>
std::string run(void (*kernel)(Parameters...), const spillway::cuda::Launch& shape,
                Arguments... arguments) {
  emulator::name_next_launch("kernel_under_test");
  cudaLaunchConfig_t config{};
  config.gridDim = shape.grid;
  config.blockDim = shape.block;
  config.dynamicSmemBytes = shape.shared_bytes;
  REQUIRE(cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...) ==
          cudaSuccess);
  const cudaError_t result = cudaDeviceSynchronize();
  const std::string failure = emulator::device_failure();
  REQUIRE((result == cudaSuccess) == failure.empty());
  return failure;
}

__global__ void count_threads(int* counts, int n) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < n) atomicAdd(&counts[i], 1);
}

TEST_CASE("every thread of a grid runs once") {
  emulator::reset();
  constexpr int n = 1000;
  std::vector<int> counts(1024, 0);
  CHECK(run(count_threads, {dim3(8), dim3(128)}, counts.data(), n).empty());
  for (int i = 0; i < 1024; ++i) CHECK(counts[static_cast<std::size_t>(i)] == (i < n ? 1 : 0));
}

// sums[block] = sum of x over the block's 256 elements, as a tree in shared memory; `barriers`
// leaves one out or not.
template <bool barriers>
__global__ void block_sum(const float* x, float* sums) {
  __shared__ float partial[256];
  const unsigned t = threadIdx.x;
  partial[t] = x[blockIdx.x * 256 + t];
  __syncthreads();
  for (unsigned half = 128; half > 0; half /= 2) {
    if (t < half) partial[t] += partial[t + half];
    if (barriers) __syncthreads();
  }
  if (t == 0) sums[blockIdx.x] = partial[0];
}

TEST_CASE("__syncthreads is a barrier: a tree sums right whatever the order of threads") {
  std::vector<float> x(4 * 256);
  std::iota(x.begin(), x.end(), 0.0f);
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    emulator::reset();
    emulator::seed(seed);
    std::vector<float> sums(4, -1.0f);
    CHECK(run(block_sum<true>, {dim3(4), dim3(256)}, x.data(), sums.data()).empty());
    for (int block = 0; block < 4; ++block)
      CHECK(sums[static_cast<std::size_t>(block)] ==
            std::accumulate(x.begin() + block * 256, x.begin() + (block + 1) * 256, 0.0f));
  }
}

TEST_CASE("a missing __syncthreads gives wrong numbers in most orders of threads") {
  std::vector<float> x(256);
  std::iota(x.begin(), x.end(), 1.0f);
  int wrong = 0;
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    emulator::reset();
    emulator::seed(seed);
    float sum = -1.0f;
    CHECK(run(block_sum<false>, {dim3(1), dim3(256)}, x.data(), &sum).empty());
    wrong += sum != 256 * 257 / 2.0f;
  }
  CHECK(wrong >= 15);
}

}  // namespace
