// The emulated instructions of attention against the formulas of the PTX ISA, and the mistakes
// their emulation is to show.
#include <cuda_runtime.h>

#include <catch2/catch.hpp>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "exec/cuda/attention/tensor_core.hpp"
#include "exec/cuda/device/launch.hpp"
#include "tests/emulator/emulator.hpp"

namespace spillway::cuda {
namespace {

using Catch::Matchers::Contains;

template <class... Parameters, class... Arguments>
std::string run_warps(void (*kernel)(Parameters...), const Launch& shape, Arguments... arguments) {
  cudaLaunchConfig_t config{};
  config.gridDim = shape.grid;
  config.blockDim = shape.block;
  config.dynamicSmemBytes = shape.shared_bytes;
  REQUIRE(cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...) ==
          cudaSuccess);
  static_cast<void>(cudaDeviceSynchronize());
  return emulator::device_failure();
}

const Launch one_warp{dim3(1), dim3(32), 1024};

// Shared memory holds 32 rows of 8 numbers, number 8 r + c in column c of row r; lane l points to
// row l. out[lane][matrix] is the register.
__global__ void load_kernel(std::uint32_t* out, bool transposed) {
  auto* shared = reinterpret_cast<std::uint16_t*>(dynamic_shared());
  const int lane = static_cast<int>(threadIdx.x);
  for (int c = 0; c < 8; ++c) shared[8 * lane + c] = static_cast<std::uint16_t>(8 * lane + c);
  __syncwarp();
  const SharedAddress row = shared_address(shared + 8 * lane);
  const Matrices m = transposed ? load_matrices_transposed(row) : load_matrices(row);
  for (int matrix = 0; matrix < 4; ++matrix) out[4 * lane + matrix] = m.part[matrix];
}

TEST_CASE("ldmatrix gives lane l columns 2 (l % 4) and the next of row l / 4 of each matrix") {
  emulator::reset();
  std::vector<std::uint32_t> out(128);
  for (const bool transposed : {false, true}) {
    CHECK(run_warps(load_kernel, one_warp, out.data(), transposed).empty());
    for (std::uint32_t lane = 0; lane < 32; ++lane) {
      for (std::uint32_t matrix = 0; matrix < 4; ++matrix) {
        const std::uint32_t near = lane / 4, far = 2 * (lane % 4);
        const std::uint32_t low = transposed ? 8 * far + near : 8 * near + far;
        const std::uint32_t high = transposed ? 8 * (far + 1) + near : 8 * near + far + 1;
        CHECK(out[4 * lane + matrix] == (64 * matrix + low | (64 * matrix + high) << 16));
      }
    }
  }
}

// a (16 x 16), b (16 x 8), c (16 x 8) are in global memory, and reach fragments by the formulas of
// the ISA: with g = lane / 4, t = lane % 4,
//   a_i: row g for i of {0, 1, 4, 5}, else g + 8; column 2 t + (i & 1), + 8 for i >= 4
//   b_i: row 2 t + (i & 1), + 8 for i >= 2; column g
//   c_i: row g for i < 2, else g + 8; column 2 t + (i & 1)
__global__ void product_kernel(const float* a, const float* b, float* c) {
  const int lane = static_cast<int>(threadIdx.x), g = lane / 4, t = lane % 4;
  const auto a_at = [&](int i) {
    return a[16 * (i % 4 < 2 ? g : g + 8) + 2 * t + (i & 1) + (i >= 4 ? 8 : 0)];
  };
  const auto b_at = [&](int i) { return b[8 * (2 * t + (i & 1) + (i >= 2 ? 8 : 0)) + g]; };
  Matrices left;
  for (int i = 0; i < 4; ++i) left.part[i] = pack_bf16(a_at(2 * i), a_at(2 * i + 1));
  Sums sums;
  float* const c_at[4] = {c + 8 * g + 2 * t, c + 8 * g + 2 * t + 1, c + 8 * (g + 8) + 2 * t,
                          c + 8 * (g + 8) + 2 * t + 1};
  for (int i = 0; i < 4; ++i) sums.sum[i] = *c_at[i];
  multiply_add(sums, left, pack_bf16(b_at(0), b_at(1)), pack_bf16(b_at(2), b_at(3)));
  for (int i = 0; i < 4; ++i) *c_at[i] = sums.sum[i];
}

TEST_CASE("mma multiplies fragments laid out as the PTX ISA says: c += a b") {
  emulator::reset();
  std::vector<float> a(256), b(128), c(128), expected(128);
  // Small whole numbers: every product and sum is exact.
  for (int i = 0; i < 256; ++i) a[static_cast<std::size_t>(i)] = static_cast<float>(i * 7 % 19 - 9);
  for (int i = 0; i < 128; ++i) {
    b[static_cast<std::size_t>(i)] = static_cast<float>(i * 5 % 23 - 11);
    c[static_cast<std::size_t>(i)] = static_cast<float>(i);
  }
  for (std::size_t row = 0; row < 16; ++row) {
    for (std::size_t column = 0; column < 8; ++column) {
      expected[8 * row + column] = c[8 * row + column];
      for (std::size_t k = 0; k < 16; ++k)
        expected[8 * row + column] += a[16 * row + k] * b[8 * k + column];
    }
  }
  CHECK(run_warps(product_kernel, one_warp, a.data(), b.data(), c.data()).empty());
  CHECK(c == expected);
}

// Two groups of one copy each, the second not valid; what shared memory holds before any wait,
// after the wait that leaves one group, and after the last.
__global__ void copy_kernel(const float* from, float* seen) {
  auto* shared = reinterpret_cast<float*>(dynamic_shared());
  if (threadIdx.x != 0) return;
  for (int i = 0; i < 8; ++i) shared[i] = 5.0f;
  copy_async_16(shared_address(shared), from, true);
  copy_commit();
  copy_async_16(shared_address(shared + 4), from, false);
  copy_commit();
  const auto look = [&](int time) {
    for (int i = 0; i < 8; ++i) seen[8 * time + i] = shared[i];
  };
  look(0);
  copy_wait<1>();
  look(1);
  copy_wait<0>();
  look(2);
}

TEST_CASE(
    "copies from global memory arrive at their wait, group by group, and are NaN until then") {
  emulator::reset();
  alignas(16) const float from[4] = {1, 2, 3, 4};
  std::vector<float> seen(24);
  CHECK(run_warps(copy_kernel, one_warp, from, seen.data()).empty());
  for (std::size_t i = 0; i < 8; ++i) CHECK(std::isnan(seen[i]));
  for (std::size_t i = 0; i < 4; ++i) {
    CHECK(seen[8 + i] == from[i]);
    CHECK(std::isnan(seen[12 + i]));
    CHECK(seen[16 + i] == from[i]);
    CHECK(seen[20 + i] == 0.0f);
  }
}

__global__ void stray_copy_kernel(int offset, bool copies) {
  const SharedAddress at = shared_address(dynamic_shared()) + offset;
  if (copies) {
    copy_async_16(at, nullptr, false);
  } else {
    load_matrices(at);
  }
}

TEST_CASE("an address that is not aligned, or outside of shared memory, ends the launch") {
  for (const bool copies : {false, true}) {
    emulator::reset();
    CHECK_THAT(run_warps(stray_copy_kernel, one_warp, 8, copies), Contains("no multiple of 16"));
    emulator::reset();
    CHECK_THAT(run_warps(stray_copy_kernel, one_warp, 1024, copies),
               Contains("16 bytes at offset 1024 of 1024 bytes"));
    emulator::reset();
    CHECK(run_warps(stray_copy_kernel, one_warp, 1008, copies).empty());
  }
  emulator::reset();
}

TEST_CASE("exp2_approximate flushes what is not normal, and takes infinities") {
  constexpr float infinity = std::numeric_limits<float>::infinity();
  CHECK(exp2_approximate(3.0f) == 8.0f);
  CHECK(exp2_approximate(-infinity) == 0.0f);
  CHECK(exp2_approximate(-140.0f) == 0.0f);
  CHECK(exp2_approximate(infinity) == infinity);
}

}  // namespace
}  // namespace spillway::cuda
