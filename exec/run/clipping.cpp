#include "exec/run/clipping.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/errors.hpp"
#include "policies/model/stages.hpp"
#include "policies/model/units.hpp"

namespace spillway {

template <class Gradient>
double sum_of_squares(ThreadPool& pool, std::span<double> sums, const Gradient* x,
                      const std::type_identity_t<Gradient>* second, std::int64_t n,
                      CpuVariant variant) {
  const CpuKernels& kernels = cpu_kernels(variant);
  const auto pieces = static_cast<std::size_t>(square_sums(n));
  SPILLWAY_ASSERT(sums.size() >= pieces);
  pool.run(static_cast<std::int64_t>(pieces), [&](std::int64_t piece) {
    const std::int64_t at = piece * square_sum_elements;
    sums[static_cast<std::size_t>(piece)] = kernels.sum_squares(
        x + at, second != nullptr ? second + at : nullptr, std::min(square_sum_elements, n - at));
  });
  const std::span<const double> done = sums.first(pieces);
  return std::accumulate(done.begin(), done.end(), 0.0);
}

template double sum_of_squares(ThreadPool&, std::span<double>, const float*, const float*,
                               std::int64_t, CpuVariant);
template double sum_of_squares(ThreadPool&, std::span<double>, const bf16*, const bf16*,
                               std::int64_t, CpuVariant);

float clip_factor(double norm, double limit) {
  return static_cast<float>(std::min(1.0, limit / (norm + 1e-6)));
}

GradientUse gradient_use(const Workload& workload, std::span<const double> squares, int unit,
                         const std::vector<bool>& frozen) {
  if (squares.empty()) return {};
  const bool of_all_units = squares.size() > 1;
  double sum = 0;  // not finite only where one of them is not
  for (std::size_t i = 0; i < squares.size(); ++i) {
    if (of_all_units && i < frozen.size() && frozen[i]) continue;
    sum += squares[i];
  }
  if (workload.on_nonfinite == OnNonFinite::skip && !std::isfinite(sum)) return {true, 0};
  switch (workload.clip.scope) {
    case ClipScope::off:
      return {};
    case ClipScope::global:
      return {false, clip_factor(std::sqrt(sum), workload.clip.limit)};
    case ClipScope::layer: {
      const double own = squares[of_all_units ? static_cast<std::size_t>(unit) : 0];
      return {false, clip_factor(std::sqrt(own), workload.clip.limit)};
    }
  }
  SPILLWAY_ASSERT(false);
}

std::vector<std::vector<TaskId>> gradient_tasks(const Schedule& schedule) {
  const TaskKind telling =
      schedule.problem().workload.needs_norms() ? TaskKind::gradient_norm : TaskKind::optimizer;
  std::vector<std::vector<TaskId>> by_step(static_cast<std::size_t>(schedule.steps()));
  const auto tasks = schedule.tasks();
  for (TaskId id = 0; id < tasks.size(); ++id) {
    if (tasks[id].kind == telling)
      by_step[static_cast<std::size_t>(tasks[id].update)].push_back(id);
  }
  for (auto& step : by_step) {
    std::stable_sort(step.begin(), step.end(),
                     [&](TaskId a, TaskId b) { return tasks[a].layer < tasks[b].layer; });
  }
  return by_step;
}

std::vector<double> unit_squares(const Schedule& schedule, std::span<const TaskId> tasks,
                                 std::span<const double> squares) {
  std::vector<double> units(static_cast<std::size_t>(unit_count(schedule.problem().model)), 0.0);
  for (const TaskId id : tasks)
    units[static_cast<std::size_t>(schedule.tasks()[id].layer)] += squares[id];
  return units;
}

StepGradient step_gradient(const Schedule& schedule, std::span<const double> units) {
  const int embedding = static_cast<int>(whole_model(schedule.problem().model).layers);
  StepGradient result;
  double sum = 0;
  for (int unit = 0; unit < static_cast<int>(units.size()); ++unit) {
    const double of_unit = units[static_cast<std::size_t>(unit)];
    sum += of_unit;
    // The last layer that has any, and embedding or head only where no layer has.
    if (!std::isfinite(of_unit) && (unit < embedding || result.nonfinite_unit < 0))
      result.nonfinite_unit = unit;
  }
  result.norm = std::sqrt(sum);
  return result;
}

StepGradient step_gradient(const Schedule& schedule, std::span<const TaskId> tasks,
                           std::span<const double> squares) {
  return step_gradient(schedule, unit_squares(schedule, tasks, squares));
}

void require_finite_gradient(const Schedule& schedule, const Task& task, double squares,
                             std::int64_t step, std::span<const double> losses) {
  const Problem& problem = schedule.problem();
  if (std::isfinite(squares) || problem.workload.on_nonfinite != OnNonFinite::stop) return;
  const std::string gradient = fmt::format("the gradient of {} holds NaN or Inf at step {}",
                                           unit_name(problem.model, task.layer), step);
  const double loss = std::accumulate(losses.begin(), losses.end(), 0.0) /
                      static_cast<double>(problem.workload.tokens_per_step());
  throw MachineError(std::isfinite(loss)
                         ? gradient
                         : fmt::format("the loss is {} at step {}: {}", loss, step, gradient),
                     "training has diverged: use a smaller " + Setting{"learning_rate"} +
                         ", a longer " + Setting{"warmup"} + " or " + Setting{"gradient_clip"} +
                         "; " + Setting{"on_nonfinite", "skip"} + " leaves such steps out");
}

}  // namespace spillway
