#include "policies/common/settler.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/errors.hpp"
#include "base/units.hpp"
#include "policies/common/spare_memory.hpp"
#include "policies/cost/least_time.hpp"
#include "policies/framework/framework.hpp"

namespace spillway {

namespace {

// A schedule lists every task of every micro-batch: longer ones are refused before they are built.
// Building and simulating takes 240 to 320 bytes a task at its peak, and as much as 700 where
// retention=nearest has two whole programs at a time: 5 to 14 GB for the longest
// (policies/README.md).
constexpr double most_tasks_built = 20e6;

// The least divisor of `whole` that is at least `least`.
std::int64_t divisor_from(std::int64_t whole, std::int64_t least) {
  while (whole % least != 0) ++least;
  return least;
}

void require_length(const Problem& problem, int steps, double tasks) {
  if (steps < 1)
    throw InputError(fmt::format("a schedule of {} steps", steps), "it takes one step at least");
  if (tasks <= most_tasks_built) return;
  constexpr double bytes_per_task = 320;
  const Workload& workload = problem.workload;
  const double per_micro_batch = tasks / static_cast<double>(workload.micro_batches());
  const auto fewer = static_cast<std::int64_t>(most_tasks_built / per_micro_batch);
  throw InputError(
      fmt::format("{} micro-batches of {} through {} layers in {} steps make too long a schedule: "
                  "some {:.0f} million tasks, more than the {:.0f} million that are built; it and "
                  "its simulation would take about {} of memory",
                  workload.micro_batches(), workload.micro_batch, problem.model.layers, steps,
                  std::ceil(tasks / 1e6), most_tasks_built / 1e6,
                  format_bytes(tasks * bytes_per_task)),
      fewer < 1 ? Message("fewer steps at a time, or fewer layers")
                : Message("a larger ") + Setting{"micro_batch"} +
                      fmt::format(": {} or more",
                                  divisor_from(workload.rank_batch(),
                                               (workload.rank_batch() + fewer - 1) / fewer)));
}

// A visit is one unit on one micro-batch; most policies make about 12 tasks of it.
double tasks_at_first_sight(const Problem& problem, int steps) {
  return 12.0 * static_cast<double>(problem.model.layers + 2) * steps *
         static_cast<double>(problem.workload.micro_batches());
}

// The tasks of the policy's schedule, from those of a few layers and micro-batches: they grow with
// both, and with the product. Frozen layers have fewer than others.
double expected_tasks(const Problem& problem, const ParsedPolicy& parsed, int steps) {
  const std::int64_t micro_batches = problem.workload.micro_batches();
  const std::int64_t few = micro_batches > 1 ? 2 : 1;  // one alone may have narrower gradients
  const std::int64_t frozen = problem.model.frozen_layers, some_frozen = frozen > 0 ? 1 : 0;
  const auto tasks = [&](std::int64_t trained_layers, std::int64_t frozen_layers,
                         std::int64_t parts) {
    Problem small = problem;
    small.model.layers = trained_layers + frozen_layers;
    small.model.frozen_layers = frozen_layers;
    small.workload.batch = parts * problem.workload.micro_batch * problem.workload.ranks;
    return static_cast<double>(
        emit(small, parsed, {.steps = 1, .recording = Recording::lifetimes}).task_count());
  };
  const auto with_layers = [&](std::int64_t parts) {
    const double two = tasks(2, some_frozen, parts);
    const double of_trained = (tasks(4, some_frozen, parts) - two) / 2;
    const double of_frozen = frozen > 1 ? (tasks(2, 3, parts) - two) / 2 : 0;
    return two + of_trained * static_cast<double>(problem.model.layers - frozen - 2) +
           of_frozen * static_cast<double>(frozen - some_frozen);
  };
  const double least = with_layers(few);
  if (micro_batches <= few) return steps * least;
  const double more = with_layers(few + 1) - least;
  return steps * (least + more * static_cast<double>(micro_batches - few));
}

bool fits(const Machine& machine, const TierBytes& bytes, Tier tier) {
  const auto at = static_cast<std::size_t>(tier);
  return bytes[at] <= capacities(machine)[at];
}

// What is kept may hold up what is not: `keeps` only where its least time is shorter than that of
// `plain`, by more than tasks that share a memory or a drive mostly slow each other. A heuristic:
// bounds are compared, not times.
Schedule sooner(Schedule plain, Schedule keeps) {
  constexpr double at_most = 0.9998;
  if (!plain.fits()) return keeps;
  try {
    return least_seconds(keeps) < at_most * least_seconds(plain) ? std::move(keeps)
                                                                 : std::move(plain);
  } catch (const InputError&) {  // the machine file has no rates
    return keeps;
  }
}

}  // namespace

Schedule Settler::build() {
  // Ordinary schedules are far from too long.
  if (problem_.model.layers > 4 && tasks_at_first_sight(problem_, steps_) > most_tasks_built / 20) {
    require_length(problem_, steps_,
                   std::min(expected_tasks(problem_, with(0), steps_),
                            expected_tasks(problem_, with(last_), steps_)));
    is_long_ = true;  // what is built whole is looked at by itself
  }
  const std::size_t chosen = choose();
  Program program = std::move(*program_);
  std::optional<Program> more;
  if (keeps_any(chosen))
    more = use_spare_memory(program, problem_.machine,
                            [&](const TierBytes& spare) { return full(chosen, spare); });
  const std::string policy = policy_text(parsed_.info, with(chosen).options);
  const std::uint64_t trials = tasks_tried_ - program.task_count();
  Schedule plain = std::move(program).finish(policy, steps_, trials);
  if (!more) return plain;
  const std::uint64_t more_trials = tasks_tried_ - more->task_count();
  return sooner(std::move(plain), std::move(*more).finish(policy, steps_, more_trials));
}

void Settler::require_length_of(std::size_t k) const {
  require_length(problem_, steps_, expected_tasks(problem_, with(k), steps_));
}

std::optional<Settler::Grounds> Settler::grounds() const {
  Grounds grounds{alternatives_, {}, problem_.machine.ssd.capacity, most_on_ssd_};
  if (problem_.framework != own_framework) return std::nullopt;
  // How much rests on which set follows from rates.
  if (problem_.machine.drive_sets() > 1) return std::nullopt;
  for (const std::size_t k : tried_) {
    if (keeps_any(k)) return std::nullopt;
    grounds.plans[k] = to_text(plan(k));
  }
  return grounds;
}

bool Settler::is_on(const Grounds& grounds) const {
  const std::uint64_t capacity = problem_.machine.ssd.capacity;
  return (capacity == grounds.ssd_capacity ||
          grounds.most_on_ssd <= std::min(capacity, grounds.ssd_capacity)) &&
         alternatives_ == grounds.placements &&
         std::all_of(grounds.plans.begin(), grounds.plans.end(),
                     [&](const auto& one) { return to_text(plan(one.first)) == one.second; });
}

bool Settler::fit(const TierBytes& bytes, Tiers tiers) {
  return std::all_of(tiers.begin(), tiers.end(),
                     [&](Tier tier) { return fits(problem_.machine, bytes, tier); });
}

void require_buildable(const Problem& problem, int steps) {
  problem.validate();
  require_length(problem, steps, tasks_at_first_sight(problem, steps));
}

namespace {

// All stages do as one of them, so that all of them know what each does: as the first that settles
// what is left open in a way in which every stage fits; where there is none as the first of all.
Schedule build_stage(const Problem& problem, const ParsedPolicy& parsed, int steps) {
  const std::unique_ptr<Policy> policy = policy_of(parsed);
  const auto stages = static_cast<int>(problem.workload.pipeline);
  const auto stage_problem = [&](int stage) {
    Problem of = problem;
    of.rank = stage;
    return of.of_stage(policy->chunks());
  };
  const auto build = [&](int stage, const ParsedPolicy& with) {
    const Problem of = stage_problem(stage);
    return Settler(of, with, steps).build();
  };
  Schedule own = build(problem.rank, parsed);
  if (policy->placements(own.problem()).size() == 1) return own;
  std::vector<std::string> texts;
  for (int stage = 0; stage < stages; ++stage)
    texts.push_back(stage == problem.rank ? own.policy() : build(stage, parsed).policy());
  const bool alike = std::all_of(texts.begin(), texts.end(),
                                 [&](const std::string& text) { return text == texts.front(); });
  if (alike) return own;
  for (const std::string& text : texts) {
    const ParsedPolicy with = parse_policy(text);
    bool all_fit = true;
    for (int stage = 0; all_fit && stage < stages; ++stage) all_fit = build(stage, with).fits();
    if (all_fit) return build(problem.rank, with);
  }
  return build(problem.rank, parse_policy(texts.front()));
}

}  // namespace

// All ranks do as the first, whose shards are the largest: what is left open, and what is kept in
// memory that is left over, is settled for it.
Schedule build_schedule(const Problem& problem, const std::string& policy, int steps) {
  require_buildable(problem, steps);
  const ParsedPolicy parsed = parse_policy(policy);
  if (problem.workload.pipeline > 1) return build_stage(problem, parsed, steps);
  if (problem.rank > 0) {
    Problem of_first = problem;
    of_first.rank = 0;
    const Schedule first = build_schedule(of_first, policy, steps);
    return emit(problem, parse_policy(first.policy()), {.steps = steps, .spare = first.spare()})
        .finish(first.policy(), steps);
  }
  return Settler(problem, parsed, steps).build();
}

Schedule build_schedule(const Problem& problem, Policy& policy, int steps) {
  require_buildable(problem, steps);
  return emit(problem, policy, {.steps = steps}).finish(policy.info().name, steps);
}

}  // namespace spillway
