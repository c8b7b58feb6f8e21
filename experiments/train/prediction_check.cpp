#include "experiments/train/prediction_check.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "experiments/calibrate/statistics.hpp"
#include "experiments/plan/all_ranks.hpp"
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
  if (schedule.problem().workload.pipeline > 1 && schedule.problem().rank > 0)
    return {};  // the first stage says it
  const StepTimes times = step_times(measured);
  if (times.filling || times.seconds.size() < fewest_steps_checked) return {};
  const SimulationResult predicted =
      simulate_stages(stages_of(schedule), schedule.problem().machine);
  const TraceComparison comparison = compare_traces(to_trace(schedule, predicted), measured);
  if (!(comparison.predicted.median_seconds > 0)) return {};
  PredictionCheck check;
  check.steps = times.seconds.size();
  check.predicted_seconds = comparison.predicted.median_seconds;
  check.measured_seconds = comparison.measured.median_seconds;
  for (const LaneQuantity& lane : comparison.lanes) {
    PredictionCheck::LaneTime time{lane.name, lane.predicted_seconds, lane.measured_seconds};
    for (std::size_t l = 0; l < lane_count; ++l) {
      if (lane.name == to_string(static_cast<Lane>(l)))
        time.alone_seconds = predicted.lanes[l].demand_seconds;
    }
    check.lanes.push_back(time);
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
  // Rates of robustness.hpp, the lanes whose work goes by them, and their keys.
  struct Rate {
    const char* name;
    std::vector<std::string> lanes, keys;
  };
  static const Rate rates[] = {{"gpu", {"gpu.compute"}, {"gpu.flops"}},
                               {"pcie", {"pcie.h2d", "pcie.d2h"}, {"pcie.h2d", "pcie.d2h"}},
                               {"ssd.read", {"ssd.read"}, {"ssd.read"}},
                               {"ssd.write", {"ssd.write"}, {"ssd.write"}},
                               {"cpu", {"cpu.optimizer"}, {"host.adam_rate"}}};
  const auto correct = [&](const char* rate, double factor, const std::vector<std::string>& keys) {
    machine = with_scaled_rate(std::move(machine), rate, factor);
    for (const std::string& key : keys)
      machine.sources[key] =
          fmt::format("corrected by {:.3g} after the first steps of a training", factor);
  };
  double shared_predicted = 0, shared_measured = 0;
  bool drives_wait = false;  // reads for writes, or the other way round
  for (const Rate& rate : rates) {
    PredictionCheck::LaneTime all;
    for (const PredictionCheck::LaneTime& one : check.lanes) {
      if (std::find(rate.lanes.begin(), rate.lanes.end(), one.lane) == rate.lanes.end()) continue;
      all.predicted_seconds += one.predicted_seconds;
      all.measured_seconds += one.measured_seconds;
      all.alone_seconds += one.alone_seconds;
    }
    if (!(all.predicted_seconds > 0 && all.measured_seconds > 0)) continue;
    const bool waits = all.predicted_seconds > 1.05 * all.alone_seconds;
    if (rate.name == std::string("ssd.read") || rate.name == std::string("ssd.write")) {
      shared_predicted += all.predicted_seconds;
      shared_measured += all.measured_seconds;
      drives_wait = drives_wait || waits;
    }
    // Of a lane that waited for others it is only known that it is at least as fast as it was seen.
    const double factor = waits ? std::max(1.0, all.alone_seconds / all.measured_seconds)
                                : all.predicted_seconds / all.measured_seconds;
    if (factor != 1) correct(rate.name, factor, rate.keys);
  }
  if (drives_wait && machine.ssd.total > 0)
    correct("ssd.total", shared_predicted / shared_measured, {"ssd.total"});
  if (drives_wait && machine.ssd.law == SsdLaw::mixed)
    correct("ssd.mixed", shared_predicted / shared_measured, {"ssd.mixed_gain"});
  return machine;
}

}  // namespace spillway
