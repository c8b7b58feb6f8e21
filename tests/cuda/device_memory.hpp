// Device memory for tests of CUDA code, through the CUDA runtime API alone, and what comparing
// needs: random numbers, distances in units of the last place, bounds from number formats.
//
// A DeviceArray starts out poisoned (every byte 0xff: NaN as float, double and bf16, -1 as an
// integer), so that what a kernel leaves unwritten shows, and lies between two guards that
// download() checks, so that what it writes beyond the ends shows as well.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <bit>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <random>
#include <span>
#include <type_traits>
#include <vector>

#include "exec/cuda/device/launch.hpp"
#include "exec/cuda/kernels/bf16.hpp"
#ifdef SPILLWAY_EMULATED_GPU
#include "tests/emulator/emulator.hpp"
#endif

namespace spillway::cuda {

class TestStream {
 public:
  TestStream() { SPILLWAY_CUDA(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking)); }
  ~TestStream() { static_cast<void>(cudaStreamDestroy(stream_)); }
  TestStream(const TestStream&) = delete;
  TestStream& operator=(const TestStream&) = delete;
  operator cudaStream_t() const { return stream_; }
  void wait() const { SPILLWAY_CUDA(cudaStreamSynchronize(stream_)); }

 private:
  cudaStream_t stream_ = nullptr;
};

// `size` elements of device memory on 256 bytes. Uploads and downloads wait for the whole device.
template <class T>
class DeviceArray {
 public:
  explicit DeviceArray(std::size_t size) : size_(size) {
    SPILLWAY_CUDA(cudaMalloc(&memory_, 2 * guard + bytes()));
    SPILLWAY_CUDA(cudaMemset(memory_, 0xff, 2 * guard + bytes()));
    SPILLWAY_CUDA(cudaMemset(memory_, guard_byte, guard));
    SPILLWAY_CUDA(
        cudaMemset(static_cast<std::byte*>(memory_) + guard + bytes(), guard_byte, guard));
    SPILLWAY_CUDA(cudaDeviceSynchronize());
  }
  explicit DeviceArray(const std::vector<T>& values) : DeviceArray(values.size()) {
    upload(values);
  }
  ~DeviceArray() { static_cast<void>(cudaFree(memory_)); }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;

  T* data() const { return reinterpret_cast<T*>(static_cast<std::byte*>(memory_) + guard); }
  std::size_t size() const { return size_; }
  std::size_t bytes() const { return size_ * sizeof(T); }

  void upload(const std::vector<T>& values) {
    REQUIRE(values.size() == size_);
    SPILLWAY_CUDA(cudaMemcpy(data(), values.data(), bytes(), cudaMemcpyHostToDevice));
    SPILLWAY_CUDA(cudaDeviceSynchronize());
  }
  // All that was enqueued is done first. Fails the test where a guard was written to.
  std::vector<T> download() const {
    SPILLWAY_CUDA(cudaDeviceSynchronize());
    const auto copy = [](void* to, const void* from, std::size_t count) {
      SPILLWAY_CUDA(cudaMemcpy(to, from, count, cudaMemcpyDeviceToHost));
    };
    std::vector<unsigned char> guards(2 * guard);
    copy(guards.data(), memory_, guard);
    copy(guards.data() + guard, static_cast<std::byte*>(memory_) + guard + bytes(), guard);
    const auto broken = std::find_if(guards.begin(), guards.end(),
                                     [](unsigned char byte) { return byte != guard_byte; });
    if (broken != guards.end()) {
      const std::ptrdiff_t at = broken - guards.begin();
      FAIL_CHECK("written outside of an array of "
                 << bytes() << " bytes, at byte "
                 << (at < guard ? at - guard : at - guard + std::ptrdiff_t(bytes())));
    }
    std::vector<T> values(size_);
    copy(values.data(), data(), bytes());
    return values;
  }

 private:
  static constexpr std::ptrdiff_t guard = 1024;
  static constexpr int guard_byte = 0x5a;
  void* memory_ = nullptr;
  std::size_t size_ = 0;
};

