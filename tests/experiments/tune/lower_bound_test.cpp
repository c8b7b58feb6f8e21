#include "experiments/tune/lower_bound.hpp"

#include <fmt/format.h>

#include <catch2/catch.hpp>

#include "experiments/plan/evaluate.hpp"
#include "policies/model/scratch.hpp"
#include "tests/experiments/tune/random_plans.hpp"

namespace spillway {
namespace {

using test::Dice;
using test::OnePlan;

// The machine with no more memory than the schedule takes.
Problem squeezed(const Schedule& schedule) {
  Problem problem = schedule.problem();
  problem.machine.gpu.memory = schedule.use(Tier::gpu).peak_bytes;
  problem.machine.host.memory = schedule.use(Tier::host).peak_bytes;
  problem.machine.ssd.capacity = schedule.use(Tier::ssd).peak_bytes;
  return problem;
}

// What a schedule takes over the bound of its micro-batch and row, with no more memory than it has.
double over_bound(const Schedule& schedule, double step_seconds, int row) {
  const auto bound = lower_bound_of(squeezed(schedule), row);
  return bound ? step_seconds / bound->seconds : 0;
}

struct Tally {
  int plans = 0, refused = 0;
  double least = 1e300;
};

// Random plans, one a seed, each on a machine with as much memory as it takes.
Tally try_random_plans(std::uint64_t count, Problem (*random_problem)(Dice&), int steps) {
  Tally tally;
  for (std::uint64_t seed = 1; seed <= count; ++seed) {
    Dice dice(seed);
    const Problem problem = random_problem(dice);
    Plan plan = test::random_plan(dice, problem);
    // Large models are not cut into millions of updates.
    plan.optimizer.elements = std::max<std::uint64_t>(
        plan.optimizer.elements,
        static_cast<std::uint64_t>(unit_elements(problem.model, 0)) / (1 + seed % 3));
    const int row =
        plan.order.row > 0 ? plan.order.row : static_cast<int>(problem.workload.micro_batches());
    OnePlan policy(plan);
    std::optional<Schedule> schedule;
    try {
      schedule.emplace(build_schedule(problem, policy, steps));
    } catch (const InputError&) {
      ++tally.refused;
      continue;
    }
    const double seconds = simulate(*schedule).step_seconds;
    const double ratio = over_bound(*schedule, seconds, row);
    ++tally.plans;
    tally.least = std::min(tally.least, ratio);
    INFO("seed " << seed << ": " << to_text(plan));
    INFO(problem.model.layers << " layers, " << problem.workload.micro_batch << " of "
                              << problem.workload.batch << ", "
                              << to_string(problem.workload.clip));
    CHECK(ratio >= 1);
  }
  return tally;
}

TEST_CASE("no random plan is faster than the bound of its micro-batch and row") {
  const Tally tally = try_random_plans(1000, test::random_problem, 12);
  CHECK(tally.refused < 100);
  CHECK(tally.least < 1.02);  // some come near
}

TEST_CASE("nor is one where part of the model is frozen, or of one of several ranks") {
  const Tally frozen = try_random_plans(400, test::random_partly_frozen_problem, 12),
              ranks = try_random_plans(600, test::random_ranks_problem, 12);
  CHECK(frozen.refused < 40);
  CHECK(ranks.refused < 200);  // plans that ranks do not have, and adapters too small to be shared
  CHECK(std::max(frozen.least, ranks.least) < 1.1);
}

TEST_CASE("no random plan of a large model is faster than the bound") {
  const Tally tally = try_random_plans(20, test::random_large_problem, 6);
  CHECK(tally.refused < 5);
}

TEST_CASE("none of ten thousand random plans of large models is faster than the bound",
          "[nightly]") {
  const Tally tally = try_random_plans(10'000, test::random_large_problem, 6);
  CHECK(tally.refused < 1'000);  // settings that do not go together
}

struct Setting {
  const char* model;
  const char* machine;
  std::vector<std::string> overrides;
  std::int64_t batch = 1, micro_batch = 1;
};

Problem problem_of(const Setting& setting) {
  Problem problem;
  problem.model = load_model(setting.model);
  problem.machine = load_machine(setting.machine, setting.overrides);
  const Precision precision = usual_precision(problem.machine.backend());
  problem.workload = {setting.batch, setting.micro_batch,
                      std::min<std::int64_t>(problem.model.positions, 1024), precision};
  return problem;
}

int row_of(const std::string& policy, const Problem& problem) {
  const bool is_vertical = policy.starts_with("greedysnake");
  return is_vertical ? static_cast<int>(problem.workload.micro_batches()) : 1;
}

// How many of them fit.
int try_policies(const Problem& problem, const std::vector<std::string>& policies, int steps) {
  int fit = 0;
  for (const std::string& policy : policies) {
    std::optional<Evaluation> one;
    try {
      one.emplace(evaluation_on(problem.machine)(problem, policy, steps));
    } catch (const InputError&) {  // not for this problem
      continue;
    }
    if (!one->result) continue;
    ++fit;
    const double seconds = one->result->step_seconds;
    const int row = row_of(policy, problem);
    const auto bound = lower_bound_of(problem, row);
    INFO(fmt::format("{} on {}, {} of {} sequences: {}", problem.model.name, problem.machine.name,
                     problem.workload.micro_batch, problem.workload.batch, policy));
    REQUIRE(bound);
    CHECK(seconds >= bound->seconds);
    CHECK(over_bound(one->schedule, seconds, row) >= 1);
    CHECK(bound->seconds >= lower_bound(problem).seconds);
  }
  return fit;
}

const std::vector<std::string> all_policies = {
    "resident",
    "resident:recompute=full",
    "zero-offload",
    "zero-offload:retention=nearest,recompute=needed",
    "zero-offload:parameters=host,checkpoints=host",
    "zero-infinity",
    "zero-infinity:retention=nearest,gradients=host",
    "zero-infinity:pipeline_read=on,pipeline_write=on,parameters=host",
    "deep-optimizer-states",
    "deep-optimizer-states:staging=double,sub_group_size=1e7",
    "fuyou",
    "fuyou:swap=auto,retention=nearest",
    "fuyou:swap=all,state_buffers=3",
    "fuyou:optimizer=naive",
    "fuyou:optimizer=serial,recompute=needed",
    "greedysnake",
    "greedysnake:retention=nearest",
    "greedysnake:alpha=0.3,retention=nearest",
    "greedysnake:alpha=0,optimizer_ssd=1,parameters_ssd=1,checkpoints_ssd=1",
};

TEST_CASE("no built-in policy is faster than the bound", "[slow]") {
  const std::vector<std::string> one_drive = {"ssd.count=1", "host.memory=128GB"};
  const std::vector<Setting> settings = {
      {"gpt2-124m", "rtx4090-12ssd", {}, 8, 2},
      {"gpt2-1.5b", "rtx4090-12ssd", one_drive, 8, 8},
      {"gpt2-1.5b", "a100-80gb", {"ssd.law=duplex"}, 8, 2},
      {"llama-7b", "a100-80gb", {}, 16, 16},
      {"llama-7b", "rtx4090-12ssd", {"ssd.count=3", "host.memory=192GB"}, 16, 4},
      {"gpt-13b", "rtx4090-12ssd", {"ssd.law=capped"}, 12, 4},
      {"gpt-13b", "rtx4090-12ssd", one_drive, 32, 32},
      {"gpt-13b", "rtx4090-12ssd", {"ssd.law=mixed", "ssd.mixed_gain=1.3"}, 12, 4},
      {"llama-7b", "rtx4090-2ssd", {"ssd.cache_recovery=13GB/s"}, 16, 4},
      {"gpt-30b", "h200", {}, 16, 16},
      {"gpt-175b", "rtx4090-12ssd", {}, 8, 8},
      {"gpt-175b", "h200", {"ssd.law=simplex"}, 4, 2},
      {"gpt-tiny", "testbed", {"gpu.memory=2GB", "host.memory=2GB"}, 8, 2},
      {"gpt-small", "testbed", {}, 6, 3},
      {"gpt-small", "testbed", {"ssd.law=simplex", "pcie.total=3GB/s"}, 4, 4},
  };
  int fit = 0;
  for (const Setting& setting : settings) {
    Problem problem = problem_of(setting);
    fit += try_policies(problem, all_policies, 6);
    problem.workload.clip = {ClipScope::global, 1};
    problem.workload.moments = MomentWidth::bf16;
    fit += try_policies(problem, all_policies, 6);
  }
  CHECK(fit > 250);
}

// -- by hand --------------------------------------------------------------------------------------

constexpr double at_once = 1e18;  // a rate at which nothing takes time

// A machine that takes no time for anything but what a test says, with plenty of memory.
Problem fast_problem() {
  Problem problem;
  problem.model.name = "four layers";
  problem.model.layers = 4;
  problem.model.hidden = 64;
  problem.model.heads = problem.model.kv_heads = 2;
  problem.model.ffn = 256;
  problem.model.vocabulary = 64;
  problem.model.positions = 32;
  problem.workload = {2, 1, 32};
  Machine& machine = problem.machine;
  machine.name = "fast";
  machine.gpu.memory = machine.host.memory = machine.ssd.capacity = std::uint64_t{1} << 40;
  machine.gpu.flops = machine.gpu.memory_bandwidth = machine.gpu.adam_params_per_second = at_once;
  machine.pcie.h2d = machine.pcie.d2h = machine.host.bandwidth = at_once;
  machine.host.adam_params_per_second = at_once;
  machine.host.cores = 8;
  machine.ssd.count = 1;
  machine.ssd.read = machine.ssd.write = at_once;
  return problem;
}

double all_elements(const Problem& problem) {
  const ModelSpec& model = problem.model;
  return static_cast<double>(model.layers * unit_elements(model, 0) + outer_elements(model));
}

TEST_CASE("with all in GPU memory a step takes the GPU's work, and resident takes no more") {
  // Three forwards of the model, and AdamW. The CPU and the links take too long to be of use.
  Problem problem = fast_problem();
  problem.machine.gpu.flops = 1e7;
  problem.machine.gpu.adam_params_per_second = 1e6;
  problem.machine.host.adam_params_per_second = problem.machine.pcie.h2d = 1;
  const double expected =
      3 * problem.model.forward_flops(2, 32) / 1e7 + all_elements(problem) / 1e6;
  const auto bound = lower_bound_of(problem, 1);
  REQUIRE(bound);
  CHECK(bound->seconds == Approx(expected).epsilon(2e-6));
  CHECK(bound->limit == "gpu.compute");
  CHECK(bound->shares.gpu_updates == Approx(1));
  CHECK(bound->shares.optimizer_state.gpu == Approx(1));
  CHECK(evaluate(problem, "resident").result->step_seconds == Approx(expected).epsilon(1e-5));
}

TEST_CASE("with one drive and no host memory a step takes the drive's bytes") {
  // Of every element 12 bytes of state are read and written; every layer's parameters are written
  // once and read twice, but for what the GPU holds when forward and backward begin. There is just
  // enough GPU memory for the last layer's backward and for all inputs of layers, so that one layer
  // may have its home there.
  Problem problem = fast_problem();
  problem.workload.micro_batch = 2;
  const double layer = static_cast<double>(unit_elements(problem.model, 0));
  const double embedding = static_cast<double>(unit_elements(problem.model, 4));
  const double input = static_cast<double>(checkpoint_bytes(problem));
  double working = 1e300, forward_working = 1e300;
  for (int mask = 0; mask < 256; ++mask) {
    const auto saves = static_cast<SavedMask>(mask);
    const auto bytes = static_cast<double>(saved_bytes(problem, saves));
    working = std::min(working,
                       bytes + static_cast<double>(backward_scratch_bytes(problem, saves)) + input);
    forward_working =
        std::min(forward_working,
                 bytes + static_cast<double>(forward_scratch_bytes(problem, saves)) + input);
  }
  const double at_turn = 2 * embedding + 2 * layer + 2 * (layer + embedding) + working + 4 * input;
  const double copies = at_turn - 2 * embedding - forward_working - input;  // when forward begins
  REQUIRE(copies < 8 * layer);
  problem.machine.gpu.memory = static_cast<std::uint64_t>(at_turn);
  problem.machine.host.memory = 1;
  // The GPU's updates would take their state from host memory.
  problem.machine.gpu.adam_params_per_second = 1e-3;
  for (const SsdLaw law : {SsdLaw::simplex, SsdLaw::duplex}) {
    problem.machine.ssd.law = law;
    problem.machine.ssd.read = 2e5;
    problem.machine.ssd.write = 1e5;
    const double state = 12 * all_elements(problem);
    const double read = state + (8 * layer - copies) + 6 * layer, written = state + 6 * layer;
    const double expected = law == SsdLaw::simplex ? read / 2e5 + written / 1e5 : written / 1e5;
    const auto bound = lower_bound_of(problem, 1);
    REQUIRE(bound);
    CHECK(bound->seconds == Approx(expected).epsilon(1e-5));
    CHECK(bound->limit == (law == SsdLaw::simplex ? "ssd.time" : "ssd.write"));
    CHECK(bound->shares.optimizer_state.ssd == Approx(1));
  }
}

TEST_CASE("where nothing is left but the CPU's optimizer, it rests while the last layer runs") {
  // Updates run from the last layer's backward to its next forward: a step is that visit and the
  // updates of all elements. The embedding's and layer 0's come between two steps.
  Problem problem = fast_problem();
  problem.machine.gpu.adam_params_per_second = 1e-3;
  problem.machine.host.adam_params_per_second = 1e4;
  problem.machine.gpu.flops = 1e9;
  problem.workload.micro_batch = 2;
  const double layer = problem.model.layer_forward_flops(2, 32) / 1e9;
  const double head = problem.model.head_forward_flops(2, 32) / 1e9;
  const double expected = 3 * (layer + head) + all_elements(problem) / 1e4;
  const auto bound = lower_bound_of(problem, 1);
  REQUIRE(bound);
  CHECK(bound->seconds == Approx(expected).epsilon(1e-5));
  CHECK(bound->limit == "cpu.optimizer");
}

TEST_CASE("an untied head is updated while the last layer runs, and not while it runs itself") {
  // Its gradient is complete before the last layer's backward, and the last layer's next forward
  // does not need it.
  Problem problem = fast_problem();
  problem.model.architecture = Architecture::llama;
  problem.model.qkv_bias = problem.model.tied = false;
  problem.machine.gpu.adam_params_per_second = 1e-3;
  problem.machine.host.adam_params_per_second = 1e4;
  problem.machine.gpu.flops = 1e9;
  problem.workload.micro_batch = 2;
  const double head = problem.model.head_forward_flops(2, 32) / 1e9;
  const double expected = 3 * head + all_elements(problem) / 1e4;
  const auto bound = lower_bound_of(problem, 1);
  REQUIRE(bound);
  CHECK(bound->seconds == Approx(expected).epsilon(1e-5));
  CHECK(bound->limit == "cpu.optimizer");
  // A tied head's gradient is complete when the embedding's is.
  problem.model.tied = true;
  const double layer = problem.model.layer_forward_flops(2, 32) / 1e9;
  CHECK(lower_bound_of(problem, 1)->seconds ==
        Approx(3 * (layer + head) + all_elements(problem) / 1e4).epsilon(1e-5));
}

TEST_CASE("what cannot fit has no bound") {
  Problem problem = fast_problem();
  problem.machine.host.memory = problem.machine.ssd.capacity = 1000;
  problem.machine.gpu.memory = 500'000;
  CHECK(lower_bounds(problem).empty());
  CHECK_THROWS_AS(lower_bound(problem), FitError);
  CHECK_FALSE(lower_bound_of(problem, 1));
}

TEST_CASE("all micro-batches and rows have a bound, the least first") {
  Problem problem = fast_problem();
  problem.machine.gpu.flops = 1e7;
  problem.workload.batch = 6;
  const std::vector<BoundCase> all = lower_bounds(problem);
  CHECK(all.size() == 6 + 3 + 2 + 1);
  for (std::size_t k = 1; k < all.size(); ++k) CHECK(all[k].seconds >= all[k - 1].seconds);
  for (const BoundCase& one : all) {
    problem.workload.micro_batch = one.micro_batch;
    CHECK(lower_bound_of(problem, one.row)->seconds == one.seconds);
  }
  // Rows of many micro-batches are taken together: no bound is above that of one of its rows.
  problem.workload.batch = 300;
  problem.workload.micro_batch = 1;
  for (const BoundCase& one : lower_bounds(problem)) {
    if (one.micro_batch > 1) continue;
    const auto alone = lower_bound_of(problem, one.row);
    REQUIRE(alone);
    CHECK(one.seconds <= alone->seconds * (1 + 1e-6));
  }
}

// -- all plans of a coarse grid -------------------------------------------------------------------

// Every combination of a few values of the fields that matter most; with `retention` the memory
// that is left over is used.
std::vector<Plan> coarse_plans() {
  std::vector<Plan> all = {{}};
  const auto each = [&](const auto& values, const auto& set) {
    std::vector<Plan> more;
    for (const Plan& plan : all) {
      for (const auto& value : values) {
        more.push_back(plan);
        set(more.back(), value);
      }
    }
    all = std::move(more);
  };
  using Shares = std::vector<Share>;
  const Share gpu{.gpu = 1}, host{.host = 1}, ssd{.ssd = 1};
  const Share most{.host = 0.8, .ssd = 0.2}, half{.host = 0.6, .ssd = 0.4},
      few{.host = 0.4, .ssd = 0.6};
  each(std::vector<int>{1, 0}, [](Plan& plan, int row) { plan.order.row = row; });
  each(Shares{gpu, host, ssd}, [](Plan& p, const Share& at) { p.parameters.rest = at; });
  each(Shares{host, most, half, few, ssd},
       [](Plan& p, const Share& at) { p.optimizer_state.rest = at; });
  each(Shares{gpu, host, ssd}, [](Plan& p, const Share& at) { p.checkpoints.rest = at; });
  each(std::vector<SavedMask>{saved_none, 0xae, gpt_saved::all},
       [](Plan& p, SavedMask mask) { p.saved.saves = mask; });
  each(std::vector<bool>{false, true}, [](Plan& p, bool keeps) {
    if (!keeps) return;
    for_kinds(p.retention, [](const char*, Retention& one) { one = Retention::nearest(); });
  });
  for (Plan& plan : all) {
    plan.order.snake = true;
    plan.order.updates = UpdateOrder::within;
    plan.saved.recomputes_output = false;
    plan.optimizer_state.ahead = 2;
  }
  return all;
}

std::optional<double> step_seconds(const Problem& problem, Plan plan) {
  const auto build = [&] {
    OnePlan policy(plan);
    return build_schedule(problem, policy, 8);
  };
  try {
    Schedule schedule = build();
    if (!schedule.fits()) return std::nullopt;
    const auto spare = [&](Tier tier) {
      const TierUse& use = schedule.use(tier);
      return (use.capacity_bytes - use.peak_bytes) * 9 / 10;
    };
    if (plan.retention.keeps_any()) {
      plan.spare_gpu_bytes = spare(Tier::gpu);
      plan.spare_host_bytes = spare(Tier::host);
      schedule = build();
    }
    if (!schedule.fits()) return std::nullopt;
    return simulate(schedule).step_seconds;
  } catch (const InputError&) {  // a combination that is no plan
    return std::nullopt;
  }
}

TEST_CASE("the best of all plans of a coarse grid is near the bound, and none is below it") {
  // Host memory for a part or for all of the model states, GPU memory for a few layers.
  Problem problem = fast_problem();
  problem.model.layers = 24;
  problem.model.hidden = 32;
  problem.model.ffn = 128;
  problem.workload.batch = 2;
  problem.machine.gpu.memory = 500'000;
  problem.machine.gpu.flops = 1e9;
  problem.machine.gpu.adam_params_per_second = 1e8;
  problem.machine.host.adam_params_per_second = 3e6;
  problem.machine.pcie.h2d = problem.machine.pcie.d2h = 1e7;
  struct {
    double share, drive, most;
  } const settings[] = {{0.45, 3e6, 1.4}, {1.2, 3e7, 1.4}};
  for (const auto& [share, drive, most] : settings) {
    problem.machine.host.memory = static_cast<std::uint64_t>(share * 18 * all_elements(problem));
    problem.machine.ssd.read = problem.machine.ssd.write = drive;
    const auto horizontal = lower_bound_of(problem, 1), vertical = lower_bound_of(problem, 2);
    REQUIRE(vertical);
    double best = 1e300;
    int fit = 0;
    for (const Plan& plan : coarse_plans()) {
      const auto seconds = step_seconds(problem, plan);
      if (!seconds) continue;
      ++fit;
      const auto& bound = plan.order.row == 0 ? vertical : horizontal;
      REQUIRE(bound);
      CHECK(*seconds >= bound->seconds);
      best = std::min(best, *seconds);
    }
    const double least =
        horizontal ? std::min(horizontal->seconds, vertical->seconds) : vertical->seconds;
    INFO(fmt::format("{} plans fit; best {} s, bound {} s by {}", fit, best, least,
                     vertical->limit));
    CHECK(fit > 25);
    CHECK(best < most * least);
  }
}

// -- more of the machine --------------------------------------------------------------------------

TEST_CASE("more memory and faster parts never raise the bound") {
  using Change = void (*)(Machine&);
  const std::vector<Change> changes = {
      [](Machine& m) { m.gpu.memory = m.gpu.memory * 5 / 4; },
      [](Machine& m) { m.host.memory = m.host.memory * 5 / 4; },
      [](Machine& m) { m.ssd.read *= 1.3; },
      [](Machine& m) { m.ssd.write *= 1.3; },
      [](Machine& m) { m.pcie.h2d *= 1.3; },
      [](Machine& m) { m.pcie.d2h *= 1.3; },
      [](Machine& m) { m.gpu.flops *= 1.3; },
      [](Machine& m) { m.gpu.adam_params_per_second *= 1.3; },
      [](Machine& m) { m.host.adam_params_per_second *= 1.3; },
      [](Machine& m) { m.host.bandwidth *= 1.3; },
  };
  int gains = 0;
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    Dice dice(seed);
    Problem problem = test::random_problem(dice);
    const double bytes = 16 * all_elements(problem);
    problem.machine.gpu.memory = static_cast<std::uint64_t>(bytes * dice.times(3));
    problem.machine.host.memory = static_cast<std::uint64_t>(bytes * dice.times(3));
    const std::vector<BoundCase> before = lower_bounds(problem);
    if (before.empty()) continue;
    for (std::size_t k = 0; k < changes.size(); ++k) {
      Problem more = problem;
      changes[k](more.machine);
      INFO("seed " << seed << ", change " << k);
      const double after = lower_bound(more).seconds;
      CHECK(after <= before.front().seconds * (1 + 1e-6));
      gains += after < before.front().seconds * 0.999 ? 1 : 0;
    }
  }
  CHECK(gains > 60);
}

}  // namespace
}  // namespace spillway
