// Agreement with PyTorch (float64) on a tiny GPT-2: token losses, all gradients, ten AdamW steps.
// The reference is made by tests/reference/make_reference.py.
#include <catch2/catch.hpp>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "exec/adam.hpp"
#include "test_paths.hpp"
#include "tests/exec/gpt_fixture.hpp"

using namespace spillway;

namespace {

// A safetensors file: u64 header length, JSON header, data.
class Reference {
 public:
  Reference() {
    std::ifstream file(SPILLWAY_SOURCE_DIR "/tests/reference/gpt2_tiny.safetensors",
                       std::ios::binary);
    REQUIRE(file);
    std::uint64_t length = 0;
    file.read(reinterpret_cast<char*>(&length), sizeof length);
    std::string header(length, ' ');
    file.read(header.data(), static_cast<std::streamsize>(length));
    header_ = nlohmann::json::parse(header);
    data_.assign(std::istreambuf_iterator<char>(file), {});
  }

  template <class Number>
  std::vector<Number> tensor(const std::string& name) const {
    const auto& range = header_.at(name).at("data_offsets");
    const auto begin = range[0].get<std::size_t>(), end = range[1].get<std::size_t>();
    std::vector<Number> values((end - begin) / sizeof(Number));
    std::memcpy(values.data(), data_.data() + begin, end - begin);
    return values;
  }

  double number(const std::string& key) const {
    return std::stod(header_.at("__metadata__").at(key).get<std::string>());
  }
  std::int64_t size(const std::string& key) const { return static_cast<std::int64_t>(number(key)); }

  Problem problem() const {
    return gpt_problem(size("vocabulary"), size("layers"), size("hidden"), size("heads"),
                       size("sequence"), size("batch"), 2);
  }

 private:
  nlohmann::json header_;
  std::vector<char> data_;
};

std::vector<TensorLayout> layout_of(const ModelSpec& model, std::size_t unit) {
  return unit < static_cast<std::size_t>(model.layers) ? block_layout(model)
                                                       : embedding_layout(model);
}

std::string full_name(const ModelSpec& model, std::size_t unit, const std::string& name) {
  return unit < static_cast<std::size_t>(model.layers) ? "h." + std::to_string(unit) + "." + name
                                                       : name;
}

Units reference_parameters(const Reference& reference, const ModelSpec& model) {
  Units units = empty_units(model);
  for (std::size_t unit = 0; unit < units.size(); ++unit) {
    for (const TensorLayout& tensor : layout_of(model, unit)) {
      const auto values =
          reference.tensor<float>("parameters." + full_name(model, unit, tensor.name));
      REQUIRE(values.size() == static_cast<std::size_t>(tensor.rows * tensor.columns));
      std::copy(values.begin(), values.end(), units[unit].begin() + tensor.offset);
    }
  }
  return units;
}

}  // namespace

TEST_CASE("Token losses and gradients agree with PyTorch to fp32 rounding") {
  // |ours - theirs| <= 1e-5 of the tensor's largest gradient; token losses, which are about 4, to
  // 1e-5.
  const Reference reference;
  const Problem problem = reference.problem();
  const StepResult result =
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
  const Reference reference;
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
    const StepResult result = run_step(problem, copy, tokens, targets);
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
