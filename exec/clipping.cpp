#include "exec/clipping.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/errors.hpp"
#include "policies/gpt_layout.hpp"

namespace spillway {

float clip_factor(double norm, double limit) {
  return static_cast<float>(std::min(1.0, limit / (norm + 1e-6)));
}

GradientUse gradient_use(const Workload& workload, std::span<const double> squares, int unit) {
  if (squares.empty()) return {};
  const auto finite = [](double value) { return std::isfinite(value); };
  if (workload.on_nonfinite == OnNonFinite::skip &&
      !std::all_of(squares.begin(), squares.end(), finite)) {
    return {true, 0};
  }
  switch (workload.clip.scope) {
    case ClipScope::off:
      return {};
    case ClipScope::global: {
      const double sum = std::accumulate(squares.begin(), squares.end(), 0.0);
      return {false, clip_factor(std::sqrt(sum), workload.clip.limit)};
    }
    case ClipScope::layer: {
      const double own = squares[squares.size() == 1 ? 0 : static_cast<std::size_t>(unit)];
      return {false, clip_factor(std::sqrt(own), workload.clip.limit)};
    }
  }
  SPILLWAY_ASSERT(false);
}

StepGradient step_gradient(const Schedule& schedule, int step, std::span<const double> squares) {
  const Problem& problem = schedule.problem();
  const bool has_norms = problem.workload.needs_norms();
  std::vector<double> by_unit(static_cast<std::size_t>(problem.model.layers) + 1, 0.0);
  const auto tasks = schedule.tasks();
  for (TaskId id = 0; id < tasks.size(); ++id) {
    const Task& task = tasks[id];
    if (task.update != step || (has_norms && task.kind != TaskKind::gradient_norm)) continue;
    by_unit[static_cast<std::size_t>(task.layer)] += squares[id];
  }
  StepGradient result;
  result.norm = std::sqrt(std::accumulate(by_unit.begin(), by_unit.end(), 0.0));
  const int embedding = static_cast<int>(problem.model.layers);
  for (int place = 0; place <= embedding; ++place) {
    const int unit = place < embedding ? embedding - 1 - place : embedding;
    if (std::isfinite(by_unit[static_cast<std::size_t>(unit)])) continue;
    result.nonfinite_unit = unit;
    break;
  }
  return result;
}

void require_finite_gradient(const Schedule& schedule, const Task& task, double squares,
                             std::int64_t step, std::span<const double> losses) {
  const Problem& problem = schedule.problem();
  if (std::isfinite(squares) || problem.workload.on_nonfinite != OnNonFinite::stop) return;
  const std::string gradient = fmt::format("the gradient of {} holds NaN or Inf at step {}",
                                           unit_name(problem.model, task.layer), step);
  const double loss = std::accumulate(losses.begin(), losses.end(), 0.0) /
                      static_cast<double>(problem.workload.tokens_per_step());
  throw MachineError(
      std::isfinite(loss) ? gradient
                          : fmt::format("the loss is {} at step {}: {}", loss, step, gradient),
      "training has diverged: use a smaller --learning-rate, a longer --warmup or --gradient-clip; "
      "--on-nonfinite skip leaves such steps out");
}

}  // namespace spillway
