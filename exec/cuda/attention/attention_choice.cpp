#include "exec/cuda/attention/attention_choice.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include "base/errors.hpp"
#include "exec/cuda/device/launch.hpp"

namespace spillway::cuda {

namespace {

constexpr const char* variable = "SPILLWAY_CUDA_ATTENTION";
constexpr const char* without = "unset it: then the kernels for every GPU compute attention";

bool hopper_has(std::int64_t head_size) { return head_size == 64 || head_size == 128; }

// Device memory for the check.
template <class T>
class CheckArray {
 public:
  explicit CheckArray(std::size_t size) : size_(size) {
    void* memory = nullptr;
    SPILLWAY_CUDA(cudaMalloc(&memory, size * sizeof(T)));
    memory_ = static_cast<T*>(memory);
  }
  ~CheckArray() { static_cast<void>(cudaFree(memory_)); }
  CheckArray(const CheckArray&) = delete;
  CheckArray& operator=(const CheckArray&) = delete;

  T* data() const { return memory_; }
  // The same values again and again.
  void fill(const std::vector<T>& values) {
    SPILLWAY_CUDA(
        cudaMemcpy(memory_, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice));
    for (std::size_t done = values.size(); done < size_;) {
      const std::size_t more = std::min(done, size_ - done);
      SPILLWAY_CUDA(
          cudaMemcpy(memory_ + done, memory_, more * sizeof(T), cudaMemcpyDeviceToDevice));
      done += more;
    }
  }
  std::vector<T> download() const {
    std::vector<T> values(size_);
    SPILLWAY_CUDA(cudaMemcpy(values.data(), memory_, size_ * sizeof(T), cudaMemcpyDeviceToHost));
    return values;
  }

