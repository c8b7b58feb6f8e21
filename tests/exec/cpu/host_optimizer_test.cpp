// The optimizer's tasks on the host: every combination of widths, clipping, steps left out, and two
// lanes at once.
#include "exec/cpu/host_optimizer.hpp"

#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include "exec/run/clipping.hpp"

namespace spillway {
namespace {

Problem small_problem(Precision precision, GradientWidth gradient,
                      MomentWidth moments = MomentWidth::fp32) {
  Problem problem;
  problem.model = load_model("gpt-tiny", {"layers=2", "hidden=32", "heads=4"});
  problem.workload.batch = problem.workload.micro_batch = 2;
  problem.workload.sequence = 16;
  problem.workload.precision = precision;
  problem.workload.gradient = gradient;
  problem.workload.moments = moments;
  return problem;
}

using Bytes = std::vector<std::byte>;

// Values as a problem keeps them: in fp32 or in bf16.
Bytes stored(const std::vector<float>& values, std::uint64_t width) {
  Bytes bytes(values.size() * width);
  for (std::size_t i = 0; i < values.size(); ++i) {
    const bf16 narrow = to_bf16(values[i]);
    std::memcpy(bytes.data() + i * width,
                width == 4 ? static_cast<const void*>(&values[i]) : &narrow, width);
  }
  return bytes;
}

std::vector<float> loaded(const Bytes& bytes, std::uint64_t width) {
  std::vector<float> values(bytes.size() / width);
  for (std::size_t i = 0; i < values.size(); ++i) {
    bf16 narrow{};
    std::memcpy(width == 4 ? static_cast<void*>(&values[i]) : &narrow, bytes.data() + i * width,
                width);
    if (width == 2) values[i] = to_float(narrow);
  }
  return values;
}

// The operands of one unit's update, and what comes of it.
struct Update {
  Task task;
  Bytes state, gradient, head_gradient, parameters;
  std::vector<double> norms;
  double squares = -1;
  AdamStep adam{1e-2f, 0.9f, 0.95f, 1e-8f, 0.1f, 3};

