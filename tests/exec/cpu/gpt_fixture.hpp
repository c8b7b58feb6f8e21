// A whole training step on GptCpu with everything resident: what the tests of the arithmetic run.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "exec/cpu/gpt_cpu.hpp"
#include "policies/model/scratch.hpp"

namespace spillway {

inline Problem gpt_problem(std::int64_t vocabulary, std::int64_t layers, std::int64_t hidden,
                           std::int64_t heads, std::int64_t sequence, std::int64_t batch,
                           std::int64_t micro_batch) {
  Problem problem;
  problem.model.name = "test";
  problem.model.layers = layers;
  problem.model.hidden = hidden;
  problem.model.heads = heads;
  problem.model.kv_heads = heads;
  problem.model.ffn = 4 * hidden;
  problem.model.vocabulary = vocabulary;
  problem.model.positions = sequence;
  problem.workload.sequence = sequence;
  problem.workload.batch = batch;
  problem.workload.micro_batch = micro_batch;
  problem.workload.precision = Precision::fp32;
  return problem;
}

// One flat vector per unit: layers 0 .. L-1, then the embedding.
using Units = std::vector<std::vector<float>>;

inline Units empty_units(const ModelSpec& model, float value = 0.0f) {
  Units units;
  for (std::int64_t unit = 0; unit <= model.layers; ++unit)
    units.emplace_back(static_cast<std::size_t>(unit_elements(model, unit)), value);
  return units;
}

// Larger and less regular than a real initialisation, so that every gradient has something to say.
inline Units random_parameters(const ModelSpec& model, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  Units units = empty_units(model);
  for (std::int64_t unit = 0; unit <= model.layers; ++unit) {
    for (const auto& tensor : unit_layout(model, unit)) {
      const bool norm = tensor.name.starts_with("ln_");
      const float mean = norm && tensor.name.ends_with("weight") ? 1.0f : 0.0f;
      for (std::int64_t i = 0; i < tensor.rows * tensor.columns; ++i)
        units[static_cast<std::size_t>(unit)][static_cast<std::size_t>(tensor.offset + i)] =
            mean + (norm ? 0.1f : 0.3f) * normal(random);
    }
  }
  return units;
}

inline std::vector<std::int32_t> random_tokens(const Problem& problem, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(problem.workload.tokens_per_step()));
  for (auto& token : tokens)
    token =
        static_cast<std::int32_t>(random() % static_cast<std::uint64_t>(problem.model.vocabulary));
  return tokens;
}

// Memory of exactly the promised size, full of NaN, with a guard behind it.
class Guarded {
 public:
  explicit Guarded(std::uint64_t bytes) : bytes_(bytes), data_(bytes / 4 + guard, nan()) {}
  std::byte* data() { return reinterpret_cast<std::byte*>(data_.data()); }
  bool intact() const {
    const std::vector<float> expected(guard, nan());
    return std::memcmp(data_.data() + bytes_ / 4, expected.data(), guard * sizeof(float)) == 0;
  }

 private:
  static constexpr std::size_t guard = 64;
  static float nan() { return std::numeric_limits<float>::quiet_NaN(); }
  std::uint64_t bytes_;
  std::vector<float> data_;
};

struct ModelStepResult {
  double loss = 0;                   // mean over the tokens of the step
  std::vector<double> token_losses;  // (B, T)
  Units gradients;                   // what backward and embed_backward sum up
  std::vector<float> head_gradient;  // the embedding unit's second accumulator
  bool memory_respected = true;      // no call wrote past its scratch or what it saves
};

struct StepOptions {
  SavedMask available = gpt_saved::all;  // what backward finds saved
  bool recomputes_output = false;
  CpuVariant variant = best_cpu_variant();
  const std::vector<float>* head_parameters = nullptr;  // null: the embedding unit, as it should be
};

inline ModelStepResult run_step(Problem problem, const Units& parameters,
                                const std::vector<std::int32_t>& tokens,
                                const std::vector<std::int32_t>& targets,
                                const StepOptions& options = {}) {
  problem.trains_on = Backend::cpu;
  const GptCpu gpt(problem, options.variant);
  const auto layers = static_cast<std::size_t>(problem.model.layers);
  const std::int64_t b = problem.workload.micro_batch, t = problem.workload.sequence;
  const auto activation = static_cast<std::size_t>(b * t * problem.model.hidden);
  const bool saves = options.available != saved_none;
  const auto& head_parameters =
      options.head_parameters != nullptr ? *options.head_parameters : parameters[layers];

  constexpr float nan = std::numeric_limits<float>::quiet_NaN();
  ModelStepResult result;
  result.gradients = empty_units(problem.model, nan);  // the first micro-batch must overwrite this
  result.head_gradient.assign(parameters[layers].size(), nan);
  result.token_losses.resize(tokens.size());
  Guarded forward_scratch(forward_scratch_bytes(problem, options.available)),
      head_scratch(head_scratch_bytes(problem)),
      backward_scratch(backward_scratch_bytes(problem, options.available));

  for (std::int64_t micro_batch = 0; micro_batch < problem.workload.micro_batches();
       ++micro_batch) {
    const bool first = micro_batch == 0;
    const std::int64_t row = micro_batch * b * t;
    std::vector<std::vector<float>> x(layers + 1, std::vector<float>(activation));
    std::vector<Guarded> saved(layers, Guarded(saved_bytes(problem, options.available)));
    gpt.embed_forward(parameters[layers].data(), tokens.data() + row, x[0].data());
    for (std::size_t layer = 0; layer < layers; ++layer)
      gpt.layer_forward(parameters[layer].data(), x[layer].data(), x[layer + 1].data(),
                        saves ? saved[layer].data() : nullptr, options.available,
                        forward_scratch.data());
    std::vector<float> gradient = x[layers];
    std::vector<double> losses(static_cast<std::size_t>(b));
    gpt.head(head_parameters.data(), targets.data() + row, gradient.data(),
             result.head_gradient.data(), first, losses.data(), head_scratch.data(),
             result.token_losses.data() + row);
    for (const double loss : losses) result.loss += loss;
    for (std::size_t layer = layers; layer-- > 0;)
      gpt.layer_backward(parameters[layer].data(), x[layer].data(),
                         saves ? saved[layer].data() : nullptr, options.available,
                         options.recomputes_output, gradient.data(), result.gradients[layer].data(),
                         first, backward_scratch.data());
    gpt.embed_backward(tokens.data() + row, gradient.data(), result.gradients[layers].data(),
                       first);
    for (const Guarded& record : saved) result.memory_respected &= record.intact();
  }
  result.loss /= static_cast<double>(problem.workload.tokens_per_step());
  result.memory_respected &=
      forward_scratch.intact() && head_scratch.intact() && backward_scratch.intact();
  return result;
}

inline bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

inline bool same_bits(const ModelStepResult& a, const ModelStepResult& b) {
  if (a.token_losses != b.token_losses || a.loss != b.loss) return false;
  for (std::size_t unit = 0; unit < a.gradients.size(); ++unit)
    if (!same_bits(a.gradients[unit], b.gradients[unit])) return false;
  return same_bits(a.head_gradient, b.head_gradient);
}

}  // namespace spillway
