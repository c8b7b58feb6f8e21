#include "experiments/plan/simulated_part.hpp"

#include <array>
#include <cmath>
#include <utility>

#include "sim/steady_state.hpp"

namespace spillway {

namespace {

constexpr int step_of_miniature = 1;

double sum(const PhaseSeconds& phases) {
  return phases.forward + phases.backward + phases.optimizer;
}

}  // namespace

SimulatedPart::SimulatedPart(const Schedule& schedule)
    : schedule_(schedule),
      in_step_(step_of_miniature),
      costed_(cost_schedule(schedule)),
      times_(simulate_activities(costed_.graph, stop_after(schedule, in_step_))),
      step_(repeated_step(schedule, times_)) {}

SimulatedPart::SimulatedPart(const Schedule& schedule, const Repetition& repetition,
                             CostedSchedule costed)
    : schedule_(schedule),
      in_step_(repetition.step),
      costed_(std::move(costed)),
      times_(simulate_activities(costed_.graph, repetition.stop)),
      step_(repeated_step(schedule, times_, repetition)) {}

bool SimulatedPart::grows(int period) {
  period_ = period;
  if (repeats() && layers_are_alike()) growth_ = growth_by_layers(schedule_, times_, period);
  return growth_.has_value();
}

double SimulatedPart::step_seconds(std::int64_t layers, const SimulatedPart& other) const {
  return sum(*step_) +
         sum(*other.growth_) / other.period_ * static_cast<double>(layers - this->layers());
}

// A layer of a period in the middle, or of the next one.
bool SimulatedPart::is_middle(const Task& task, int nth) const {
  const std::int64_t first = layers() / 2 - period_ + std::int64_t{period_} * nth;
  return task.layer >= first && task.layer < first + period_;
}

// As far as tasks say: a barrier is of no layer, so there should be none.
bool SimulatedPart::layers_are_alike() const {
  std::array<std::uint64_t, 2> tasks{}, bytes{};
  for (const Task& task : schedule_.tasks()) {
    if (task.layer < 0) return false;
    for (const int nth : {0, 1}) {
      if (!is_middle(task, nth)) continue;
      ++tasks[static_cast<std::size_t>(nth)];
      bytes[static_cast<std::size_t>(nth)] += task.bytes;
    }
  }
  return tasks[0] == tasks[1] && bytes[0] == bytes[1];
}

std::uint64_t SimulatedPart::tasks_of(const Problem& problem, int steps) const {
  double all = 0, more = 0;
  for (const Task& task : schedule_.tasks()) {
    const double times = is_in_step(task) ? steps - 2 : 1;
    all += times;
    if (is_middle(task)) more += times;
  }
  return static_cast<std::uint64_t>(std::llround(all + more * periods_to(problem.model.layers)));
}

SimulationResult SimulatedPart::result_of(const Problem& problem) const {
  const double periods = periods_to(problem.model.layers);
  const PhaseSeconds more = growth_.value_or(PhaseSeconds{});
  SimulationResult result;
  result.extrapolates = costed_.extrapolates;
  result.phases = {step_->forward + more.forward * periods,
                   step_->backward + more.backward * periods,
                   step_->optimizer + more.optimizer * periods};
  result.step_seconds = sum(result.phases);
  set_work(periods, result);
  find_bound(result);
  set_rates(problem, result);
  return result;
}

void SimulatedPart::set_work(double periods, SimulationResult& result) const {
  const auto whole = [&](double of_part, double of_period) {
    return of_part + of_period * periods;
  };
  const TaskWork all =
      work_of(schedule_, costed_.graph, [&](const Task& task) { return is_in_step(task); });
  const TaskWork more = work_of(schedule_, costed_.graph, [&](const Task& task) {
    return is_in_step(task) && is_middle(task);
  });
  for (std::size_t lane = 0; lane < result.lanes.size(); ++lane) {
    LaneUse& use = result.lanes[lane];
    use.bytes = whole(all.lanes[lane].bytes, more.lanes[lane].bytes);
    use.demand_seconds = whole(all.lanes[lane].demand_seconds, more.lanes[lane].demand_seconds);
  }
  for (std::size_t r = 0; r < all.resources.size(); ++r)
    result.resources.push_back({all.resources[r].name, whole(all.resources[r].demand_seconds,
                                                             more.resources[r].demand_seconds)});
  const std::span<const Task> tasks = schedule_.tasks();
  for (TaskId t = 0; t < times_.size(); ++t) {
    if (!is_in_step(tasks[t])) continue;
    const double busy = static_cast<double>(times_[t].end_ns - times_[t].start_ns) * 1e-9;
    result.lanes[static_cast<std::size_t>(tasks[t].lane)].busy_fraction +=
        whole(busy, is_middle(tasks[t]) ? busy : 0) / result.step_seconds;
  }
  const Problem& problem = schedule_.problem();
  result.ssd_bytes_written_per_step = 0;
  for (int set = 0; set < most_drive_sets; ++set)
    result.ssd_bytes_written_per_step +=
        result.lanes[static_cast<std::size_t>(write_lane(set))].bytes *
        static_cast<double>(problem.machine.cluster.sharing);
  result.hardware_tflops = whole(all.flops, more.flops) *
                           static_cast<double>(problem.workload.ranks) / result.step_seconds *
                           1e-12;
}

}  // namespace spillway