  Update(const Problem& problem, std::int32_t unit, std::uint64_t seed) {
    std::mt19937_64 random(seed);
    std::normal_distribution<float> normal;
    const auto n = static_cast<std::size_t>(unit_elements(problem.model, unit));
    const auto values = [&](std::size_t count, float scale) {
      std::vector<float> result(count);
      for (float& value : result) value = scale * std::fabs(normal(random));
      return result;
    };
    task.kind = TaskKind::optimizer;
    task.layer = unit;
    task.params = n;
    state = stored(values(n, 0.1f), 4);
    const Bytes moments = stored(values(2 * n, 0.1f), moment_bytes(problem.workload.moments));
    state.insert(state.end(), moments.begin(), moments.end());
    gradient = stored(values(n, 1), problem.gradient_bytes());
    if (unit == problem.model.layers)
      head_gradient = stored(values(n, 1), problem.gradient_bytes());
    task.bytes = gradient.size() + head_gradient.size();
    parameters.assign(n * problem.parameter_bytes(), std::byte{0xff});
  }
  Operands operands() {
    Operands o;
    o.optimizer_state = state.data();
    o.gradient = gradient.data();
    if (!head_gradient.empty()) o.head_gradient = head_gradient.data();
    o.parameters = parameters.data();
    o.adam = adam;
    o.norms = norms;
    o.gradient_square_sum = &squares;
    return o;
  }
  std::vector<float> master() const {
    Bytes first(state.begin(), state.begin() + static_cast<std::ptrdiff_t>(4 * task.params));
    return loaded(first, 4);
  }
};

struct Widths {
  Precision precision;
  GradientWidth gradient;
  MomentWidth moments;
};
constexpr Widths widths[] = {{Precision::fp32, GradientWidth::bits32, MomentWidth::fp32},
                             {Precision::bf16, GradientWidth::bits32, MomentWidth::fp32},
                             {Precision::bf16, GradientWidth::bits16, MomentWidth::fp32},
                             {Precision::fp32, GradientWidth::bits32, MomentWidth::bf16},
                             {Precision::bf16, GradientWidth::bits32, MomentWidth::bf16},
                             {Precision::bf16, GradientWidth::bits16, MomentWidth::bf16}};

}  // namespace

TEST_CASE("An update follows the problem's widths: parameters are the masters, rounded") {
  for (const auto& [precision, width, moments] : widths) {
    const Problem problem = small_problem(precision, width, moments);
    const HostOptimizer optimizer(problem);
    for (const std::int32_t unit : {0, 2}) {
      INFO("unit " << unit << ", parameters of " << problem.parameter_bytes()
                   << " bytes, gradients of " << problem.gradient_bytes() << ", moments "
                   << to_string(moments));
      Update update(problem, unit, 4);
      // The same in fp32 throughout but the moments, from the gradient as it is.
      const Problem exact_problem = small_problem(Precision::fp32, GradientWidth::bits32, moments);
      Update exact(exact_problem, unit, 4);
      exact.gradient = stored(loaded(update.gradient, problem.gradient_bytes()), 4);
      exact.head_gradient = stored(loaded(update.head_gradient, problem.gradient_bytes()), 4);
      optimizer.update(update.task, update.operands());
      HostOptimizer(exact_problem).update(exact.task, exact.operands());
      CHECK(update.state == exact.state);
      CHECK(update.squares == exact.squares);
      CHECK(update.parameters == stored(update.master(), problem.parameter_bytes()));
    }
  }
}

TEST_CASE("The norm of a unit is that of its gradients' sum, and clipping scales by it") {
  for (const auto& [precision, width, moments] : widths) {
    Problem problem = small_problem(precision, width, moments);
    problem.workload.clip = {ClipScope::layer, 0.25};
    const HostOptimizer optimizer(problem);
    Update update(problem, 2, 6);
    const std::vector<float> a = loaded(update.gradient, problem.gradient_bytes()),
                             b = loaded(update.head_gradient, problem.gradient_bytes());
    double expected = 0;
    for (std::size_t i = 0; i < a.size(); ++i) {
      const double g = static_cast<double>(a[i] + b[i]);
      expected += g * g;
    }
    double norm = -1;
    Operands o = update.operands();
    o.norms = {&norm, 1};
    optimizer.gradient_norm(update.task, o);
    CHECK(norm == Approx(expected).epsilon(1e-12));
    CHECK(update.squares == norm);
    // With beta1 = 0 and t = 1 the first moment is the gradient times the factor.
    update.adam.beta1 = 0;
    update.norms = {norm};
    optimizer.update(update.task, update.operands());
    const float factor = clip_factor(std::sqrt(norm), 0.25);
    CHECK(factor < 0.1f);
    const Bytes kept(update.state.begin() + static_cast<std::ptrdiff_t>(4 * a.size()),
                     update.state.end());
    const float exact = (a[0] + b[0]) * factor;
    const float m = loaded(kept, moment_bytes(moments))[0];
    // A bf16 is one of the two neighbours: less than 2^-7 away.
    if (moments == MomentWidth::fp32) CHECK(m == exact);
    CHECK(std::fabs(m - exact) < std::ldexp(exact, -7));
  }
}

TEST_CASE("A step that is left out changes no state, and writes the parameters all the same") {
  for (const auto& [precision, width, moments] : widths) {
    Problem problem = small_problem(precision, width, moments);
    problem.workload.on_nonfinite = OnNonFinite::skip;
    const HostOptimizer optimizer(problem);
    Update update(problem, 0, 8);
    const Bytes before = update.state;
    update.norms = {1, std::nan(""), 1};
    optimizer.update(update.task, update.operands());
    CHECK(update.state == before);
    CHECK(update.squares == 0);
    CHECK(update.parameters == stored(update.master(), problem.parameter_bytes()));
  }
}

TEST_CASE("Of a unit with adapters the norm is taken over these, and no frozen unit's is read") {
  Problem problem = small_problem(Precision::fp32, GradientWidth::automatic, MomentWidth::fp32);
  problem.model.lora_rank = 2;
  problem.workload.clip = {ClipScope::global, 0.25};
  problem.workload.on_nonfinite = OnNonFinite::skip;
  const HostOptimizer optimizer(problem);
  Task task;
  task.kind = TaskKind::gradient_norm;
  task.layer = 0;
  // What follows the adapters' gradient is another buffer's.
  std::vector<float> gradient(static_cast<std::size_t>(trained_elements(problem.model, 0)), 0.5f);
  const auto n = static_cast<double>(gradient.size());
  gradient.resize(2 * gradient.size(), std::nanf(""));
  double norm = -1, squares = -1;
  Operands o;
  o.gradient = reinterpret_cast<std::byte*>(gradient.data());
  o.norms = {&norm, 1};
  o.gradient_square_sum = &squares;
  optimizer.gradient_norm(task, o);
  CHECK(norm == n / 4);
  CHECK(squares == n / 4);

  task.kind = TaskKind::optimizer;
  task.params = static_cast<std::uint64_t>(n);
  std::vector<float> state(3 * static_cast<std::size_t>(n), 0.0f),
      parameters(gradient.size(), 9.0f);
  std::vector<double> norms(static_cast<std::size_t>(unit_count(problem.model)), 0.0);
  norms[0] = norm;
  norms.back() = std::nan("");
  o.optimizer_state = reinterpret_cast<std::byte*>(state.data());
  o.parameters = reinterpret_cast<std::byte*>(parameters.data());
  o.norms = norms;
  optimizer.update(task, o);
  CHECK(squares > 0);  // not left out
  CHECK(parameters[0] < 0.0f);
  CHECK(parameters[static_cast<std::size_t>(n)] == 9.0f);
}

TEST_CASE("the norm of a gradient has the same bits whatever the threads") {
  for (const GradientWidth width : {GradientWidth::bits16, GradientWidth::bits32}) {
    Problem problem = small_problem(Precision::bf16, width);
    problem.model = load_model("gpt-tiny", {"layers=2", "hidden=256", "heads=4"});
    for (const std::int32_t unit : {0, 2}) {
      Update given(problem, unit, 50 + static_cast<std::uint64_t>(unit));
      // Of several pieces, the last of them not whole.
      if (unit == 0) REQUIRE(given.task.params > 4 * square_sum_elements);
      REQUIRE(static_cast<std::int64_t>(given.task.params) % square_sum_elements != 0);
      given.norms.assign(1, 0.0);
      HostOptimizer(problem, 1).gradient_norm(given.task, given.operands());
      const double expected = given.squares;
      REQUIRE(expected > 0);
      for (const int threads : {2, 3, 7}) {
        HostOptimizer(problem, threads).gradient_norm(given.task, given.operands());
        CHECK(given.squares == expected);
        CHECK(given.norms[0] == expected);
      }
      const auto elements = static_cast<std::int64_t>(given.task.params);
      const CpuKernels& kernels = cpu_kernels(best_cpu_variant());
      const Operands o = given.operands();
      CHECK((width == GradientWidth::bits32
                 ? kernels.sum_squares(reinterpret_cast<const float*>(o.gradient),
                                       reinterpret_cast<const float*>(o.head_gradient), elements)
                 : kernels.sum_squares(reinterpret_cast<const bf16*>(o.gradient),
                                       reinterpret_cast<const bf16*>(o.head_gradient), elements)) ==
            expected);
    }
  }
}

TEST_CASE("Two lanes update at once, with threads to share, and each as if alone") {
  // Units of several pieces, so that the threads have something to share.
  const MomentWidth moments = GENERATE(MomentWidth::fp32, MomentWidth::bf16);
  Problem problem = small_problem(Precision::bf16, GradientWidth::bits16, moments);
  problem.model = load_model("gpt-tiny", {"layers=2", "hidden=256", "heads=4"});
  const HostOptimizer alone(problem, 1), shared(problem, 3);
  constexpr int rounds = 20;
  std::vector<Update> expected, found;
  for (const std::int32_t unit : {0, 1}) {
    expected.emplace_back(problem, unit, 30 + static_cast<std::uint64_t>(unit));
    REQUIRE(expected.back().task.params > 4 * 65536);
    found.push_back(expected.back());
    for (int round = 0; round < rounds; ++round)
      alone.update(expected.back().task, expected.back().operands());
  }
  const auto lane = [&](std::size_t unit) {
    for (int round = 0; round < rounds; ++round)
      shared.update(found[unit].task, found[unit].operands());
  };
  std::thread other(lane, 1);
  lane(0);
  other.join();
  for (const std::size_t unit : {0u, 1u}) {
    INFO("unit " << unit);
    CHECK(found[unit].state == expected[unit].state);
    CHECK(found[unit].parameters == expected[unit].parameters);
    CHECK(found[unit].squares == expected[unit].squares);
  }
}

}  // namespace spillway