 private:
  T* memory_ = nullptr;
  std::size_t size_;
};

std::vector<bf16> random_normal(std::size_t size, unsigned seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  std::vector<bf16> values(size);
  for (bf16& value : values) value = to_bf16(normal(random));
  return values;
}

struct CheckInputs {
  std::vector<bf16> qkv, output_gradient;  // of one sequence
};
struct CheckResults {
  std::vector<bf16> output, qkv_gradient;
  std::vector<float> log_sum_exp;
  bool parts_agree = false;  // forward for one of its results alone has the bits of both
};
template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

// Forward, and backward from what that saved; all sequences have the same text.
CheckResults run_both_ways(const AttentionSizes& sizes, const CheckInputs& inputs) {
  const auto rows = static_cast<std::size_t>(sizes.sequences * sizes.tokens);
  const auto width = static_cast<std::size_t>(sizes.channels());
  const auto statistics = static_cast<std::size_t>(sizes.sequences * sizes.statistics_stride);
  CheckArray<bf16> qkv(rows * 3 * width), output(rows * width), output_gradient(rows * width);
  CheckArray<bf16> qkv_gradient(rows * 3 * width);
  CheckArray<float> log_sum_exp(statistics), dots(statistics);
  qkv.fill(inputs.qkv);
  output_gradient.fill(inputs.output_gradient);
  // What is not written differs from everything.
  constexpr bf16 nan{0xffff};
  output.fill({nan});
  qkv_gradient.fill({nan});
  log_sum_exp.fill({std::numeric_limits<float>::quiet_NaN()});
  SPILLWAY_CUDA(cudaDeviceSynchronize());
  const AttentionInput<bf16> input = side_by_side(sizes, static_cast<const bf16*>(qkv.data()));
  attention_forward(sizes, input, output.data(), log_sum_exp.data(), nullptr);
  attention_backward(sizes, input, static_cast<const bf16*>(output.data()), log_sum_exp.data(),
                     static_cast<const bf16*>(output_gradient.data()), qkv_gradient.data(),
                     dots.data(), nullptr);
  SPILLWAY_CUDA(cudaDeviceSynchronize());
  CheckResults results{output.download(), qkv_gradient.download(), log_sum_exp.download()};
  output.fill({nan});
  log_sum_exp.fill({std::numeric_limits<float>::quiet_NaN()});
  attention_forward<bf16>(sizes, input, output.data(), nullptr, nullptr);
  attention_forward<bf16>(sizes, input, nullptr, log_sum_exp.data(), nullptr);
  SPILLWAY_CUDA(cudaDeviceSynchronize());
  results.parts_agree = same_bits(output.download(), results.output) &&
                        same_bits(log_sum_exp.download(), results.log_sum_exp);
  return results;
}

double value_of(bf16 number) { return static_cast<double>(to_float(number)); }
double value_of(float number) { return static_cast<double>(number); }

// |a - b| / |b| over columns [first, first + columns) of b's rows of `width`; NaN if any is, and
// infinite where a single number is off by more than roundings: by 2^-5 of itself and of what b's
// numbers are by their root mean square.
template <class T>
double relative_distance(const std::vector<T>& a, const std::vector<T>& b, std::size_t width,
                         std::size_t first, std::size_t columns) {
  double differences = 0, squares = 0;
  for (std::size_t row = 0; row < b.size(); row += width) {
    for (std::size_t i = row + first; i < row + first + columns; ++i) {
      const double x = value_of(a[i]), y = value_of(b[i]);
      differences += (x - y) * (x - y);
      squares += y * y;
    }
  }
  const double typical =
      std::sqrt(squares * static_cast<double>(width) / static_cast<double>(b.size() * columns));
  for (std::size_t row = 0; row < b.size(); row += width) {
    for (std::size_t i = row + first; i < row + first + columns; ++i) {
      const double x = value_of(a[i]), y = value_of(b[i]);
      if (std::abs(x - y) > 0x1p-5 * (std::abs(y) + typical))
        return std::numeric_limits<double>::infinity();
    }
  }
  return std::sqrt(differences / squares);
}

// Whether `all` is its first `size` elements again and again, bit for bit.
template <class T>
bool repeats(const std::vector<T>& all, std::size_t size) {
  for (std::size_t first = size; first < all.size(); first += size) {
    if (std::memcmp(all.data(), all.data() + first, size * sizeof(T)) != 0) return false;
  }
  return true;
}

int attribute(cudaDeviceAttr which) {
  int device = 0, value = 0;
  SPILLWAY_CUDA(cudaGetDevice(&device));
  SPILLWAY_CUDA(cudaDeviceGetAttribute(&value, which, device));
  return value;
}

}  // namespace

const char* name_of(AttentionKernels kernels) {
  return kernels == AttentionKernels::wgmma ? "wgmma" : "mma.sync";
}

std::string check_hopper_attention(std::int64_t head_size) {
  // Several tiles, the last one not full; and more than two works for every multiprocessor.
  constexpr std::int64_t heads = 2, tokens = 300, blocks_least = 2;
  AttentionSizes sizes;
  sizes.sequences = 1 + 5 * attribute(cudaDevAttrMultiProcessorCount) / (2 * heads * blocks_least);
  sizes.tokens = tokens;
  sizes.heads = sizes.kv_heads = heads;
  sizes.head_size = head_size;
  sizes.statistics_stride = heads * tokens;
  sizes.kernels = AttentionKernels::wgmma;
  AttentionSizes one = sizes;
  one.sequences = 1;
  one.kernels = AttentionKernels::mma_sync;
  const auto width = static_cast<std::size_t>(sizes.channels());
  const auto elements = static_cast<std::size_t>(tokens) * width;
  const CheckInputs inputs{random_normal(3 * elements, 1), random_normal(elements, 2)};
  const CheckResults expected = run_both_ways(one, inputs);
  const CheckResults results = run_both_ways(sizes, inputs);

  // Both ways round probabilities, gradients of scores and results to bf16, mostly to the same
  // numbers.
  constexpr double limit = 0x1p-8;
  struct Part {
    const char* name;
    double distance;
  };
  const Part parts[] = {
      {"output", relative_distance(results.output, expected.output, width, 0, width)},
      {"log-sum-exp", relative_distance(results.log_sum_exp, expected.log_sum_exp, 1, 0, 1)},
      {"gradient of q",
       relative_distance(results.qkv_gradient, expected.qkv_gradient, 3 * width, 0, width)},
      {"gradient of k",
       relative_distance(results.qkv_gradient, expected.qkv_gradient, 3 * width, width, width)},
      {"gradient of v",
       relative_distance(results.qkv_gradient, expected.qkv_gradient, 3 * width, 2 * width, width)},
  };
  for (const Part& part : parts) {
    if (part.distance <= limit) continue;
    return fmt::format("heads of {}: {} differs by {:.2g} of its size, {:.2g} is the most",
                       head_size, part.name, part.distance, limit);
  }
  if (!repeats(results.output, elements) || !repeats(results.qkv_gradient, 3 * elements) ||
      !repeats(results.log_sum_exp, static_cast<std::size_t>(sizes.statistics_stride)))
    return fmt::format("heads of {}: equal sequences have different results", head_size);
  if (!results.parts_agree)
    return fmt::format("heads of {}: output or log-sum-exp alone have other bits", head_size);
  return "";
}

bool is_hopper() {
  return attribute(cudaDevAttrComputeCapabilityMajor) == 9 &&
         attribute(cudaDevAttrComputeCapabilityMinor) == 0;
}

AttentionKernels kernels_for(const AttentionSizes& sizes) {
  return hopper_has(sizes.head_size) && !sizes.has_window() && sizes.borders.starts == nullptr
             ? sizes.kernels
             : AttentionKernels::mma_sync;
}

AttentionKernels choose_attention(const std::string& wanted,
                                  const std::vector<std::int64_t>& head_sizes,
                                  std::int64_t window) {
  if (wanted != "wgmma") return AttentionKernels::mma_sync;
  if (!is_hopper()) {
    throw InputError(
        fmt::format("{}=wgmma: these kernels are for compute capability 9.0, this GPU has {}.{}",
                    variable, attribute(cudaDevAttrComputeCapabilityMajor),
                    attribute(cudaDevAttrComputeCapabilityMinor)),
        without);
  }
  if (window > 0) {
    throw InputError(fmt::format("{}=wgmma: these kernels compute no sliding window, of {} tokens",
                                 variable, window),
                     without);
  }
  for (const std::int64_t head_size : head_sizes) {
    if (!hopper_has(head_size)) {
      throw InputError(fmt::format("{}=wgmma: these kernels compute heads of 64 and of 128, not "
                                   "of {}",
                                   variable, head_size),
                       without);
    }
    std::string failure;
    try {
      failure = check_hopper_attention(head_size);
    } catch (const MachineError& error) {
      failure = fmt::format("heads of {}: {}", head_size, error.what());
    }
    if (failure.empty()) continue;
    throw MachineError(
        "attention's kernels for Hopper did not pass their check on this GPU: " + failure, without);
  }
  return AttentionKernels::wgmma;
}

}  // namespace spillway::cuda
