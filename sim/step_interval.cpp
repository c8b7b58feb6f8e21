#include "sim/step_interval.hpp"

#include <algorithm>
#include <array>
#include <boost/math/distributions/students_t.hpp>
#include <cmath>
#include <string>

#include "sim/causes.hpp"
#include "sim/steady_state.hpp"

namespace spillway {

namespace {

constexpr double normal_p80_p20 = 1.6832;  // of a standard normal distribution
constexpr double normal_95 = 1.6449;       // 90 % lie within so many standard deviations
constexpr double median_error = 1.2533;    // of n samples: x deviation / sqrt(n)
constexpr double most_deviation = 1;       // of what is not measured in earnest

constexpr std::size_t kinds = static_cast<std::size_t>(task_kind_count);

double deviation_of(const KernelTime& time) {
  return std::clamp(time.spread / normal_p80_p20, 0.0, most_deviation);
}

// Of the samples behind the times of a kind of task.
struct KindDeviation {
  double one = 0;          // of a single task
  double calibration = 0;  // of the median
  double common = 0;
};

const char* reference_kind(TaskKind kind) {
  switch (kind) {
    case TaskKind::optimizer:
    case TaskKind::gradient_norm:
      return "adam";
    case TaskKind::h2d:
    case TaskKind::d2h:
      return "copy";
    case TaskKind::read:
      return "read";
    case TaskKind::write:
      return "write";
    default:
      return "compute";
  }
}

// The root mean square over the kind's kernels that were measured alone.
KindDeviation deviation_of(TaskKind kind, const Machine& machine) {
  KindDeviation deviation;
  double squares = 0, medians = 0;
  int count = 0;
  for (const KernelTime& kernel : machine.kernels) {
    if (kernel.kind != to_string(kind) || kernel.shape.find("beside=") != std::string::npos)
      continue;
    const double one = deviation_of(kernel);
    squares += one * one;
    medians += one * one / static_cast<double>(std::max<std::size_t>(kernel.samples_ns.size(), 1));
    ++count;
  }
  if (count > 0) {
    deviation.one = std::sqrt(squares / count);
    deviation.calibration = median_error * std::sqrt(medians / count);
  }
  for (const KernelTime& reference : machine.references) {
    if (reference.kind == reference_kind(kind)) deviation.common = deviation_of(reference);
  }
  return deviation;
}

// Of predictions, by the errors of the trials.
double deviation_of_trials(const std::vector<TrialTime>& trials) {
  double squares = 0;
  for (const TrialTime& trial : trials) {
    const double error =
        std::log(static_cast<double>(trial.predicted_ns) / static_cast<double>(trial.median_ns));
    squares += error * error;
  }
  if (trials.empty()) return 0;
  const auto count = static_cast<double>(trials.size());
  const boost::math::students_t distribution(count);
  const double wider = boost::math::quantile(distribution, (1 + interval_share) / 2) / normal_95;
  return std::min(wider * std::sqrt(squares / count), most_deviation);
}

}  // namespace

double StepUncertainty::common() const {
  double all = 0;
  for (const auto& [reference, deviation] : common_by_reference) all += deviation;
  return all;
}
double StepUncertainty::all() const {
  return std::hypot(common(), std::max(std::hypot(calibration, independent), trials));
}
StepUncertainty StepUncertainty::corrected(
    const std::map<std::string, std::size_t>& samples) const {
  StepUncertainty left = *this;
  const bool is_in_trials = trials > std::hypot(calibration, independent);
  for (const auto& [reference, count] : samples) {
    const auto found = left.common_by_reference.find(reference);
    if (found == left.common_by_reference.end()) continue;
    found->second =
        is_in_trials
            ? 0
            : found->second / std::sqrt(static_cast<double>(std::max<std::size_t>(count, 1)));
  }
  return left;
}
double StepUncertainty::low(double seconds) const { return seconds * std::exp(-normal_95 * all()); }
double StepUncertainty::high(double seconds) const { return seconds * std::exp(normal_95 * all()); }

std::optional<StepUncertainty> step_uncertainty(const Schedule& schedule,
                                                const SimulationResult& result,
                                                const Machine& machine) {
  // The stages of a pipeline wait for each other: their deviations are not those of one schedule.
  if (machine.references.empty() || schedule.problem().workload.pipeline > 1) return std::nullopt;
  const SteadyWindow window = steady_window(result.step_ends_ns);
  const auto all = static_cast<double>(window.end_ns - window.begin_ns);
  if (!(all > 0)) return std::nullopt;
  std::array<KindDeviation, kinds> deviations;
  for (std::size_t kind = 0; kind < kinds; ++kind)
    deviations[kind] = deviation_of(static_cast<TaskKind>(kind), machine);
  std::array<double, kinds> shares{};
  double independent = 0;
  const Causes causes(schedule, result.tasks, window.begin_ns);
  causes.walk_back(last_task(schedule, result, window), window.begin_ns, window.end_ns,
                   [&](TaskId task, std::int64_t begin, std::int64_t end) {
                     const auto kind = static_cast<std::size_t>(schedule.tasks()[task].kind);
                     const double share = static_cast<double>(end - begin) / all;
                     shares[kind] += share;
                     independent += std::pow(share * deviations[kind].one, 2);
                   });
  StepUncertainty uncertainty;
  double calibration = 0;
  for (std::size_t kind = 0; kind < kinds; ++kind) {
    if (const double common = shares[kind] * deviations[kind].common; common > 0)
      uncertainty.common_by_reference[reference_kind(static_cast<TaskKind>(kind))] += common;
    calibration += std::pow(shares[kind] * deviations[kind].calibration, 2);
  }
  uncertainty.calibration = std::sqrt(calibration);
  uncertainty.trials = deviation_of_trials(machine.trials);
  // A measured step is one of the window's: noise that is independent by task weighs more in it.
  uncertainty.independent = std::sqrt(independent * window.steps);
  return uncertainty;
}

}  // namespace spillway
