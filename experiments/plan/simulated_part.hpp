// A part of a schedule, simulated, and what it tells of the whole: a few of its steps, or all three
// of a schedule of fewer layers (a miniature).
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "experiments/plan/recurrence.hpp"
#include "sim/costed_schedule.hpp"
#include "sim/simulate.hpp"

namespace spillway {

class SimulatedPart {
 public:
  // A miniature, of three steps.
  explicit SimulatedPart(const Schedule& schedule);
  // The steps up to the one of `repetition`, and as much of the next as it takes to know that it
  // repeats; `costed`: its first tasks, cost_first_tasks(schedule, repetition.tasks).
  SimulatedPart(const Schedule& schedule, const Repetition& repetition, CostedSchedule costed);

  const Schedule& schedule() const { return schedule_; }
  std::int64_t layers() const { return schedule_.problem().model.layers; }
  // Whether its step is the time of all later ones.
  bool repeats() const { return step_.has_value(); }
  // Of a miniature: whether its layers repeat, so that it tells how long more of them take.
  bool grows(int period);

  // What follows is of a schedule of more layers, by as many as `problem` has more. Of one that
  // repeats; and, where there are more layers, that grows.
  // Step time, by the growth of `other`.
  double step_seconds(std::int64_t layers, const SimulatedPart& other) const;
  // Of a whole schedule of so many steps.
  std::uint64_t tasks_of(const Problem& problem, int steps) const;
  // All of a steady step, without the times of tasks.
  SimulationResult result_of(const Problem& problem) const;

 private:
  bool is_in_step(const Task& task) const {
    return task.step == in_step_ && task.phase != Phase::epilogue;
  }
  bool is_middle(const Task& task, int nth = 0) const;
  bool layers_are_alike() const;
  void set_work(double periods, SimulationResult& result) const;
  double periods_to(std::int64_t layers) const {
    return period_ == 0 ? 0 : static_cast<double>(layers - this->layers()) / period_;
  }

  Schedule schedule_;
  int in_step_;  // the step that stands for all
  CostedSchedule costed_;
  std::vector<ActivityTimes> times_;  // of its first tasks
  std::optional<PhaseSeconds> step_;
  int period_ = 0;
  std::optional<PhaseSeconds> growth_;  // with so many more layers
};

}  // namespace spillway
