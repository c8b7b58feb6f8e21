// What running a schedule needs: counters, times, results. Allocated once per schedule, so that
// running it again and again allocates nothing.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <vector>

#include "exec/executor.hpp"
#include "exec/store_layout.hpp"
#include "policies/schedule.hpp"

namespace spillway {

constexpr std::size_t index_of(Lane lane) { return static_cast<std::size_t>(lane); }
constexpr std::size_t index_of(Tier tier) { return static_cast<std::size_t>(tier); }

struct Executor::Run {
  // `parts` may be empty: then no task is known to touch state at rest.
  Run(const Schedule& schedule, std::span<const StatePart> parts);

  // Ready to be run from global step `first` on.
  void reset(std::int64_t first);

  // Steps whose result a task contributes to: the one it belongs to, and the one whose gradient it
  // applies.
  struct Steps {
    int values[2];
    int count;
    const int* begin() const { return values; }
    const int* end() const { return values + count; }
  };
  Steps steps_of(const Task& task) const;

  // The result of step `step` of the schedule, once all its tasks are done.
  StepResult result(int step, std::int64_t began_ns) const;

  const Schedule& schedule;
  std::int64_t first_step = 0;
  std::array<std::vector<TaskId>, lane_count> by_lane;
  std::vector<StateAccess> state;                       // per task; empty without parts
  std::vector<std::atomic<std::uint32_t>> waiting_for;  // predecessors not done yet, per task
  std::vector<std::int64_t> start_ns, end_ns;           // 0: not run
  std::vector<double> losses;                           // (steps, batch)
  std::vector<double> gradient_square_sums;             // per task
  std::vector<std::atomic<std::uint32_t>> open_tasks;   // per step
  std::vector<std::atomic<std::int64_t>> last_end_ns;   // per step: end of its last own task
  std::vector<std::int32_t> tokens, targets;            // of the micro-batch gpu.compute works on
  std::int64_t tokens_step = -1, tokens_micro_batch = -1;
  std::array<std::array<std::uint64_t, tier_count>, lane_count> highest{};
  std::atomic<std::uint32_t> lanes_left{lane_count};

 private:
  std::vector<std::uint32_t> tasks_of_step_;               // open_tasks at the start
  std::vector<std::vector<TaskId>> gradients_of_step_;     // see gradient_tasks
  std::vector<std::uint64_t> bytes_read_, bytes_written_;  // ssd, per step
};

}  // namespace spillway
