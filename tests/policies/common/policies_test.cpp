// Every policy, over settings, layers, micro-batches and memory: no race, and every task reads what
// it must.
#include <fmt/format.h>

#include <catch2/catch.hpp>

#include <functional>
#include <random>
#include <set>

#include "policies/model/saved.hpp"
#include "policies/model/scratch.hpp"
#include "policies/schedule/program.hpp"
#include "tests/policies/check_schedule.hpp"
#include "tests/policies/input_error.hpp"
#include "tests/policies/schedules.hpp"

using namespace spillway;
using namespace spillway::test;

TEST_CASE("Every policy's schedule is free of races and computes what it must") {
  for (const Precision precision : {Precision::bf16, Precision::fp32}) {
    for (const int layers : layer_grid) {
      for (const int micro_batches : micro_batch_grid) {
        const Problem problem = tiny_problem(layers, micro_batches, precision);
        for (const std::string& policy : policy_settings()) {
          INFO(policy << ", " << layers << " layers, " << micro_batches << " micro-batches, "
                      << (precision == Precision::bf16 ? "bf16" : "fp32"));
          check_schedule(build_schedule(problem, policy, 3));
        }
      }
    }
  }
}

TEST_CASE("So is that of every option with values from all of its domain") {
  for (const int layers : {1, 2, 5}) {
    for (const int micro_batches : {1, 2, 5}) {
      const Problem problem = with_rates(tiny_problem(layers, micro_batches));
      for (const PolicyInfo& info : builtin_policies()) {
        for (const PolicyOption& option : info.options) {
          for (const std::string& value : option.domain.samples(6)) {
            const std::string policy = info.name + ":" + option.name + "=" + value;
            INFO(policy << ", " << layers << " layers, " << micro_batches << " micro-batches");
            if (is_refused_plan(problem, policy)) {
              CHECK_THROWS_AS(build_schedule(problem, policy, 3), InputError);
              continue;
            }
            check_schedule(build_schedule(problem, policy, 3));
          }
        }
      }
    }
  }
}

