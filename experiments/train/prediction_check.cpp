#include "experiments/train/prediction_check.hpp"

#include <array>
#include <cmath>
#include <utility>

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
    const double off = std::abs(lane.measured_seconds - lane.predicted_seconds);
    if (off < std::abs(check.lane_measured_seconds - check.lane_predicted_seconds)) continue;
    check.lane = lane.name;
    check.lane_predicted_seconds = lane.predicted_seconds;
    check.lane_measured_seconds = lane.measured_seconds;
  }
  check.key = key_of(check.lane);
  return check;
}

}  // namespace spillway
