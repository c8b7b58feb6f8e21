// The CUDA backend's step against the CPU's: token losses, and gradients, tensor by tensor.
//
// The distance of two tensors is |a - b| / |b| in the 2-norm. In fp32 both sides round at the same
// places and sum in other orders, so they are a few times 2^-24 apart. In bf16 the CPU computes in
// fp32 from the same rounded parameters, and what is between are the roundings of activations and
// their gradients to 8 bits, each 2^-9 at most, 0.001 on average, of which a gradient goes through
// some thirty on its way here, through weights that are large for a model's: 0.024 is the worst.
#pragma once

#include <catch2/catch.hpp>
#include <cmath>

#include "tests/cuda/model/model_step.hpp"

namespace spillway::cuda {

inline constexpr double fp32_bound = 1e-5, bf16_bound = 0.03;

inline double distance(const float* a, const float* b, std::int64_t n) {
  double difference = 0, size = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    const double d = static_cast<double>(a[i]) - static_cast<double>(b[i]);
    difference += d * d;
    size += static_cast<double>(b[i]) * static_cast<double>(b[i]);
  }
  return std::sqrt(difference / size);
}

inline bool zeros(const std::vector<float>& unit, std::int64_t from, std::int64_t to) {
  for (std::int64_t i = from; i < to; ++i)
    if (unit[static_cast<std::size_t>(i)] != 0.0f) return false;
  return from < to;
}

// The key's bias has no gradient but what rounding makes: adding the same to all keys changes no
// softmax. So it is measured with the query's and the value's.
inline void check_unit(const std::vector<TensorLayout>& layout, const std::vector<float>& cuda,
                       const std::vector<float>& cpu, double bound) {
  REQUIRE(cuda.size() == cpu.size());
  for (const TensorLayout& tensor : layout) {
    if (!tensor.trained) continue;
    const std::int64_t n = tensor.rows * tensor.columns;
    const double apart = distance(cuda.data() + tensor.offset, cpu.data() + tensor.offset, n);
    INFO(tensor.name << ": " << apart);
    CHECK(apart <= bound);
  }
}

// `counted`: targets; 0: all.
inline void check_losses(const ModelStepResult& cuda, const ModelStepResult& cpu, double bound,
                         std::int64_t counted = 0) {
  CHECK(cuda.memory_respected);
  REQUIRE(cuda.token_losses.size() == cpu.token_losses.size());
  double worst = 0, sum = 0;
  for (std::size_t i = 0; i < cpu.token_losses.size(); ++i) {
    worst = std::max(worst, std::fabs(cuda.token_losses[i] - cpu.token_losses[i]));
    sum += cuda.token_losses[i];
  }
  // Losses are about log V = 4 and logits have a deviation of a few: what is said of the distance
  // of tensors holds for them, with some room for the worst of many tokens.
  INFO("worst token loss " << worst);
  CHECK(worst <= 8 * bound);
  if (counted == 0) counted = static_cast<std::int64_t>(cuda.token_losses.size());
  CHECK(cuda.loss == Approx(sum / static_cast<double>(counted)).epsilon(1e-12));
  CHECK(cuda.loss == Approx(cpu.loss).margin(bound));
}

}  // namespace spillway::cuda
