#include "exec/cuda/bench/bench.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <random>
#include <type_traits>

#include "base/errors.hpp"
#include "base/units.hpp"
#include "exec/cuda/device/launch.hpp"

namespace spillway::cuda {

namespace {

// Random numbers are made once for so many elements, and repeated.
constexpr std::size_t most_random = std::size_t{1} << 20;
constexpr std::int64_t most_calls = 1000;
constexpr std::size_t times_the_cache = 4;

template <class T>
std::vector<T> random_normal(std::size_t size, float deviation) {
  std::mt19937_64 random(5);
  std::normal_distribution<float> normal(0.0f, deviation);
  std::vector<T> values(std::min(size, most_random));
  for (T& value : values) value = from_float<T>(normal(random));
  return values;
}

cudaDeviceProp properties_of(int device) {
  cudaDeviceProp properties;
  SPILLWAY_CUDA(cudaGetDeviceProperties(&properties, device));
  return properties;
}

class CudaBench : public GpuBench {
 public:
  explicit CudaBench(const GpuBenchOptions& options) : runner_(options) {}

  GpuInfo info() override {
    SPILLWAY_CUDA(cudaSetDevice(runner_.device()));
    const cudaDeviceProp properties = properties_of(runner_.device());
    std::size_t free = 0, total = 0;
    SPILLWAY_CUDA(cudaMemGetInfo(&free, &total));
    GpuInfo info;
    info.name = properties.name;
    info.major = properties.major;
    info.minor = properties.minor;
    info.multiprocessors = properties.multiProcessorCount;
    info.memory = total;
    info.free_memory = free;
    info.l2_bytes = static_cast<std::uint64_t>(properties.l2CacheSize);
    return info;
  }

  GpuTiming copy() override {
    const std::size_t bytes = runner_.tiny() ? 4096 : 4 * runner_.beyond_cache();
    const BenchArray<float> from(bytes / sizeof(float), 1.0f), to(bytes / sizeof(float), 1.0f);
    GpuTiming timing;
    timing.name = "copy";
    timing.what = fmt::format("device to device, {}", format_bytes(static_cast<double>(bytes)));
    timing.bytes = 2 * static_cast<double>(bytes);
    runner_.time(timing, [&](std::int64_t, cudaStream_t stream) {
      SPILLWAY_CUDA(
          cudaMemcpyAsync(to.data(), from.data(), bytes, cudaMemcpyDeviceToDevice, stream));
    });
    return timing;
  }

  GpuTiming matmul_peak() override { return time_matmul_peak(runner_); }
  std::vector<GpuTiming> memory_bound() override { return time_memory_bound(runner_); }
  std::vector<GpuTiming> matmuls() override { return time_matmuls(runner_); }
  GpuTiming layer_products(const LayerProductShape& shape) override {
    return time_layer_products(runner_, shape);
  }
  std::vector<GpuTiming> gelu_backward(const GeluShape& shape) override {
    return time_gelu_backward(runner_, shape);
  }
  std::vector<GpuTiming> attention() override { return time_attention(runner_); }

