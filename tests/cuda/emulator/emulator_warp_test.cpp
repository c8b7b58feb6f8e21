// Warps of the emulated device: shuffles, votes, and the errors in using them.
#include <cuda_runtime.h>

#include <catch2/catch.hpp>
#include <cstdint>
#include <vector>

#include "tests/cuda/emulator/emulator_run.hpp"
#include "tests/emulator/emulator.hpp"

namespace {

using Catch::Matchers::Contains;
using emulator::test::run;

constexpr unsigned all = 0xffffffffu;

enum class Way { from, up, down, by_xor };

template <class T>
__global__ void shuffle(Way way, int by, int width, const T* in, T* out) {
  const unsigned t = threadIdx.x;
  T value = in[t];
  switch (way) {
    case Way::from:
      value = __shfl_sync(all, value, by, width);
      break;
    case Way::up:
      value = __shfl_up_sync(all, value, static_cast<unsigned>(by), width);
      break;
    case Way::down:
      value = __shfl_down_sync(all, value, static_cast<unsigned>(by), width);
      break;
    case Way::by_xor:
      value = __shfl_xor_sync(all, value, by, width);
  }
  out[t] = value;
}

// What CUDA's programming guide says lane `lane` gets: the value of which lane.
int source_lane(Way way, int by, int width, int lane) {
  const int first = lane / width * width;
  switch (way) {
    case Way::from:
      return first + by % width;
    case Way::up:
      return lane - by < first ? lane : lane - by;
    case Way::down:
      return lane + by >= first + width ? lane : lane + by;
    case Way::by_xor:
      return (lane ^ by) >= first + width ? lane : lane ^ by;
  }
  return -1;
}

template <class T>
void check_shuffles() {
  std::vector<T> in(96), out(96);
  for (std::size_t i = 0; i < in.size(); ++i) in[i] = static_cast<T>(1000 * (i / 32) + i % 32);
  for (const Way way : {Way::from, Way::up, Way::down, Way::by_xor})
    for (const int width : {32, 16, 4, 1})
      for (const int by : {0, 1, 2, 7, 16, 31}) {
        INFO("way " << static_cast<int>(way) << ", by " << by << ", width " << width);
        REQUIRE(run(shuffle<T>, {dim3(1), dim3(96)}, way, by, width, in.data(), out.data()) == "");
        for (int t = 0; t < 96; ++t) {
          const int from = t / 32 * 32 + source_lane(way, by, width, t % 32);
          REQUIRE(out[static_cast<std::size_t>(t)] == in[static_cast<std::size_t>(from)]);
        }
      }
}

TEST_CASE("shuffles give each lane the value of the lane that CUDA names") {
  emulator::reset();
  check_shuffles<float>();
  check_shuffles<double>();
  check_shuffles<int>();
  check_shuffles<std::uint64_t>();
}

__global__ void votes(unsigned* ballots, int* any, int* every) {
  const unsigned t = threadIdx.x;
  ballots[t] = __ballot_sync(all, t % 3 == 0);
  any[t] = __any_sync(all, t == 40);
  every[t] = __all_sync(all, t < 32);
}

TEST_CASE("votes count the lanes of the own warp") {
  emulator::reset();
  std::vector<unsigned> ballots(64);
  std::vector<int> any(64), every(64);
  REQUIRE(run(votes, {dim3(1), dim3(64)}, ballots.data(), any.data(), every.data()) == "");
  for (std::size_t t = 0; t < 64; ++t) {
    unsigned expected = 0;
    for (unsigned lane = 0; lane < 32; ++lane)
      if ((t / 32 * 32 + lane) % 3 == 0) expected |= 1u << lane;
    CHECK(ballots[t] == expected);
    CHECK((any[t] != 0) == (t >= 32));
    CHECK((every[t] != 0) == (t < 32));
  }
}

// Halves of a warp, each on its own and a different number of times.
__global__ void halves(int* out) {
  const unsigned t = threadIdx.x;
  const unsigned mask = t < 16 ? 0x0000ffffu : 0xffff0000u;
  int value = static_cast<int>(t);
  for (unsigned round = 0; round < (t < 16 ? 1u : 3u); ++round)
    value += __shfl_xor_sync(mask, value, 8);
  out[t] = value;
}

TEST_CASE("groups of lanes with masks of their own do not wait for each other") {
  for (std::uint64_t seed = 0; seed < 10; ++seed) {
    emulator::reset();
    emulator::seed(seed);
    std::vector<int> out(32);
    REQUIRE(run(halves, {dim3(1), dim3(32)}, out.data()) == "");
    for (int t = 0; t < 32; ++t) {
      const int sum = t + (t ^ 8);
      CHECK(out[static_cast<std::size_t>(t)] == (t < 16 ? sum : 4 * sum));
    }
  }
}

// One warp writes for the other, with __syncwarp only.
template <bool synchronizes>
__global__ void pass_on(int* out) {
  __shared__ int values[32];
  const unsigned t = threadIdx.x;
  values[t] = static_cast<int>(t);
  if (synchronizes) __syncwarp();
  out[t] = values[31 - t];
  if (synchronizes) __syncwarp();
  values[t] = -1;
}

TEST_CASE("__syncwarp orders the lanes' memory, and its lack shows") {
  int wrong = 0;
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    emulator::reset();
    emulator::seed(seed);
    std::vector<int> out(32);
    REQUIRE(run(pass_on<true>, {dim3(1), dim3(32)}, out.data()) == "");
    std::vector<int> raced(32);
    for (int t = 0; t < 32; ++t) REQUIRE(out[static_cast<std::size_t>(t)] == 31 - t);
    REQUIRE(run(pass_on<false>, {dim3(1), dim3(32)}, raced.data()) == "");
    wrong += raced != out;
  }
  CHECK(wrong == 20);
}

__global__ void lane_that_left(int* out) {
  if (threadIdx.x == 5) return;
  out[threadIdx.x] = __shfl_sync(all, 1, 0);
}
__global__ void lane_outside(int* out) {
  out[threadIdx.x] = __shfl_sync(all, 1, 20);  // of 16 lanes
}
__global__ void not_in_own_mask(int* out) { out[threadIdx.x] = __shfl_sync(0x0000ffffu, 1, 0); }
__global__ void two_places(int* out) {
  if (threadIdx.x < 16)
    out[threadIdx.x] = __shfl_sync(all, 1, 0);
  else
    out[threadIdx.x] = __shfl_sync(all, 2, 0);
}
__global__ void width_of_three(int* out) { out[threadIdx.x] = __shfl_sync(all, 1, 0, 3); }

TEST_CASE(
    "a shuffle that not every named lane takes part in is an error that says who is missing") {
  emulator::reset();
  std::vector<int> out(32);
  CHECK_THAT(run(lane_that_left, {dim3(1), dim3(32)}, out.data()),
             Contains("kernel_under_test") && Contains("threads 5 ended") &&
                 Contains("threads 0-4, 6-31 wait for the lanes ffffffff"));
  emulator::reset();
  CHECK_THAT(run(lane_outside, {dim3(1), dim3(16)}, out.data()), Contains("reads lane 20"));
  emulator::reset();
  CHECK_THAT(run(not_in_own_mask, {dim3(1), dim3(32)}, out.data()),
             Contains("is not in the mask it gives"));
  emulator::reset();
  CHECK_THAT(run(two_places, {dim3(1), dim3(32)}, out.data()), Contains("different places"));
  emulator::reset();
  CHECK_THAT(run(width_of_three, {dim3(1), dim3(32)}, out.data()), Contains("not a power of two"));
  emulator::reset();
}

}  // namespace
