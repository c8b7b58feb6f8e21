#include "experiments/why/plan_profile.hpp"

#include <algorithm>
#include <utility>

#include "base/errors.hpp"
#include "sim/live_bytes.hpp"

namespace spillway {

namespace {

std::vector<TierAmounts> most_live(const Schedule& schedule, const SimulationResult& result,
                                   const SteadyWindow& window) {
  const auto series_of = [](const BufferInfo& buffer) {
    return static_cast<std::uint16_t>(static_cast<int>(buffer.kind) * tier_count +
                                      static_cast<int>(buffer.tier));
  };
  std::vector<TierAmounts> most(buffer_kind_count);
  std::vector<TierAmounts> before(buffer_kind_count);  // when the window begins
  for (const LiveSample& sample :
       live_bytes(schedule, result.tasks, buffer_kind_count * tier_count, series_of)) {
    if (sample.time_ns >= window.end_ns) break;
    const auto kind = static_cast<std::size_t>(sample.series / tier_count);
    const auto tier = static_cast<std::size_t>(sample.series % tier_count);
    if (sample.time_ns <= window.begin_ns) {
      before[kind][tier] = sample.bytes;
    } else {
      most[kind][tier] = std::max(most[kind][tier], sample.bytes);
    }
  }
  for (std::size_t kind = 0; kind < most.size(); ++kind) {
    for (std::size_t tier = 0; tier < tier_count; ++tier)
      most[kind][tier] = std::max(most[kind][tier], before[kind][tier]);
  }
  return most;
}

std::vector<KindPlaces> places_of(const Schedule& schedule, const SimulationResult& result,
                                  const SteadyWindow& window) {
  const std::vector<TierAmounts> most = most_live(schedule, result, window);
  std::vector<KindPlaces> places;
  for (int k = 0; k < buffer_kind_count; ++k) {
    KindPlaces one{static_cast<BufferKind>(k), {}, most[static_cast<std::size_t>(k)]};
    for (const HomePart& part : schedule.homes()) {
      if (part.kind != one.kind) continue;
      const BufferInfo& buffer = schedule.buffers()[part.where.buffer.id];
      if (!one.home) one.home = TierAmounts{};
      (*one.home)[static_cast<std::size_t>(buffer.tier)] += part.where.bytes;
    }
    const bool is_there = one.home || one.most != TierAmounts{};
    if (is_there) places.push_back(one);
  }
  return places;
}

std::vector<ClassWork> work_by_class(const Schedule& schedule, const SimulationResult& result,
                                     const SteadyWindow& window) {
  const double per_step = 1.0 / window.steps;
  std::vector<ClassWork> sums(task_class_count);
  const std::span<const Task> tasks = schedule.tasks();
  for (std::size_t t = 0; t < tasks.size(); ++t) {
    if (!window.counts(tasks[t])) continue;
    const TaskClass of = class_of(schedule, tasks[t]);
    ClassWork& sum = sums[index_of(of)];
    const SimulatedTask& times = result.tasks[t];
    sum.seconds += static_cast<double>(times.end_ns - times.start_ns) * 1e-9 * per_step;
    const bool moves = of.lane != Lane::gpu_compute && of.lane != Lane::cpu_optimizer;
    if (moves) sum.bytes += static_cast<double>(tasks[t].bytes) * per_step;
  }
  std::vector<ClassWork> work;
  for (std::size_t index = 0; index < sums.size(); ++index) {
    if (sums[index].seconds == 0 && sums[index].bytes == 0) continue;
    sums[index].of = task_class_at(index);
    work.push_back(sums[index]);
  }
  return work;
}

}  // namespace

PlanProfile profile_of(Candidate plan) {
  SPILLWAY_ASSERT(plan.evaluation.result.has_value());
  const Schedule& schedule = plan.evaluation.schedule;
  const SimulationResult& result = *plan.evaluation.result;
  PlanProfile profile{plan, explain(schedule, result), {}, {}};
  profile.places = places_of(schedule, result, profile.explanation.window);
  profile.work = work_by_class(schedule, result, profile.explanation.window);
  return profile;
}

}  // namespace spillway
