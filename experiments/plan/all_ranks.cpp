#include "experiments/plan/all_ranks.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>

#include "base/errors.hpp"
#include "policies/common/policy.hpp"
#include "sim/ranks.hpp"

namespace spillway {

namespace {

// With their edges some 10 GB.
constexpr double most_tasks = 20e6;

void require_several(const Schedule& first) {
  const Problem& problem = first.problem();
  if (problem.workload.ranks == 1) {
    throw InputError(Setting{"all_ranks"} + Message(": " + problem.machine.name + " has one rank"),
                     "name a machine of several GPUs, or give it some, e.g. " +
                         Setting{"set", "cluster.gpus=4"});
  }
  const double tasks =
      static_cast<double>(first.tasks().size()) * static_cast<double>(problem.workload.ranks);
  if (tasks > most_tasks) {
    throw InputError(
        Setting{"all_ranks"} +
            Message(fmt::format(": {} ranks of {} tasks each are more than the {:.0f} million "
                                "that are simulated together",
                                problem.workload.ranks, first.tasks().size(), most_tasks / 1e6)),
        "take fewer ranks or steps: one rank by itself is exact for any number of them");
  }
}

}  // namespace

std::vector<Schedule> stages_of(const Schedule& first) {
  std::vector<Schedule> schedules = {first};
  Problem problem = first.problem();
  SPILLWAY_ASSERT(problem.workload.pipeline == 1 || problem.rank == 0);
  for (problem.rank = 1; problem.rank < static_cast<int>(problem.workload.pipeline); ++problem.rank)
    schedules.push_back(build_schedule(problem, first.policy(), first.steps()));
  return schedules;
}

void require_no_stages(const Problem& problem) {
  if (problem.workload.pipeline == 1) return;
  throw InputError(Setting{"pipeline", std::to_string(problem.workload.pipeline)} +
                       ": this question is not asked of a pipeline's stages",
                   "leave it out; one policy in stages can be simulated, compared and trained");
}

Schedule stage_that_lacks(const Problem& problem, const std::string& policy, int steps) {
  Schedule first = build_schedule(problem, policy, steps);
  if (!first.fits()) return first;
  Problem other = problem;
  for (other.rank = 1; other.rank < static_cast<int>(problem.workload.pipeline); ++other.rank) {
    Schedule schedule = build_schedule(other, first.policy(), steps);
    if (!schedule.fits()) return schedule;
  }
  return first;
}

SimulationResult simulate_stages(std::span<const Schedule> stages, const Machine& machine,
                                 std::vector<SimulationResult>* by_stage) {
  if (stages.size() == 1) return simulate(stages.front(), machine);
  std::vector<SimulationResult> results = simulate_ranks(stages, &machine);
  SimulationResult all = results.front();
  all.model_tflops = all.hardware_tflops = all.ssd_bytes_written_per_step = 0;
  // Of the drives of a node: each stage's result takes those beside it to be as itself.
  const Problem& problem = stages.front().problem();
  const auto of_node = static_cast<std::size_t>(problem.gpus_of_node());
  double of_this_node = 0;
  for (std::size_t stage = 0; stage < results.size(); ++stage) {
    const SimulationResult& one = results[stage];
    if (stage % of_node == 0) of_this_node = 0;
    of_this_node +=
        one.ssd_bytes_written_per_step / static_cast<double>(problem.machine.cluster.sharing);
    all.ssd_bytes_written_per_step = std::max(all.ssd_bytes_written_per_step, of_this_node);
    if (one.step_seconds > all.step_seconds) {
      all.step_seconds = one.step_seconds;
      all.tokens_per_second = one.tokens_per_second;
    }
    if (one.bound_seconds > all.bound_seconds) {
      all.bound_seconds = one.bound_seconds;
      all.bound_by = one.bound_by;
    }
    all.model_tflops += one.model_tflops;
    all.hardware_tflops += one.hardware_tflops;
  }
  all.efficiency = all.bound_seconds / all.step_seconds;
  if (by_stage) *by_stage = std::move(results);
  return all;
}

AllRanks simulate_all_ranks(const Schedule& first, const SimulationResult& alone) {
  require_several(first);
  std::vector<Schedule> schedules = {first};
  Problem problem = first.problem();
  for (problem.rank = 1; problem.rank < problem.ranks().size(); ++problem.rank)
    schedules.push_back(build_schedule(problem, first.policy(), first.steps()));
  AllRanks all;
  for (const SimulationResult& rank : simulate_ranks(schedules)) {
    all.step_seconds.push_back(rank.step_seconds);
    if (rank.tasks.size() != alone.tasks.size()) {
      all.same_tasks = false;
      continue;
    }
    for (std::size_t task = 0; task < rank.tasks.size(); ++task)
      all.furthest_ns = std::max<std::int64_t>(
          all.furthest_ns, std::abs(rank.tasks[task].end_ns - alone.tasks[task].end_ns));
  }
  return all;
}

}  // namespace spillway