namespace {

// One micro-batch through two layers, everything on the GPU, written task by task; AdamW with the
// gradient of `unit` on the units that are given.
std::string error_when_updating(const std::function<std::vector<int>(int unit)>& units_of) {
  const Problem problem = tiny_problem(2, 1);
  Program program(problem);
  const auto elements = [&](int unit) {
    return static_cast<std::uint64_t>(unit_elements(problem.model, unit));
  };
  const auto sized = [](Slice whole, std::uint64_t bytes) { return whole.part(0, bytes); };
  std::vector<Slice> parameters, states;
  for (int unit = 0; unit < 3; ++unit) {
    const std::uint64_t of_parameters = elements(unit) * problem.parameter_bytes();
    const std::uint64_t of_state = elements(unit) * problem.state_bytes();
    parameters.push_back(sized(
        program.persistent(Tier::gpu, of_parameters, BufferKind::parameters, unit), of_parameters));
    states.push_back(sized(
        program.persistent(Tier::gpu, of_state, BufferKind::optimizer_state, unit), of_state));
    program.home(BufferKind::parameters, unit, 0, elements(unit), parameters.back());
    program.home(BufferKind::optimizer_state, unit, 0, elements(unit), states.back());
  }
  for (int step = 0; step < 2; ++step) {
    program.at(step, Phase::forward);
    const auto activation = [&](int layer) {
      return program.buffer(Tier::gpu, checkpoint_bytes(problem), BufferKind::checkpoint, layer, 0);
    };
    const Slice inputs[] = {activation(0), activation(1), activation(2)};
    program.embed_forward(0, parameters[2], inputs[0]);
    program.forward(0, 0, parameters[0], inputs[0], inputs[1]);
    program.forward(1, 0, parameters[1], inputs[1], inputs[2]);
    program.at(step, Phase::backward);
    const auto accumulator = [&](int unit, BufferKind kind) {
      const std::uint64_t bytes = elements(unit) * problem.gradient_bytes();
      return sized(program.buffer(Tier::gpu, bytes, kind, unit), bytes);
    };
    const Slice head = accumulator(2, BufferKind::head_gradient);
    program.head(0, parameters[2], inputs[2], head, true);
    Slice gradients[3];
    for (const int layer : {1, 0}) {
      gradients[layer] = accumulator(layer, BufferKind::gradient);
      program.backward(layer, 0, parameters[static_cast<std::size_t>(layer)], inputs[layer], {},
                       saved_none, inputs[2], gradients[layer], true, false);
    }
    gradients[2] = accumulator(2, BufferKind::gradient);
    program.embed_backward(0, inputs[2], gradients[2], true);
    for (const int unit : {1, 0, 2}) {
      for (const int other : units_of(unit)) {
        const auto at = static_cast<std::size_t>(other);
        program.optimizer(other, 0, elements(other), gradients[unit], unit == 2 ? head : Slice{},
                          states[at], parameters[at], step);
      }
    }
  }
  return find_dataflow_error(std::move(program).finish("by hand", 2));
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE(
    "The check of what is computed finds an update left out, done twice, or with another's "
    "gradient") {
  using Units = std::vector<int>;
  CHECK(error_when_updating([](int unit) { return Units{unit}; }) == "");
  CHECK(contains(error_when_updating([](int unit) { return unit == 1 ? Units{} : Units{unit}; }),
                 "forward layer 1 micro-batch 0 step 1: byte"));
  CHECK(contains(error_when_updating([](int unit) {
                   return unit == 1 ? Units{1, 1} : Units{unit};
                 }),
                 "optimizer layer 1 step 0: byte"));
  CHECK(
      contains(error_when_updating([](int unit) { return unit == 2 ? Units{2} : Units{1 - unit}; }),
               "optimizer layer 0 step 0: byte"));
}

namespace {

// One of these policies; each of its options is left out, or gets a value of its domain. Of many
// options few are given: not every combination of a plan's fields is a plan.
std::string random_policy(std::mt19937& random, const std::vector<PolicyInfo>& policies) {
  const PolicyInfo& policy = policies[random() % policies.size()];
  std::string text = policy.name + ":";
  for (const PolicyOption& option : policy.options) {
    const std::vector<std::string> values = option.domain.samples(40);
    const std::string& value = values[random() % values.size()];
    if (random() % (policy.options.size() > 30 ? 5 : 2) == 0)
      text += option.name + "=" + value + ",";
  }
  return text;
}

Problem random_problem(std::mt19937& random) {
  const auto between = [&](int low, int high) {
    return low + static_cast<int>(random() % static_cast<unsigned>(high - low + 1));
  };
  Problem problem = with_rates(
      tiny_problem(between(1, 6), between(1, 9), random() % 2 ? Precision::bf16 : Precision::fp32));
  problem.workload.micro_batch = between(1, 3);
  problem.workload.batch = problem.workload.micro_batch * between(1, 9);
  problem.workload.gradient = random() % 2 ? GradientWidth::bits32 : GradientWidth::automatic;
  problem.workload.moments = random() % 2 ? MomentWidth::bf16 : MomentWidth::fp32;
  if (random() % 2 == 0) make_llama(problem.model, random());
  return problem;
}

}  // namespace

namespace {

void check_random_policies(const std::vector<PolicyInfo>& policies, unsigned seeds) {
  unsigned refused = 0;
  for (unsigned seed = 1; seed <= seeds; ++seed) {
    std::mt19937 random(seed);
    Problem problem = random_problem(random);
    const std::string policy = random_policy(random, policies);
    const int steps = 1 + static_cast<int>(random() % 4);
    INFO("seed " << seed << ": " << policy << ", " << problem.model.layers << " layers, "
                 << problem.workload.micro_batches() << " micro-batches, " << steps << " steps");
    if (is_refused_plan(problem, policy)) {
      ++refused;
      continue;
    }
    const Schedule roomy = build_schedule(problem, policy, steps);
    check_schedule(roomy);
    // With less host memory than that, options left at auto take another value.
    problem.machine.host.memory = roomy.use(Tier::host).peak_bytes * (50 + random() % 50) / 100;
    const Schedule tight = build_schedule(problem, policy, steps);
    check_schedule(tight);
  }
  CHECK(refused < seeds * 2 / 3);
}

}  // namespace

TEST_CASE("Random policies on random problems are free of races and compute what they must") {
  check_random_policies(builtin_policies(), 1000);
}

TEST_CASE("Random settings of policy spillway, too") {
  std::vector<PolicyInfo> policies = builtin_policies();
  const auto is_other = [](const PolicyInfo& info) { return info.name != "spillway"; };
  policies.erase(std::remove_if(policies.begin(), policies.end(), is_other), policies.end());
  check_random_policies(policies, 500);
}

// In less memory another layout may fit, or an option left at auto takes another value.
TEST_CASE("A schedule fits in the memory it says it needs, and never takes more than there is") {
  for (const int micro_batches : {1, 2, 5}) {
    for (const std::string& policy : policy_settings()) {
      if (policy.find("retention=") != std::string::npos) continue;  // takes what there is
      INFO(policy << ", " << micro_batches << " micro-batches");
      const Schedule roomy = build_schedule(tiny_problem(3, micro_batches), policy, 3);
      const Problem tight = tightened(roomy);
      const Schedule fitted = build_schedule(tight, roomy.policy(), 3);
      CHECK(fitted.fits());
      check_schedule(fitted);
      if (policy.rfind("zero-offload", 0) != 0) {  // its parameters=auto looks at the GPU's memory
        CHECK(fitted.fingerprint() == roomy.fingerprint());
      }
      Problem less = tight;
      for (std::uint64_t* memory :
           {&less.machine.gpu.memory, &less.machine.host.memory, &less.machine.ssd.capacity}) {
        if (*memory == 0) continue;
        *memory -= 1;
        const Schedule short_of_one = build_schedule(less, fitted.policy(), 3);
        *memory += 1;
        if (short_of_one.fits()) {
          CHECK(short_of_one.fingerprint() != fitted.fingerprint());
          check_schedule(short_of_one);
          continue;
        }
        CHECK_THROWS_AS(short_of_one.require_fit(), FitError);
      }
    }
  }
}

TEST_CASE(
    "The canonical text leaves defaults out, in the order of the options, and names the same "
    "schedule") {
  CHECK(canonical_policy("greedysnake:snake=off,alpha=0.5") == "greedysnake:alpha=0.5,snake=off");
  CHECK(canonical_policy("greedysnake:alpha=0.25,snake=on") == "greedysnake");
  CHECK(canonical_policy("fuyou:") == "fuyou");
  for (const std::string& policy : policy_settings()) {
    INFO(policy);
    CHECK(canonical_policy(canonical_policy(policy)) == canonical_policy(policy));
    const Problem problem = tiny_problem(3, 5);
    const Schedule schedule = build_schedule(problem, policy, 2);
    CHECK(canonical_policy(schedule.policy()) == schedule.policy());
    const Schedule again = build_schedule(problem, schedule.policy(), 2);
    CHECK(again.policy() == schedule.policy());
    CHECK(again.fingerprint() == schedule.fingerprint());
    CHECK(build_schedule(problem, canonical_policy(policy), 2).fingerprint() ==
          schedule.fingerprint());
  }
}

// Traces and run records carry these texts.
TEST_CASE("The options of the published policies, their order and their defaults") {
  const std::set<std::string> published = {
      "resident", "zero-offload", "zero-infinity", "deep-optimizer-states", "fuyou", "greedysnake"};
  std::string texts;
  for (const PolicyInfo& info : builtin_policies()) {
    if (published.count(info.name) == 0) continue;
    texts += info.name + ":";
    for (const PolicyOption& option : info.options)
      texts += " " + option.name + "=" + option.default_value;
    texts += "\n";
  }
  const std::string zero =
      " recompute=full prefetch_bucket_size=5e7 max_live_parameters=1e9 max_reuse_distance=auto "
      "reduce_bucket_size=5e8";
  const std::string every = " retention=never\n";
  CHECK(texts ==
        "resident: recompute=off" + every +
            "zero-offload: parameters=auto sub_group_size=1e9 checkpoints=gpu" + zero + every +
            "zero-infinity: pipeline_read=off pipeline_write=off gradients=ssd parameters=ssd "
            "max_in_cpu=0 param_buffer_count=5 param_persistence_threshold=0 sub_group_size=1e9 "
            "checkpoints=host" +
            zero + every +
            "deep-optimizer-states: stride=auto sub_group_size=1e8 staging=single checkpoints=gpu "
            "recompute=full" +
            every +
            "fuyou: optimizer=optimized checkpoints_ssd=auto recompute=full swap=none group=block "
            "state_buffers=2 forward_ahead=1 backward_ahead=1 activations_ahead=1" +
            every +
            "greedysnake: alpha=0.25 snake=on updates=layer placement=least optimizer_ssd=auto "
            "checkpoints_ssd=auto parameters_ssd=auto gradients_gpu=auto recompute=full" +
            every);
}

TEST_CASE("A value is canonical as it is written, unless it is written as the default") {
  CHECK(canonical_policy("zero-infinity:max_in_cpu=1000,sub_group_size=1000000000") ==
        "zero-infinity:max_in_cpu=1000,sub_group_size=1000000000");
  CHECK(canonical_policy("greedysnake:alpha=0.250,updates=micro-batch") ==
        "greedysnake:alpha=0.250,updates=micro-batch");
  for (const PolicyInfo& info : builtin_policies()) {
    std::string given, canonical;
    for (const PolicyOption& option : info.options) {
      std::string value = option.default_value;
      for (const std::string& sample : option.domain.samples(3)) {
        if (sample != option.default_value) value = sample;
      }
      const std::string item = option.name + "=" + value;
      given = item + (given.empty() ? "" : ",") + given;  // last option first
      canonical += (canonical.empty() ? ":" : ",") + item;
    }
    CHECK(canonical_policy(info.name + ":" + given) == info.name + canonical);
  }
}

TEST_CASE("What is wrong with a policy's text is said, with what would be right") {
  const auto rejects = [](const std::string& text, const std::string& what,
                          const std::string& hint) {
    INFO(text);
    check_error([&] { make_policy(text); }, what, hint);
    check_error([&] { canonical_policy(text); }, what, hint);
    check_error([&] { build_schedule(tiny_problem(1, 1), text, 1); }, what, hint);
  };
  rejects("greedysnak", "unknown policy 'greedysnak'", "greedysnake");
  rejects("", "unknown policy ''",
          "resident, zero-offload, zero-infinity, deep-optimizer-states, fuyou, greedysnake");
  rejects("fuyou:alpha=0.2", "policy fuyou has no option 'alpha'",
          "optimizer, checkpoints_ssd, recompute, swap, group, state_buffers");
  rejects("fuyou:optimizer", "policy fuyou: 'optimizer' is not OPTION=VALUE",
          "greedysnake:alpha=0.2,snake=off");
  rejects("fuyou:=naive", "policy fuyou: '=naive' is not OPTION=VALUE", "");
  rejects("fuyou:recompute=full,recompute=full", "policy fuyou: option 'recompute' is given twice",
          "once");
  rejects("fuyou:optimizer=fast",
          "policy fuyou: option optimizer=fast is not one of optimized | naive | serial", "naive");
  rejects("greedysnake:snake=yes", "policy greedysnake: option snake=yes is not one of on | off",
          "on:");
  for (const char* value : {"1.5", "-0.1", "nan", "inf", "", "0.5x", " 0.5", "1e400"}) {
    rejects(fmt::format("greedysnake:alpha={}", value),
            fmt::format("policy greedysnake: option alpha={} is not a number from 0 to 1", value),
            "fraction");
  }
  for (const char* value : {"some", "1.5", "-0.5", "nan", "", "5", "GiB", "10 GiBs"}) {
    rejects(fmt::format("fuyou:swap={}", value),
            fmt::format("policy fuyou: option swap={} is not auto, none, all, a number", value),
            "60GiB");
  }
  for (const char* value : {"", "0", "2047", "-1e9", "nan", "inf", "1e99", "layer"}) {
    rejects(fmt::format("fuyou:group={}", value),
            fmt::format("policy fuyou: option group={} is not a whole number of elements", value),
            "7e8");
  }
  for (const char* value : {"-1", "1025", "2.5", "", "99999999999"}) {
    rejects(fmt::format("zero-infinity:param_buffer_count={}", value),
            fmt::format("policy zero-infinity: option param_buffer_count={} is not a whole number "
                        "from 1 to 1024",
                        value),
            "tensors of parameters");
  }
}

TEST_CASE(
    "Every option of every policy has a default that it accepts, and rejects nonsense with its "
    "help") {
  for (const PolicyInfo& info : builtin_policies()) {
    CHECK(!info.paper.empty());
    CHECK(!info.idea.empty());
    for (const PolicyOption& option : info.options) {
      INFO(info.name << " " << option.name);
      for (const std::string& value : option.frugal) CHECK(option.domain.holds(value));
      CHECK(canonical_policy(info.name + ":" + option.name + "=" + option.default_value) ==
            info.name);
      check_error([&] { make_policy(info.name + ":" + option.name + "=nonsense"); },
                  fmt::format("policy {}: option {}=nonsense is not ", info.name, option.name),
                  option.help);
    }
  }
}
