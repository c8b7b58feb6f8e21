// A model kept in bf16 against the fp32 one with the same rounded parameters, on the CPU.
//
// The distance of two tensors is |a - b| / |b| in the 2-norm. A rounding to bf16 is off by 2^-9 of
// a value at most and by 0.0011 of it in the root mean square. On its way here a gradient goes
// through some twenty roundings of activations, whose errors do not add up in one direction: 0.0011
// times the root of 20, 0.005, and weights that are large for a model's make several times that of
// it. A llama's gradients are held to twice what a GPT's are: SwiGLU multiplies two functions of
// its input, and the gradients of queries and keys, which are differences, are tensors of their
// own. A term that is left out, or added twice, is far off either bound.
#include <catch2/catch.hpp>
#include <cmath>

#include "tests/exec/cpu/model_fixture.hpp"

namespace spillway {
namespace {

double bound_of(const ModelSpec& model) {
  return model.architecture == Architecture::gpt ? 0.03 : 0.06;
}

struct RoundedCase {
  Problem problem;
  Units parameters;
  std::vector<std::int32_t> tokens, targets;

  // Parameters are values of bf16.
  explicit RoundedCase(const Problem& p)
      : problem(p),
        parameters(random_parameters(p.model, 5)),
        tokens(random_tokens(p, 6)),
        targets(random_tokens(p, 7)) {
    for (std::vector<float>& unit : parameters) {
      for (float& value : unit) value = to_float(to_bf16(value));
    }
  }
  ModelStepResult run(Precision precision, GradientWidth gradient = GradientWidth::bits32) {
    problem.workload.precision = precision;
    problem.workload.gradient = gradient;
    return run_step(problem, parameters, tokens, targets);
  }
};

Problem with_all_adapters(Problem problem) {
  problem.model.name += " with adapters";
  problem.model.lora_rank = 3;
  problem.model.lora_alpha = 1;
  problem.model.lora_targets = "all-linear";
  problem.model.lora_dropout = 0.2;
  return problem;
}

// One micro-batch.
std::vector<Problem> problems_in_bf16() {
  std::vector<Problem> all = {gpt_problem(37, 2, 24, 3, 20, 3, 3)};
  for (const std::string& kind : llama_kinds)
    all.push_back(llama_problem(kind, 37, 2, 24, 2, 20, 3, 3));
  all.push_back(with_all_adapters(gpt_problem(37, 2, 24, 3, 20, 3, 3)));
  all.push_back(with_all_adapters(llama_problem("qwen3", 37, 2, 24, 2, 20, 3, 3)));
  Problem frozen = llama_problem("llama", 37, 3, 24, 2, 20, 3, 3);
  frozen.model.name += ", two layers frozen";
  frozen.model.frozen_layers = 2;
  all.push_back(frozen);
  return all;
}

double relative_distance(const std::vector<float>& a, const std::vector<float>& b,
                         const TensorLayout& tensor) {
  double difference = 0, size = 0;
  for (std::int64_t i = tensor.offset; i < tensor.offset + tensor.elements(); ++i) {
    const auto at = static_cast<std::size_t>(i);
    const double d = static_cast<double>(a[at]) - static_cast<double>(b[at]);
    difference += d * d;
    size += static_cast<double>(b[at]) * static_cast<double>(b[at]);
  }
  return size == 0 ? std::sqrt(difference) : std::sqrt(difference / size);
}

// The largest distance of a tensor of the unit.
double check_unit_within_bound(const ModelSpec& model, std::int64_t unit,
                               const std::vector<float>& found, const std::vector<float>& exact) {
  REQUIRE(found.size() == exact.size());
  double largest = 0;
  if (found.empty()) return largest;
  for (const TensorLayout& tensor : unit_layout(model, unit)) {
    if (!tensor.trained) continue;
    const double apart = relative_distance(found, exact, tensor);
    INFO(unit_name(model, unit) << ", " << tensor.name << ": " << apart);
    CHECK(apart <= bound_of(model));
    largest = std::max(largest, apart);
  }
  return largest;
}

}  // namespace

TEST_CASE("In bf16 losses and all gradients are those of fp32 within rounding, and not the same") {
  for (const Problem& problem : problems_in_bf16()) {
    INFO(problem.model.name);
    const ModelSpec& model = problem.model;
    RoundedCase test(problem);
    const ModelStepResult exact = test.run(Precision::fp32);
    const ModelStepResult rounded = test.run(Precision::bf16);
    CHECK(rounded.memory_respected);
    CHECK(rounded.loss != exact.loss);
    CHECK(rounded.loss == Approx(exact.loss).margin(bound_of(model)));
    for (std::size_t i = 0; i < exact.token_losses.size(); ++i)
      CHECK(rounded.token_losses[i] == Approx(exact.token_losses[i]).margin(8 * bound_of(model)));
    double largest = 0;
    for (std::int64_t unit = 0; unit <= embedding_unit(model); ++unit) {
      const auto at = static_cast<std::size_t>(unit);
      largest = std::max(largest, check_unit_within_bound(model, unit, rounded.gradients[at],
                                                          exact.gradients[at]));
    }
    check_unit_within_bound(model, head_unit(model), rounded.head_gradient, exact.head_gradient);
    CHECK(largest > 1e-3);
  }
}

TEST_CASE("A gradient in bf16 is the rounded sum, whatever the unit") {
  for (const Problem& problem : problems_in_bf16()) {
    INFO(problem.model.name);
    RoundedCase test(problem);
    ModelStepResult wide = test.run(Precision::bf16);
    const ModelStepResult narrow = test.run(Precision::bf16, GradientWidth::bits16);
    CHECK(narrow.memory_respected);
    CHECK_FALSE(same_bits(narrow, wide));
    for (std::vector<float>& unit : wide.gradients)
      for (float& value : unit) value = to_float(to_bf16(value));
    for (float& value : wide.head_gradient) value = to_float(to_bf16(value));
    CHECK(same_bits(narrow, wide));
  }
}

}  // namespace spillway
