// Every gradient of every kind of model against central differences of its own loss.
//
// Along a direction d, with D(h) = (L(p + h d) - L(p - h d)) / 2h,
//     gradient . d = (4 D(h/2) - D(h)) / 3 + O(h^4).
// L is a mean of losses computed in fp32, good to about 1e-7; h |d| = 0.008, so D is good to about
// 2e-5 of what it is compared with for the directions below; the tolerance is 1 % of |gradient| |d|
// for directions inside the gradient and 2 % of its typical projection for random ones.
#include <catch2/catch.hpp>
#include <cmath>
#include <functional>

#include "tests/exec/cpu/model_fixture.hpp"

using namespace spillway;

namespace {

using Direction = std::vector<double>;

double norm(const Direction& d) {
  double sum = 0;
  for (const double x : d) sum += x * x;
  return std::sqrt(sum);
}

// dL/dh at h = 0 of loss(values + h d / |d|), where the tensor starts at `values`.
double difference(float* values, const Direction& d, const std::function<double()>& loss) {
  const std::vector<float> original(values, values + d.size());
  const double length = norm(d);
  const auto at = [&](double h) {
    double step = 0;  // as it comes out after rounding to fp32
    for (std::size_t i = 0; i < d.size(); ++i) {
      values[i] = static_cast<float>(original[i] + h * d[i] / length);
      step += (static_cast<double>(values[i]) - original[i]) * d[i] / length;
    }
    const double result = loss();
    std::copy(original.begin(), original.end(), values);
    return std::pair(result, step);
  };
  const auto slope = [&](double h) {
    const auto [up, step_up] = at(h);
    const auto [down, step_down] = at(-h);
    return (up - down) / (step_up - step_down);
  };
  constexpr double h = 0.008;
  return (4 * slope(h / 2) - slope(h)) / 3;
}

double projection(const float* gradient, const Direction& d) {
  double sum = 0;
  for (std::size_t i = 0; i < d.size(); ++i) sum += static_cast<double>(gradient[i]) * d[i];
  return sum / norm(d);
}

void check_tensor(const TensorLayout& tensor, float* parameters, const float* gradient,
                  const std::function<double()>& loss, std::mt19937_64& random) {
  float* values = parameters + tensor.offset;
  const float* g = gradient + tensor.offset;
  const auto n = static_cast<std::size_t>(tensor.rows * tensor.columns);
  const Direction whole(g, g + n);
  const double size = norm(whole);
  INFO(tensor.name << " |gradient| " << size);
  CHECK(size > 1e-3);
  CHECK(difference(values, whole, loss) == Approx(size).epsilon(0.01));
  for (int trial = 0; trial < 4; ++trial) {
    Direction part = whole;  // a random half of the gradient's elements
    for (double& x : part) x = random() % 2 == 0 ? x : 0.0;
    if (norm(part) == 0) part = whole;  // of few elements
    CHECK(difference(values, part, loss) == Approx(projection(g, part)).margin(0.01 * size));
    Direction anywhere(n);  // also where the gradient claims to be zero
    std::normal_distribution<double> normal;
    for (double& x : anywhere) x = normal(random);
    CHECK(difference(values, anywhere, loss) ==
          Approx(projection(g, anywhere)).margin(0.02 * size / std::sqrt(static_cast<double>(n))));
  }
}

void check_model(const Problem& problem, std::uint64_t seed) {
  INFO(problem.model.name << ", targets " << problem.model.lora_targets << ", dropout "
                          << problem.model.lora_dropout << ", seed " << seed);
  std::mt19937_64 random(seed);
  const ModelSpec& model = problem.model;
  Units parameters = random_parameters(model, seed);
  // A tied head apart from the token table, to tell the two paths.
  std::vector<float> head_parameters = parameters[static_cast<std::size_t>(head_unit(model))];
  const auto tokens = random_tokens(problem, seed + 1), targets = random_tokens(problem, seed + 2);

  StepOptions options;
  options.head_parameters = &head_parameters;
  const ModelStepResult result = run_step(problem, parameters, tokens, targets, options);
  const auto loss = [&] { return run_step(problem, parameters, tokens, targets, options).loss; };

  const auto embedding = static_cast<std::size_t>(embedding_unit(model));
  for (std::size_t unit = 0; unit <= embedding; ++unit) {
    INFO(unit_name(model, static_cast<std::int64_t>(unit)));
    for (const TensorLayout& tensor : unit_layout(model, static_cast<std::int64_t>(unit))) {
      if (!tensor.trained) continue;
      if (unit < embedding || tensor.decay)  // of the embedding, the tables
        check_tensor(tensor, parameters[unit].data(), result.gradients[unit].data(), loss, random);
    }
  }
  for (const TensorLayout& tensor : unit_layout(model, head_unit(model))) {
    INFO("head");
    if (tensor.trained && tensor.name != "wpe.weight")
      check_tensor(tensor, head_parameters.data(), result.head_gradient.data(), loss, random);
  }
}

}  // namespace

