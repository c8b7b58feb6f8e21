// Agreement with PyTorch (float64) on a tiny GPT-2: token losses, all gradients, ten AdamW steps.
// The reference is made by tests/reference/make_reference.py.
#include <catch2/catch.hpp>
#include <cmath>

#include "exec/cpu/adam.hpp"
#include "tests/exec/cpu/gpt_pytorch.hpp"

using namespace spillway;

TEST_CASE("Token losses and gradients agree with PyTorch to fp32 rounding") {
  // |ours - theirs| <= 1e-5 of the tensor's largest gradient; token losses, which are about 4, to
  // 1e-5.
  const PyTorchReference reference;
  const Problem problem = reference.problem();
  const ModelStepResult result =
      run_step(problem, reference_parameters(reference, problem.model),
               reference.tensor<std::int32_t>("tokens"), reference.tensor<std::int32_t>("targets"));

  const auto losses = reference.tensor<double>("token_losses");
  REQUIRE(losses.size() == result.token_losses.size());
  for (std::size_t i = 0; i < losses.size(); ++i)
    CHECK(result.token_losses[i] == Approx(losses[i]).margin(1e-5).epsilon(0));

  for (std::size_t unit = 0; unit < result.gradients.size(); ++unit) {
    for (const TensorLayout& tensor : layout_of(problem.model, unit)) {
      const std::string name = full_name(problem.model, unit, tensor.name);
      const auto expected = reference.tensor<float>("gradients." + name);
      double largest = 0, error = 0;
      for (std::size_t i = 0; i < expected.size(); ++i) {
        const auto element = static_cast<std::size_t>(tensor.offset) + i;
        float ours = result.gradients[unit][element];
        if (unit + 1 == result.gradients.size()) ours += result.head_gradient[element];
        largest = std::max(largest, std::fabs(static_cast<double>(expected[i])));
        error = std::max(error,
                         std::fabs(static_cast<double>(ours) - static_cast<double>(expected[i])));
      }
      INFO(name << ": largest " << largest << ", error " << error);
      CHECK(largest > 0);
      CHECK(error <= 1e-5 * largest);
    }
  }
}

TEST_CASE("Ten AdamW steps give PyTorch's losses") {
  const PyTorchReference reference;
  const Problem problem = reference.problem();
  const auto tokens = reference.tensor<std::int32_t>("tokens");
  const auto targets = reference.tensor<std::int32_t>("targets");
  Units parameters = reference_parameters(reference, problem.model);
  Units m = empty_units(problem.model), v = m, copy = parameters;
  AdamStep adam;
  adam.learning_rate = static_cast<float>(reference.number("learning_rate"));
  adam.beta1 = static_cast<float>(reference.number("beta1"));
  adam.beta2 = static_cast<float>(reference.number("beta2"));
  adam.epsilon = static_cast<float>(reference.number("epsilon"));
  adam.weight_decay = static_cast<float>(reference.number("weight_decay"));

  const auto losses = reference.tensor<double>("step_losses");
  REQUIRE(losses.size() == 10);
  for (const double expected : losses) {
    const ModelStepResult result = run_step(problem, copy, tokens, targets);
    INFO("step " << adam.t);
    CHECK(result.loss == Approx(expected).epsilon(1e-5));
    for (std::size_t unit = 0; unit < parameters.size(); ++unit) {
      const float* second = unit + 1 == parameters.size() ? result.head_gradient.data() : nullptr;
      adamw_update_unit(parameters[unit].data(), m[unit].data(), v[unit].data(),
                        result.gradients[unit].data(), second, copy[unit].data(), 0,
                        static_cast<std::int64_t>(parameters[unit].size()),
                        layout_of(problem.model, unit), adam);
    }
    ++adam.t;
  }
}
