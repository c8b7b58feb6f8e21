// The emulated device runs kernels as CUDA says they run, and finds what CUDA leaves undefined.
#include <cuda_runtime.h>

#include <catch2/catch.hpp>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <set>
#include <stdexcept>
#include <vector>

#include "base/errors.hpp"
#include "tests/cuda/emulator/emulator_run.hpp"
#include "tests/emulator/emulator.hpp"

namespace {

using Catch::Matchers::Contains;
using emulator::test::run;
using spillway::cuda::dynamic_shared;

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

// One block per index of a grid in three dimensions; threads in three, too.
__global__ void note_places(unsigned* places) {
  const unsigned block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
  const unsigned thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
  atomicAdd(&places[block * (blockDim.x * blockDim.y * blockDim.z) + thread], 1u);
}

TEST_CASE("grids and blocks of three dimensions have every index once") {
  emulator::reset();
  std::vector<unsigned> places(3 * 4 * 5 * 2 * 3 * 7, 0);
  CHECK(run(note_places, {dim3(3, 4, 5), dim3(2, 3, 7)}, places.data()) == "");
  CHECK(places == std::vector<unsigned>(places.size(), 1));
}

// The order in which threads of two warps and blocks came by.
__global__ void note_order(int* next, int* order) {
  order[atomicAdd(next, 1)] = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
}

TEST_CASE("threads and blocks run in an order that the seed decides, anew for each launch") {
  const auto order_of = [](std::uint64_t seed, int launches) {
    cudaStream_t stream{};
    REQUIRE(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess);
    emulator::seed(seed);
    std::vector<int> order(4 * 64);
    for (int i = 0; i < launches; ++i) {
      int next = 0;
      spillway::cuda::launch("note_order", note_order, {dim3(4), dim3(64)}, stream, &next,
                             order.data());
      REQUIRE(cudaStreamSynchronize(stream) == cudaSuccess);
    }
    REQUIRE(cudaStreamDestroy(stream) == cudaSuccess);
    return order;
  };
  emulator::reset();
  std::set<std::vector<int>> orders;
  for (std::uint64_t seed = 0; seed < 8; ++seed) orders.insert(order_of(seed, 1));
  CHECK(orders.size() == 8);
  orders.clear();
  for (int launches = 1; launches <= 8; ++launches) orders.insert(order_of(1, launches));
  CHECK(orders.size() == 8);
}

__global__ void some_threads_wait(int) {
  if (threadIdx.x < 40) __syncthreads();
}
__global__ void two_barriers(int) {
  if (threadIdx.x % 2 == 0)
    __syncthreads();
  else
    __syncthreads();
}
__global__ void throws(int) {
  if (blockIdx.x == 2 && threadIdx.x == 3) throw std::runtime_error("out of range");
}
__global__ void traps(int) {
  if (threadIdx.x == 1) __trap();
}

TEST_CASE("a barrier that some threads do not reach is an error that says which") {
  emulator::reset();
  CHECK_THAT(run(some_threads_wait, {dim3(1), dim3(64)}, 0),
             Contains("kernel_under_test, block (0, 0, 0)") && Contains("threads 40-63 ended") &&
                 Contains("threads 0-39 wait for the block at") &&
                 Contains("emulator_kernel_test.cpp"));
  // It stays, as an error of the device does; and its name is said with what happened.
  CHECK(cudaDeviceSynchronize() == cudaErrorLaunchFailure);
  CHECK_THAT(cudaGetErrorString(cudaErrorLaunchFailure), Contains("threads 40-63 ended"));
  void* memory = nullptr;
  CHECK(cudaMalloc(&memory, 16) == cudaErrorLaunchFailure);
  emulator::reset();
  CHECK(cudaDeviceSynchronize() == cudaSuccess);

  CHECK_THAT(run(two_barriers, {dim3(1), dim3(64)}, 0), Contains("different barriers"));
  emulator::reset();
}

TEST_CASE("an exception or a trap in a kernel names kernel, block and thread") {
  emulator::reset();
  CHECK_THAT(run(throws, {dim3(4), dim3(8)}, 0),
             Contains("block (2, 0, 0), thread (3, 0, 0): out of range"));
  emulator::reset();
  CHECK_THAT(run(traps, {dim3(1), dim3(8)}, 0), Contains("thread (1, 0, 0): __trap()"));
  emulator::reset();
}

// Whether dynamic shared memory is NaN at first; leaves numbers there for the block after.
__global__ void look_at_shared(int floats, int* not_nan) {
  auto* values = reinterpret_cast<float*>(dynamic_shared());
  for (int i = static_cast<int>(threadIdx.x); i < floats; i += static_cast<int>(blockDim.x))
    if (!std::isnan(values[i])) atomicAdd(not_nan, 1);
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < floats; i += static_cast<int>(blockDim.x))
    values[i] = 1.0f;
}

TEST_CASE("dynamic shared memory is NaN when a block begins, and as large as was asked for") {
  emulator::reset();
  int not_nan = 0;
  for (const int floats : {1000, 227 * 256}) {
    const auto bytes = static_cast<std::size_t>(floats) * sizeof(float);
    CHECK(run(look_at_shared, {dim3(5), dim3(64), bytes}, floats, &not_nan) == "");
  }
  CHECK(not_nan == 0);
#if !defined(__SANITIZE_ADDRESS__)  // which ends the program
  CHECK_THAT(run(look_at_shared, {dim3(1), dim3(64), 1024}, 257, &not_nan),
             Contains("wrote beyond its 1024 bytes of dynamic shared memory"));
  emulator::reset();
#endif
}

TEST_CASE("limits of the device are checked when a kernel is launched") {
  emulator::reset();
  using spillway::MachineError;
  CHECK_THROWS_WITH(run(traps, {dim3(1), dim3(1025)}, 0), Contains("InvalidConfiguration"));
  CHECK_THROWS_WITH(run(traps, {dim3(0), dim3(32)}, 0), Contains("InvalidConfiguration"));
  CHECK_THROWS_WITH(run(traps, {dim3(1, 65536), dim3(32)}, 0), Contains("InvalidConfiguration"));
  CHECK_THROWS_AS(run(traps, {dim3(1), dim3(32), 227 * 1024 + 1}, 0), MachineError);
  // 48 KB, a kernel's own arrays included, and more only for kernels that were prepared for it.
  cudaLaunchConfig_t config{};
  config.blockDim = dim3(32);
  config.gridDim = dim3(1);
  config.dynamicSmemBytes = 48 * 1024 - 128;
  CHECK(cudaLaunchKernelEx(&config, some_threads_wait, 0) == cudaErrorInvalidValue);
  CHECK(cudaGetLastError() == cudaErrorInvalidValue);
  CHECK(cudaGetLastError() == cudaSuccess);
  int not_nan = 0;
  for (const unsigned bytes : {40u * 1024, 44u * 1024 + 4, 48u * 1024 - 128, 48u * 1024})
    CHECK(run(look_at_shared, {dim3(1), dim3(32), bytes}, 1, &not_nan) == "");
}

}  // namespace
