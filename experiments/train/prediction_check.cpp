#include "experiments/train/prediction_check.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "experiments/calibrate/statistics.hpp"
#include "experiments/questions/robustness.hpp"
#include "sim/simulate.hpp"
#include "sim/to_trace.hpp"
#include "traces/compare.hpp"

namespace spillway {

namespace {

// The rate that a lane's work goes by; kernels that were measured by shape are in the same file.
std::string key_of(const std::string& lane) {
  static constexpr std::array<std::pair<const char*, const char*>, 6> keys = {
      {{"gpu.compute", "gpu.flops"},
       {"pcie.h2d", "pcie.h2d"},
       {"pcie.d2h", "pcie.d2h"},
       {"ssd.read", "ssd.read"},
       {"ssd.write", "ssd.write"},
       {"cpu.optimizer", "host.adam_rate"}}};
  for (const auto& [name, key] : keys) {
    if (lane == name) return key;
  }
  return "";
}

}  // namespace

bool PredictionCheck::holds() const { return std::abs(error()) <= prediction_tolerance; }

std::optional<PredictionCheck> check_prediction(const Schedule& schedule, const Trace& measured) {
  if (measured.spans.empty()) return {};
  const StepTimes times = step_times(measured);
  if (times.filling || times.seconds.size() < fewest_steps_checked) return {};
  const TraceComparison comparison =
      compare_traces(to_trace(schedule, simulate(schedule)), measured);
  if (!(comparison.predicted.median_seconds > 0)) return {};
  PredictionCheck check;
  check.steps = times.seconds.size();
  check.predicted_seconds = comparison.predicted.median_seconds;
  check.measured_seconds = comparison.measured.median_seconds;
  for (const LaneQuantity& lane : comparison.lanes) {
    check.lanes.push_back({lane.name, lane.predicted_seconds, lane.measured_seconds});
    const double off = std::abs(lane.measured_seconds - lane.predicted_seconds);
    if (off < std::abs(check.lane_measured_seconds - check.lane_predicted_seconds)) continue;
    check.lane = lane.name;
    check.lane_predicted_seconds = lane.predicted_seconds;
    check.lane_measured_seconds = lane.measured_seconds;
  }
  check.key = key_of(check.lane);
  return check;
}

PredictionCheck check_steps(std::vector<double> seconds, double predicted) {
  PredictionCheck check;
  check.steps = seconds.size();
  check.predicted_seconds = predicted;
  check.measured_seconds = median(std::move(seconds));
  return check;
}

Machine corrected_machine(Machine machine, const PredictionCheck& check) {
  // Rates of robustness.hpp, and the lanes whose work goes by them.
  static const std::pair<const char*, std::vector<std::string>> rates[] = {
      {"gpu", {"gpu.compute"}},
      {"pcie", {"pcie.h2d", "pcie.d2h"}},
      {"ssd.read", {"ssd.read"}},
      {"ssd.write", {"ssd.write"}},
      {"ssd.total", {"ssd.read", "ssd.write"}},
      {"cpu", {"cpu.optimizer"}}};
  for (const auto& [rate, lanes] : rates) {
    double predicted = 0, measured = 0;
    for (const PredictionCheck::LaneTime& one : check.lanes) {
      if (std::find(lanes.begin(), lanes.end(), one.lane) == lanes.end()) continue;
      predicted += one.predicted_seconds;
      measured += one.measured_seconds;
    }
    if (predicted > 0 && measured > 0)
      machine = with_scaled_rate(std::move(machine), rate, predicted / measured);
  }
  return machine;
}

}  // namespace spillway
