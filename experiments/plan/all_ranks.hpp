// Whether one rank stands for all: all ranks of a problem built and simulated together
// (sim/ranks.hpp), beside the first simulated by itself.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "policies/schedule/schedule.hpp"
#include "sim/simulate.hpp"

namespace spillway {

struct AllRanks {
  std::vector<double> step_seconds;  // by rank
  // The furthest that the end of a task of any rank is from that of the first by itself; nothing is
  // compared where a rank has other tasks, whose shard is a cell smaller.
  std::int64_t furthest_ns = 0;
  bool same_tasks = true;

  // Up to how sums of nanoseconds are rounded.
  bool are_as_one() const { return same_tasks && furthest_ns <= 1; }
};

// `first`: the schedule of rank 0, and `alone` what it takes by itself. Throws InputError where
// there is one rank, and where so many ranks are too many tasks.
AllRanks simulate_all_ranks(const Schedule& first, const SimulationResult& alone);

// The schedules of all stages of a pipeline, the first of which is `first`; where it is of no
// pipeline, this one alone.
std::vector<Schedule> stages_of(const Schedule& first);

// Throws InputError where the problem is of a pipeline's stages, for questions that are asked of
// one schedule alone.
void require_no_stages(const Problem& problem);

// The schedule of the first stage that does not fit, or of the first one where all do; of no
// pipeline the only schedule.
Schedule stage_that_lacks(const Problem& problem, const std::string& policy, int steps);

// As simulate() has one schedule, on a machine with these rates, where it runs with those of the
// other stages: what is said of a rank is said of the first stage, but the step is that of the
// slowest, and what is computed and written to drives is that of all. `by_stage`: of each by
// itself.
SimulationResult simulate_stages(std::span<const Schedule> stages, const Machine& machine,
                                 std::vector<SimulationResult>* by_stage = nullptr);

}  // namespace spillway
