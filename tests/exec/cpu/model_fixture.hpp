// A whole training step on the CPU with everything resident: what the tests of the arithmetic run.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "exec/cpu/model_cpu.hpp"
#include "exec/cpu/model_cpu_bf16.hpp"
#include "exec/data/batches.hpp"
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

// Llamas that between them have everything that a model of the family may have; `kind` is llama,
// qwen2, qwen3 or mistral.
inline const std::vector<std::string> llama_kinds = {"llama", "qwen2", "qwen3", "mistral"};

inline Problem llama_problem(const std::string& kind, std::int64_t vocabulary, std::int64_t layers,
                             std::int64_t hidden, std::int64_t heads, std::int64_t sequence,
                             std::int64_t batch, std::int64_t micro_batch) {
  Problem problem = gpt_problem(vocabulary, layers, hidden, heads, sequence, batch, micro_batch);
  ModelSpec& model = problem.model;
  model.name = kind;
  model.architecture = Architecture::llama;
  model.ffn = 2 * hidden + 4;
  model.tied = kind == "qwen2" || kind == "qwen3";
  model.qkv_bias = kind == "qwen2";
  model.qk_norm = kind == "qwen3";
  model.kv_heads = kind == "qwen2" ? 1 : kind == "qwen3" ? heads : heads / 2;
  if (kind == "llama") {
    model.rope_scaling = RopeScaling::llama3;
    model.rope_factor = 8;
    model.rope_original_positions = 256;
  }
  if (kind == "qwen3") {
    model.head_width = hidden / heads + 2;
    model.norm_epsilon = 1e-6;
  }
  if (kind == "mistral") {
    model.head_width = hidden / heads + 6;
    model.window = sequence / 3;
  }
  return problem;
}

// One flat vector per unit.
using Units = std::vector<std::vector<float>>;

inline Units empty_units(const ModelSpec& model, float value = 0.0f) {
  Units units;
  for (std::int64_t unit = 0; unit < unit_count(model); ++unit)
    units.emplace_back(static_cast<std::size_t>(unit_elements(model, unit)), value);
  return units;
}

// Accumulators of the units' gradients.
inline Units empty_gradients(const ModelSpec& model, float value) {
  Units units;
  for (std::int64_t unit = 0; unit < unit_count(model); ++unit)
    units.emplace_back(static_cast<std::size_t>(trained_elements(model, unit)), value);
  return units;
}

