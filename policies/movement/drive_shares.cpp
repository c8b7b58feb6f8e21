#include "policies/movement/drive_shares.hpp"

#include <algorithm>
#include <cmath>

#include "policies/cost/link_rates.hpp"
#include "policies/model/scratch.hpp"
#include "policies/model/units.hpp"
#include "policies/movement/step.hpp"

namespace spillway {

namespace {

struct Resting {
  double on_drives = 0;  // at once, with second copies of optimizer state
  // What commits copy to the first set of optimizer state that rests in memory.
  double copies_of_memory = 0;
};

Resting resting_bytes(const Problem& problem, const Plan& plan, const Shards& shards) {
  const int layers = static_cast<int>(problem.model.layers);
  Resting resting;
  double& bytes = resting.on_drives;
  for (int unit = 0; unit < static_cast<int>(unit_count(problem.model)); ++unit) {
    const int layer = std::min(unit, layers - 1);
    const bool is_outer = unit >= layers;
    Share state = plan.optimizer_state.rest.at(layer, layers);
    if (is_outer) state = plan.optimizer_state.embedding.value_or(state);
    const auto updated = static_cast<double>(shards.updated(unit).elements);
    const double state_bytes = updated * static_cast<double>(problem.state_bytes());
    bytes += 2 * state.ssd * state_bytes;
    resting.copies_of_memory += 2 * (1 - state.ssd) * state_bytes;
    if (plan.gradients.on_ssd) bytes += updated * static_cast<double>(problem.gradient_bytes());
    if (is_outer) continue;
    const auto kept =
        static_cast<double>(shards.kept(unit).elements + shards.kept_frozen(unit).elements);
    bytes += plan.parameters.rest.at(layer, layers).ssd * kept *
             static_cast<double>(problem.parameter_bytes());
    bytes += plan.checkpoints.rest.at(layer, layers).ssd *
             static_cast<double>(checkpoint_bytes(problem)) *
             static_cast<double>(problem.workload.micro_batches());
  }
  return resting;
}

}  // namespace

DriveShares::DriveShares(const Problem& problem, const Plan& plan, const Shards& shards)
    : sets_(std::max(1, problem.machine.drive_sets())) {
  if (sets_ == 1) return;
  const std::array<double, most_drive_sets> speed = speed_shares(problem.machine);
  std::array<double, most_drive_sets> most{};
  const Resting all = resting_bytes(problem, plan, shards);
  for (int set = 0; set < sets_; ++set) {
    const double room = 0.95 * static_cast<double>(problem.machine.drives(set).capacity) -
                        (set == 0 ? all.copies_of_memory : 0);
    most[static_cast<std::size_t>(set)] =
        all.on_drives > 0 ? std::max(0.0, room / all.on_drives) : 1;
  }
  // Those that are full take what they hold, and the others share the rest.
  std::array<bool, most_drive_sets> full{};
  for (bool changed = true; changed;) {
    changed = false;
    double left = 1, speeds = 0;
    for (std::size_t set = 0; set < static_cast<std::size_t>(sets_); ++set)
      (full[set] ? left : speeds) += full[set] ? -most[set] : speed[set];
    for (std::size_t set = 0; set < static_cast<std::size_t>(sets_); ++set) {
      if (!full[set]) shares_[set] = speeds > 0 ? left * speed[set] / speeds : 0;
    }
    for (std::size_t set = 0; set < static_cast<std::size_t>(sets_); ++set) {
      if (full[set] || shares_[set] <= most[set]) continue;
      full[set] = changed = true;
      shares_[set] = most[set];
    }
  }
  double sum = 0;
  for (const double share : shares_) sum += share;
  if (sum > 0) {
    for (double& share : shares_) share /= sum;  // where all are full, none has room
  } else {
    shares_ = speed;
  }
}

std::array<std::uint64_t, most_drive_sets> DriveShares::ends(std::uint64_t all,
                                                             std::uint64_t grid) const {
  std::array<std::uint64_t, most_drive_sets> ends{};
  const double cells = static_cast<double>(all / grid);
  double share = 0;
  std::uint64_t before = 0;
  for (std::size_t set = 0; set < static_cast<std::size_t>(sets_); ++set) {
    share += shares_[set];
    const auto end = static_cast<std::uint64_t>(std::llround(cells * std::min(1.0, share))) * grid;
    before = ends[set] = set + 1 == static_cast<std::size_t>(sets_) ? all : std::max(before, end);
  }
  return ends;
}

}  // namespace spillway
