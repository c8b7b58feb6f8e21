// Schedules from random plans: a small problem on a machine with random rates and memory, a policy
// with random options (or the policy of tests/policies that makes any legal choice), a few steps.
// What is built must be a schedule, must end when it is simulated, and must be built again from its
// trace.
#include "policies/schedule/schedule.hpp"

#include <array>
#include <cmath>
#include <map>
#include <optional>
#include <vector>

#include "policies/common/policy.hpp"
#include "policies/common/run_record.hpp"
#include "sim/simulate.hpp"
#include "sim/to_trace.hpp"
#include "tests/fuzz/fuzz.hpp"
#include "tests/policies/dataflow.hpp"
#include "tests/policies/races.hpp"
#include "tests/policies/random_policy.hpp"

using namespace spillway;
using fuzz::Choices;

namespace {

constexpr Tier tiers[] = {Tier::gpu, Tier::host, Tier::ssd};

struct PolicyChoices {
  std::string name;
  std::map<std::string, std::vector<std::string>> options;
};

std::vector<PolicyChoices> find_policy_choices() {
  std::vector<PolicyChoices> all;
  for (const PolicyInfo& info : builtin_policies()) {
    PolicyChoices& policy = all.emplace_back(PolicyChoices{info.name, {}});
    for (const PolicyOption& option : info.options)
      policy.options[option.name] = option.domain.samples(12);
  }
  return all;
}

std::string policy_text(const PolicyChoices& policy, Choices& choices) {
  std::string text = policy.name, separator = ":";
  for (const auto& [option, taken] : policy.options) {
    const std::uint64_t value = choices.below(2 * taken.size());  // as often as not its default
    if (value >= taken.size()) continue;
    text += separator + option + "=" + taken[value];
    separator = ",";
  }
  return text;
}

// Between 2^low and 2^high.
double power_of_two(Choices& choices, int low, int high) {
  return std::exp2(low + static_cast<int>(choices.below(static_cast<std::uint64_t>(high - low))));
}

// Of at most 2^20 parameters or so.
ModelSpec model_of(Choices& choices) {
  ModelSpec model;
  model.name = "fuzz";
  model.layers = static_cast<std::int64_t>(1 + choices.below(4));
  model.heads = std::int64_t{1} << choices.below(3);
  model.hidden = model.heads * 8 * static_cast<std::int64_t>(1 + choices.below(4));
  model.kv_heads = model.heads;
  model.ffn = 4 * model.hidden;
  model.vocabulary = static_cast<std::int64_t>(1 + choices.below(300));
  model.positions = static_cast<std::int64_t>(1 + choices.below(64));
  if (choices.one_in(4)) {
    model.architecture = Architecture::llama;
    model.ffn = static_cast<std::int64_t>(1 + choices.below(256));
    if (choices.one_in(2)) model.kv_heads = 1;
    model.tied = choices.one_in(2);
    model.qk_norm = choices.one_in(4);
  }
  return model;
}

std::uint64_t memory_of(Choices& choices) {
  if (choices.one_in(2)) return std::uint64_t{1} << 40;
  return choices.below(std::uint64_t{1} << 24);
}

Machine machine_of(Choices& choices) {
  Machine machine;
  machine.name = "fuzz";
  machine.gpu.memory = memory_of(choices);
  machine.host.memory = memory_of(choices);
  machine.ssd.capacity = memory_of(choices);
  machine.gpu.is_cpu = choices.one_in(4);
  machine.gpu.flops = power_of_two(choices, 20, 60);
  if (choices.one_in(2)) machine.gpu.memory_bandwidth = power_of_two(choices, 10, 45);
  machine.gpu.adam_params_per_second = power_of_two(choices, 10, 45);
  machine.pcie.h2d = power_of_two(choices, 10, 45);
  machine.pcie.d2h = power_of_two(choices, 10, 45);
  if (choices.one_in(2)) machine.pcie.total = power_of_two(choices, 10, 45);
  if (choices.one_in(2)) machine.pcie.pageable_h2d = power_of_two(choices, 10, 45);
  if (choices.one_in(2)) machine.pcie.pageable_d2h = power_of_two(choices, 10, 45);
  machine.host.bandwidth = power_of_two(choices, 10, 45);
  machine.host.cores = static_cast<double>(1 + choices.below(128));
  machine.host.adam_params_per_second = power_of_two(choices, 10, 45);
  if (choices.one_in(2)) machine.host.adam_cores = 1;
  machine.ssd.count = static_cast<std::int64_t>(choices.below(13));
  if (machine.ssd.count == 0) machine.ssd.capacity = 0;
  machine.ssd.law = static_cast<SsdLaw>(choices.below(4));
  machine.ssd.mixed_gain = 1 + static_cast<double>(choices.below(11)) / 10;
  if (machine.ssd.count > 0) {
    machine.ssd.read = power_of_two(choices, 10, 45);
    machine.ssd.write = power_of_two(choices, 10, 45);
    if (choices.one_in(2)) machine.ssd.total = power_of_two(choices, 10, 45);
    if (choices.one_in(2)) machine.ssd.cores = 0.5;
  }
  for (std::int64_t* latency :
       {&machine.gpu.launch_ns, &machine.pcie.latency_ns, &machine.host.sync_ns,
        &machine.host.wake_ns, &machine.ssd.read_latency_ns, &machine.ssd.write_latency_ns}) {
    if (choices.one_in(2)) *latency = static_cast<std::int64_t>(choices.below(1'000'000'000));
  }
  return machine;
}

Workload workload_of(const ModelSpec& model, Choices& choices) {
  Workload workload;
  workload.sequences_at_once = static_cast<std::int64_t>(1 + choices.below(2));
  workload.micro_batch =
      workload.sequences_at_once * static_cast<std::int64_t>(1 + choices.below(3));
  workload.batch = workload.micro_batch * static_cast<std::int64_t>(1 + choices.below(5));
  workload.sequence =
      static_cast<std::int64_t>(1 + choices.below(static_cast<std::uint64_t>(model.positions)));
  workload.precision = choices.one_in(2) ? Precision::fp32 : Precision::bf16;
  workload.gradient = static_cast<GradientWidth>(choices.below(3));
  workload.moments = choices.one_in(2) ? MomentWidth::bf16 : MomentWidth::fp32;
  if (choices.one_in(3)) {
    workload.clip = {choices.one_in(2) ? ClipScope::global : ClipScope::layer, 1};
  }
  if (choices.one_in(4)) workload.on_nonfinite = OnNonFinite::skip;
  return workload;
}

void check_schedule(const Schedule& schedule, bool runs_forward_again) {
  for (TaskId task = 0; task < schedule.tasks().size(); ++task) {
    for (const TaskId next : schedule.successors(task)) {
      fuzz::require(next > task, "every edge points forward");
    }
  }
  for (const std::string& error :
       {test::find_race(schedule), test::find_overlap(schedule), test::find_home_error(schedule),
        test::find_dataflow_error(schedule, runs_forward_again)}) {
    fuzz::require(error.empty(), error);
  }
  bool within = true;
  for (const Tier tier : tiers) {
    const TierUse& use = schedule.use(tier);
    fuzz::require(use.peak_bytes >= use.live_peak_bytes, "an arena holds what is live");
    within = within && use.peak_bytes <= use.capacity_bytes;
  }
  fuzz::require(schedule.fits() == within, "it fits where every peak is within the capacity");
  fuzz::require(fuzz::accepted([&] { schedule.require_fit(); }) == schedule.fits(),
                "what does not fit is refused with a FitError, and what fits is not");
}

// Nothing where the machine lacks a rate.
void check_simulation(const Schedule& schedule, bool is_built_in) {
  SimulationResult result;
  if (!fuzz::accepted([&] { result = simulate(schedule); })) return;
  const auto tasks = schedule.tasks();
  fuzz::require(result.tasks.size() == tasks.size(), "every task is simulated");
  std::array<std::int64_t, lane_count> lane_ends{};
  for (TaskId task = 0; task < tasks.size(); ++task) {
    const SimulatedTask& times = result.tasks[task];
    std::int64_t& lane_end = lane_ends[static_cast<std::size_t>(tasks[task].lane)];
    fuzz::require(times.start_ns >= lane_end, "a lane runs one task after the other");
    fuzz::require(times.end_ns >= times.start_ns, "a task ends after it starts");
    lane_end = times.end_ns;
    for (const TaskId next : schedule.successors(task)) {
      fuzz::require(result.tasks[next].start_ns >= times.end_ns, "a task waits for those before");
    }
  }
  fuzz::require(std::isfinite(result.step_seconds) && result.step_seconds >= 0,
                "a step takes finite time");
  fuzz::require(result.efficiency <= 1 + 1e-9, "no schedule is faster than its bound");
  const std::string machine = machine_to_toml(schedule.problem().machine);
  if (!is_built_in || !fuzz::accepted([&] { parse_machine(machine, "machine.toml"); })) return;
  Trace trace = to_trace(schedule, result);
  trace.metadata = make_trace(schedule, "simulator").metadata;
  std::uint64_t rebuilt = 0;
  fuzz::require(
      fuzz::accepted([&] { rebuilt = rebuild_schedule(trace, "trace.json").fingerprint(); }),
      "a schedule is built again from its trace");
  fuzz::require(rebuilt == schedule.fingerprint(), "the schedule of a trace is the recorded one");
}

}  // namespace

SPILLWAY_FUZZ_TARGET(schedule) {
  Choices choices(input);
  static const std::vector<PolicyChoices> policies = find_policy_choices();
  const std::uint64_t which = choices.below(policies.size() + 1);
  const bool is_built_in = which < policies.size();
  const int steps = static_cast<int>(1 + choices.below(3));
  Problem problem;
  problem.model = model_of(choices);
  problem.workload = workload_of(problem.model, choices);
  const std::string text = is_built_in ? policy_text(policies[which], choices) : "";
  const test::RandomPolicyOptions any = {choices.below(std::uint64_t{1} << 32), choices.one_in(2)};
  problem.machine = machine_of(choices);

  const auto build = [&] {
    if (is_built_in) return build_schedule(problem, text, steps);
    return build_schedule(problem, *test::make_random_policy(any), steps);
  };
  std::optional<Schedule> schedule;
  if (!fuzz::accepted([&] { schedule = build(); })) return;
  check_schedule(*schedule, !is_built_in);
  check_simulation(*schedule, is_built_in);
  fuzz::require(build().fingerprint() == schedule->fingerprint(),
                "the same problem and policy give the same schedule");
}
