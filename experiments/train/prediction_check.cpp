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
  static constexpr std::array<std::pair<const char*, const char*>, 4> keys = {
      {{"gpu.compute", "gpu.flops"},
       {"pcie.h2d", "pcie.h2d"},
       {"pcie.d2h", "pcie.d2h"},
       {"cpu.optimizer", "host.adam_rate"}}};
  for (const auto& [name, key] : keys) {
    if (lane == name) return key;
  }
  for (int set = 0; set < most_drive_sets; ++set) {  // lanes of drives are called as their rates
    if (lane == to_string(read_lane(set)) || lane == to_string(write_lane(set))) return lane;
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
    std::string name;
    std::vector<std::string> lanes, keys;
    int drives = -1;  // their set
  };
  std::vector<Rate> rates = {{"gpu", {"gpu.compute"}, {"gpu.flops"}},
                             {"pcie", {"pcie.h2d", "pcie.d2h"}, {"pcie.h2d", "pcie.d2h"}}};
  for (int set = 0; set < std::max(1, machine.drive_sets()); ++set) {
    for (const Lane lane : {read_lane(set), write_lane(set)})
      rates.push_back({to_string(lane), {to_string(lane)}, {to_string(lane)}, set});
  }
  rates.push_back({"cpu", {"cpu.optimizer"}, {"host.adam_rate"}});
  const auto correct = [&](const std::string& rate, double factor,
                           const std::vector<std::string>& keys) {
    machine = with_scaled_rate(std::move(machine), rate, factor);
    for (const std::string& key : keys)
      machine.sources[key] =
          fmt::format("corrected by {:.3g} after the first steps of a training", factor);
  };
  struct Shared {
    double predicted = 0, measured = 0;
    bool wait = false;  // reads for writes, or the other way round
  };
  std::array<Shared, most_drive_sets> drives;
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
    if (rate.drives >= 0) {
      Shared& shared = drives[static_cast<std::size_t>(rate.drives)];
      shared.predicted += all.predicted_seconds;
      shared.measured += all.measured_seconds;
      shared.wait = shared.wait || waits;
    }
    // Of a lane that waited for others it is only known that it is at least as fast as it was seen.
    const double factor = waits ? std::max(1.0, all.alone_seconds / all.measured_seconds)
                                : all.predicted_seconds / all.measured_seconds;
    if (factor != 1) correct(rate.name, factor, rate.keys);
  }
  for (int set = 0; set < most_drive_sets; ++set) {
    const Shared& shared = drives[static_cast<std::size_t>(set)];
    if (!shared.wait) continue;
    const double factor = shared.predicted / shared.measured;
    if (machine.drives(set).total > 0)
      correct(drive_set_key(set, "total"), factor, {drive_set_key(set, "total")});
    if (machine.drives(set).law == SsdLaw::mixed)
      correct(drive_set_key(set, "mixed"), factor, {drive_set_key(set, "mixed_gain")});
  }
  return machine;
}

}  // namespace spillway