TEST_CASE("Every gradient equals the central difference of the loss") {
  const std::uint64_t seed = 20240611;
  Problem gpt = gpt_problem(13, 2, 8, 2, 6, 2, 1);
  gpt.model.positions = 8;  // more positions than the sequence uses
  check_model(gpt, seed);
  for (const std::string& kind : llama_kinds)
    check_model(llama_problem(kind, 13, 2, 8, 2, 6, 2, 1), seed);
}

TEST_CASE("Every gradient of low-rank adapters equals the central difference of the loss") {
  // B is not zero. What is frozen is passed through: the first layer's gradients are right.
  const auto check = [](Problem problem, const std::string& targets) {
    problem.model.lora_rank = 3;
    problem.model.lora_alpha = 5;
    problem.model.lora_targets = targets;
    for (const double dropout : {0.0, 0.3}) {
      problem.model.lora_dropout = dropout;
      check_model(problem, 20261123);
    }
  };
  for (const char* targets : {"all-linear", "c_attn,mlp.c_proj"})
    check(gpt_problem(13, 2, 8, 2, 6, 2, 1), targets);
  for (const std::string& kind : llama_kinds) {
    for (const char* targets : {"all-linear", "q_proj,v_proj", "up_proj,o_proj"})
      check(llama_problem(kind, 13, 2, 8, 2, 6, 2, 1), targets);
  }
}

TEST_CASE("A gradient accumulator has zeros wherever nothing contributes") {
  // Position rows beyond the sequence, the head's part of the position table, the embedding's part
  // of the final norm, and the padding of every unit.
  Problem problem = gpt_problem(13, 1, 8, 2, 6, 2, 1);
  problem.model.positions = 9;
  const Units parameters = random_parameters(problem.model, 1);
  const ModelStepResult result =
      run_step(problem, parameters, random_tokens(problem, 2), random_tokens(problem, 3));
  const auto zeros = [](const std::vector<float>& unit, std::int64_t from, std::int64_t to) {
    for (std::int64_t i = from; i < to; ++i)
      if (unit[static_cast<std::size_t>(i)] != 0.0f) return false;
    return from < to;
  };
  const auto embedding = unit_layout(problem.model, embedding_unit(problem.model));
  const std::int64_t positions = embedding[1].offset, norm = embedding[2].offset;
  const std::int64_t end = problem.model.embedding_parameters();
  const std::int64_t padded = unit_elements(problem.model, 1);
  CHECK(zeros(result.gradients[1], positions + 6 * 8, padded));
  CHECK(zeros(result.head_gradient, positions, norm));
  CHECK(zeros(result.head_gradient, end, padded));
  CHECK(zeros(result.gradients[0], problem.model.layer_parameters(),
              unit_elements(problem.model, 0)));
}