// Larger and less regular than a real initialisation, so that every gradient has something to say.
inline Units random_parameters(const ModelSpec& model, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  Units units = empty_units(model);
  for (std::int64_t unit = 0; unit < unit_count(model); ++unit) {
    for (const auto& tensor : unit_layout(model, unit)) {
      const bool norm =
          tensor.name.starts_with("ln_") || tensor.name.find("norm.") != std::string_view::npos;
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
  Units gradients;                   // what backward and embed_backward sum up: units 0 .. L
                                     // (of what is trained of them)
  std::vector<float> head_gradient;  // of the head unit: tied, the embedding's second accumulator
  bool memory_respected = true;      // no call wrote past its scratch or what it saves
};

struct StepOptions {
  std::optional<SavedMask> available;  // what backward finds saved; none: all that can be
  bool recomputes_output = false;
  CpuVariant variant = best_cpu_variant();
  const std::vector<float>* head_parameters = nullptr;  // null: the head unit, as it should be
  NoiseKey step_noise = step_noise_key(1, 1);           // of dropout
  const std::vector<std::int32_t>* starts = nullptr;    // (B, T); null: no borders
  bool weights_later = false;  // backward in two passes, the second of all layers at the end
};

inline std::int64_t counted(const std::vector<std::int32_t>& targets) {
  return static_cast<std::int64_t>(targets.size()) -
         std::count(targets.begin(), targets.end(), no_target);
}

// As they are kept.
template <class Element>
std::vector<Element> kept_as(const std::vector<float>& values) {
  std::vector<Element> kept;
  kept.reserve(values.size());
  for (const float value : values) kept.push_back(from_float<Element>(value));
  return kept;
}

// What a gradient with memory for fp32 holds.
inline void widen_gradient(std::vector<float>& gradient, std::uint64_t element_bytes) {
  if (element_bytes == sizeof(float)) return;
  std::vector<bf16> kept(gradient.size());
  std::memcpy(kept.data(), gradient.data(), kept.size() * sizeof(bf16));
  for (std::size_t i = 0; i < kept.size(); ++i) gradient[i] = to_float(kept[i]);
}

// The problem is the model's.
template <class Model>
ModelStepResult run_step_of(const Model& model, const Problem& problem, const Units& parameters,
                            const std::vector<std::int32_t>& tokens,
                            const std::vector<std::int32_t>& targets, const StepOptions& options) {
  using Element = typename Model::Element;
  const auto as_gradient = [](std::vector<float>& values) {
    return reinterpret_cast<typename Model::Gradient*>(values.data());
  };
  const auto layers = static_cast<std::size_t>(problem.model.layers);
  const std::int64_t b = problem.workload.micro_batch, t = problem.workload.sequence;
  const auto activation = static_cast<std::size_t>(b * t * problem.model.hidden);
  const SavedMask available = options.available.value_or(saved_all(problem.model));
  const bool saves = available != saved_none;
  const auto head_parameters =
      kept_as<Element>(options.head_parameters != nullptr
                           ? *options.head_parameters
                           : parameters[static_cast<std::size_t>(head_unit(problem.model))]);
  std::vector<std::vector<Element>> kept;
  for (const std::vector<float>& unit : parameters) kept.push_back(kept_as<Element>(unit));

  constexpr float nan = std::numeric_limits<float>::quiet_NaN();
  ModelStepResult result;
  // The first micro-batch must overwrite this.
  result.gradients = empty_gradients(problem.model, nan);
  result.head_gradient = result.gradients.back();
  result.gradients.resize(layers + 1);
  const auto first_trained = static_cast<std::size_t>(problem.model.frozen_layers);
  result.token_losses.resize(tokens.size());
  Guarded forward_scratch(forward_scratch_bytes(problem, available)),
      head_scratch(head_scratch_bytes(problem)),
      backward_scratch(backward_scratch_bytes(problem, available)),
      embed_backward_scratch(embed_backward_scratch_bytes(problem));

  for (std::int64_t micro_batch = 0; micro_batch < problem.workload.micro_batches();
       ++micro_batch) {
    const bool first = micro_batch == 0;
    const std::int64_t row = micro_batch * b * t;
    const auto dropout = [&](std::size_t layer) {
      return DropoutPlace{options.step_noise, static_cast<int>(layer), micro_batch * b};
    };
    std::vector<std::vector<Element>> x(layers + 1, std::vector<Element>(activation));
    std::vector<Guarded> saved(layers, Guarded(saved_bytes(problem, available)));
    const std::int32_t* const starts = options.starts ? options.starts->data() + row : nullptr;
    model.embed_forward(kept[layers].data(), tokens.data() + row, x[0].data(), starts);
    for (std::size_t layer = 0; layer < layers; ++layer)
      model.layer_forward(kept[layer].data(), x[layer].data(), x[layer + 1].data(),
                          saves ? saved[layer].data() : nullptr, available, forward_scratch.data(),
                          dropout(layer), starts);
    std::vector<Element> gradient = x[layers];
    std::vector<double> losses(static_cast<std::size_t>(b));
    model.head(head_parameters.data(), targets.data() + row, gradient.data(),
               result.head_gradient.empty() ? nullptr : as_gradient(result.head_gradient), first,
               losses.data(), head_scratch.data(), result.token_losses.data() + row,
               counted(targets));
    for (const double loss : losses) result.loss += loss;
    std::vector<Guarded> operands(layers, Guarded(weight_operand_bytes(problem, available)));
    Guarded input_scratch(input_gradient_scratch_bytes(problem, available)),
        weight_scratch(weight_gradient_scratch_bytes(problem));
    for (std::size_t layer = layers; options.weights_later && layer-- > first_trained;)
      model.layer_input_gradient(kept[layer].data(), x[layer].data(),
                                 saves ? saved[layer].data() : nullptr, available,
                                 options.recomputes_output, gradient.data(), operands[layer].data(),
                                 input_scratch.data(), starts);
    for (std::size_t layer = layers; options.weights_later && layer-- > first_trained;)
      model.layer_weight_gradient(x[layer].data(), saves ? saved[layer].data() : nullptr, available,
                                  operands[layer].data(), as_gradient(result.gradients[layer]),
                                  first, weight_scratch.data());
    for (const Guarded& one : operands) result.memory_respected &= one.intact();
    result.memory_respected &= input_scratch.intact() && weight_scratch.intact();
    for (std::size_t layer = layers; !options.weights_later && layer-- > first_trained;)
      model.layer_backward(
          kept[layer].data(), x[layer].data(), saves ? saved[layer].data() : nullptr, available,
          options.recomputes_output, gradient.data(), as_gradient(result.gradients[layer]), first,
          backward_scratch.data(), dropout(layer), starts);
    if (!result.gradients[layers].empty()) {
      model.embed_backward(tokens.data() + row, gradient.data(),
                           as_gradient(result.gradients[layers]), first,
                           embed_backward_scratch.data(), starts);
    }
    for (const Guarded& record : saved) result.memory_respected &= record.intact();
  }
  result.loss /= static_cast<double>(counted(targets));
  result.memory_respected &= forward_scratch.intact() && head_scratch.intact() &&
                             backward_scratch.intact() && embed_backward_scratch.intact();
  for (std::vector<float>& unit : result.gradients) widen_gradient(unit, problem.gradient_bytes());
  widen_gradient(result.head_gradient, problem.gradient_bytes());
  return result;
}

// In the problem's precision. Parameters are rounded to it, gradients widened from it.
inline ModelStepResult run_step(Problem problem, const Units& parameters,
                                const std::vector<std::int32_t>& tokens,
                                const std::vector<std::int32_t>& targets,
                                const StepOptions& options = {}) {
  problem.trains_on = Backend::cpu;
  if (problem.workload.precision == Precision::bf16) {
    const ModelCpuBf16 model(problem, options.variant);
    return run_step_of(model, problem, parameters, tokens, targets, options);
  }
  const auto model = make_model_cpu(problem, options.variant);
  return run_step_of(*model, problem, parameters, tokens, targets, options);
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