 private:
  BenchRunner runner_;
};

}  // namespace

// -- arrays --

template <class T>
void BenchArray<T>::take() {
  void* memory = nullptr;
  SPILLWAY_CUDA(cudaMalloc(&memory, std::max<std::size_t>(size_ * sizeof(T), 256)));
  memory_ = memory;
}

// Uploads the pattern once and copies it on the device.
template <class T>
void BenchArray<T>::repeat(const std::vector<T>& pattern) {
  SPILLWAY_CUDA(
      cudaMemcpy(memory_, pattern.data(), pattern.size() * sizeof(T), cudaMemcpyHostToDevice));
  for (std::size_t done = pattern.size(); done < size_;) {
    const std::size_t more = std::min(done, size_ - done);
    SPILLWAY_CUDA(cudaMemcpy(data() + done, memory_, more * sizeof(T), cudaMemcpyDeviceToDevice));
    done += more;
  }
  // Copies on the device go on after the call, and streams of ours do not wait for them.
  SPILLWAY_CUDA(cudaDeviceSynchronize());
}

template <class T>
BenchArray<T>::BenchArray(std::size_t size, float deviation) : size_(size) {
  static_assert(!std::is_same_v<T, std::byte>);
  take();
  if constexpr (std::is_same_v<T, float> || std::is_same_v<T, bf16>) {
    repeat(random_normal<T>(size, deviation));
  } else {
    repeat(std::vector<T>(std::min(size, most_random), T{}));
  }
}

template <class T>
BenchArray<T>::BenchArray(std::size_t size, std::int32_t limit) : size_(size) {
  take();
  std::mt19937_64 random(6);
  std::uniform_int_distribution<std::int32_t> uniform(0, limit - 1);
  std::vector<T> values(size);
  if constexpr (std::is_same_v<T, std::int32_t>) {
    for (T& value : values) value = uniform(random);
  }
  repeat(values);
}

template <class T>
BenchArray<T>::BenchArray(const std::vector<T>& values) : size_(values.size()) {
  take();
  repeat(values);
}

template class BenchArray<float>;
template class BenchArray<bf16>;
template class BenchArray<double>;
template class BenchArray<std::int32_t>;
template class BenchArray<unsigned char>;

// -- timing --

BenchRunner::BenchRunner(const GpuBenchOptions& options) : options_(options) {
  int count = 0;  // left unwritten on error
  SPILLWAY_CUDA(cudaGetDeviceCount(&count));
  if (options.device < 0 || options.device >= count) {
    throw InputError(Setting{"gpu", std::to_string(options.device)} +
                         fmt::format(": there are {} CUDA devices, numbered from 0", count),
                     "choose one of those that nvidia-smi lists");
  }
  SPILLWAY_CUDA(cudaSetDevice(options.device));
  SPILLWAY_CUDA(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
  SPILLWAY_CUDA(cudaEventCreateWithFlags(&start_, cudaEventDefault));
  SPILLWAY_CUDA(cudaEventCreateWithFlags(&end_, cudaEventDefault));
  const auto cache = static_cast<std::size_t>(properties_of(options.device).l2CacheSize);
  beyond_cache_ = std::max<std::size_t>(times_the_cache * cache, std::size_t{64} << 20);
}

BenchRunner::~BenchRunner() {
  static_cast<void>(cudaSetDevice(options_.device));
  if (stream_ != nullptr) static_cast<void>(cudaStreamDestroy(stream_));
  if (start_ != nullptr) static_cast<void>(cudaEventDestroy(start_));
  if (end_ != nullptr) static_cast<void>(cudaEventDestroy(end_));
}

double BenchRunner::row(const BenchCall& call, std::int64_t calls) {
  SPILLWAY_CUDA(cudaEventRecord(start_, stream_));
  for (std::int64_t i = 0; i < calls; ++i) call(turn_++, stream_);
  SPILLWAY_CUDA(cudaEventRecord(end_, stream_));
  SPILLWAY_CUDA(cudaEventSynchronize(end_));
  float milliseconds = 0;
  SPILLWAY_CUDA(cudaEventElapsedTime(&milliseconds, start_, end_));
  return static_cast<double>(milliseconds) / 1e3 / static_cast<double>(calls);
}

// As many as fill a round, told from a second, warm call.
std::int64_t BenchRunner::calls_per_round(const BenchCall& call) {
  row(call, 1);
  const double seconds = std::max(row(call, 1), 1e-7);
  const auto calls = static_cast<std::int64_t>(options_.seconds / seconds);
  return tiny() ? 1 : std::clamp<std::int64_t>(calls, 1, most_calls);
}

void BenchRunner::time(GpuTiming& timing, const BenchCall& call, const BenchCall& reference,
                       const BenchCall& best) {
  SPILLWAY_CUDA(cudaSetDevice(options_.device));
  const std::int64_t calls = calls_per_round(call);
  const std::int64_t references = reference ? calls_per_round(reference) : 0;
  const std::int64_t bests = best ? calls_per_round(best) : 0;
  row(call, calls);  // the GPU's clocks settle
  for (int round = 0; round < options_.rounds; ++round) {
    timing.seconds.push_back(row(call, calls));
    if (reference) timing.reference_seconds.push_back(row(reference, references));
    if (best) timing.best_seconds.push_back(row(best, bests));
  }
}

double BenchRunner::time_once(const BenchCall& call) {
  SPILLWAY_CUDA(cudaSetDevice(options_.device));
  return row(call, calls_per_round(call));
}

std::unique_ptr<GpuBench> make_bench(const GpuBenchOptions& options) {
  return std::make_unique<CudaBench>(options);
}

}  // namespace spillway::cuda