// Pinned host memory that kernels reach at its own address; poisoned.
template <class T>
class PinnedArray {
 public:
  explicit PinnedArray(std::size_t size) : size_(size) {
    void* memory = nullptr;
    SPILLWAY_CUDA(cudaHostAlloc(&memory, size * sizeof(T), cudaHostAllocDefault));
    memory_ = static_cast<T*>(memory);
    std::memset(memory, 0xff, size * sizeof(T));
  }
  ~PinnedArray() { static_cast<void>(cudaFreeHost(memory_)); }
  PinnedArray(const PinnedArray&) = delete;
  PinnedArray& operator=(const PinnedArray&) = delete;
  T* data() const { return memory_; }
  std::size_t size() const { return size_; }
  // What lies there when all that was enqueued is done.
  std::span<T> wait() const {
    SPILLWAY_CUDA(cudaDeviceSynchronize());
    return {memory_, size_};
  }

 private:
  T* memory_ = nullptr;
  std::size_t size_ = 0;
};

// Runs `run` again under other orders of threads and blocks, and requires of what it returns (the
// bytes of its results) that it is the same. On a GPU orders differ by themselves.
template <class Run>
void require_repeatable(Run run) {
  const auto first = run();
  for (const std::uint64_t seed : {101u, 202u, 303u}) {
    INFO("order of threads: seed " << seed);
#ifdef SPILLWAY_EMULATED_GPU
    emulator::seed(seed);
#endif
    REQUIRE(run() == first);
  }
}
// The bytes of several arrays, end to end.
template <class... T>
std::vector<std::byte> bytes_of(const std::vector<T>&... arrays) {
  std::vector<std::byte> bytes;
  (
      [&] {
        const auto part = std::as_bytes(std::span(arrays));
        bytes.insert(bytes.end(), part.begin(), part.end());
      }(),
      ...);
  return bytes;
}

// Random numbers as the format holds them.
template <class T>
std::vector<T> random_normal(std::size_t n, float deviation, std::uint64_t seed, float mean = 0) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal(mean, deviation);
  std::vector<T> values(n);
  for (T& value : values) value = from_float<T>(normal(random));
  return values;
}
inline std::vector<std::int32_t> random_tokens(std::size_t n, std::int32_t vocabulary,
                                               std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::uniform_int_distribution<std::int32_t> uniform(0, vocabulary - 1);
  std::vector<std::int32_t> values(n);
  for (std::int32_t& value : values) value = uniform(random);
  return values;
}

template <class T>
std::vector<double> doubles(const std::vector<T>& values) {
  std::vector<double> result;
  result.reserve(values.size());
  for (const T& value : values) {
    if constexpr (std::is_same_v<T, double>)
      result.push_back(value);
    else
      result.push_back(static_cast<double>(to_float(value)));
  }
  return result;
}

template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}

// Half a unit in the last place, relative: what rounding to the format loses at most.
template <class T>
constexpr double rounding_of = std::is_same_v<T, bf16> ? 1.0 / 256 : 1.0 / (1 << 24);
constexpr double fp32_rounding = rounding_of<float>;

// How many numbers of the format lie between two; the most there are where either is NaN.
inline std::int64_t units_apart(float a, float b) {
  if (std::isnan(a) || std::isnan(b)) return std::numeric_limits<std::int64_t>::max();
  const auto place = [](float x) {
    const auto bits = std::bit_cast<std::int32_t>(x);
    return static_cast<std::int64_t>(bits < 0 ? std::numeric_limits<std::int32_t>::min() - bits
                                              : bits);
  };
  return std::abs(place(a) - place(b));
}
inline std::int64_t units_apart(bf16 a, bf16 b) {
  const std::int64_t apart = units_apart(to_float(a), to_float(b));
  return apart == std::numeric_limits<std::int64_t>::max() ? apart : apart >> 16;
}

// The worst of |actual - expected| / (rounding of the format x |expected| + slack), to be compared
// with 1: `slack(i)` bounds the error of the arithmetic before its result is rounded to T. Infinite
// where a value is NaN or a size differs.
template <class T, class Slack>
double worst_of_bound(const std::vector<T>& actual, const std::vector<double>& expected,
                      Slack slack) {
  if (actual.size() != expected.size()) return INFINITY;
  double worst = 0;
  for (std::size_t i = 0; i < actual.size(); ++i) {
    const double error = std::fabs(static_cast<double>(to_float(actual[i])) - expected[i]);
    // What is rounded is off by the slack already.
    const double bound = rounding_of<T> * (std::fabs(expected[i]) + slack(i)) + slack(i);
    const double share = error == 0 ? 0 : error / bound;
    worst = std::isnan(share) ? INFINITY : std::max(worst, share);
  }
  return worst;
}

}  // namespace spillway::cuda
