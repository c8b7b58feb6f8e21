#include "experiments/tune/lower_bound.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/errors.hpp"
#include "base/units.hpp"
#include "experiments/plan/evaluate.hpp"
#include "experiments/tune/lower_bound_program.hpp"

namespace spillway {

namespace {

// The problem with another micro-batch, as it is evaluated with it. Nothing: the other settings do
// not go with it.
std::optional<Problem> with_micro_batch(const Problem& problem, std::int64_t micro_batch) {
  Problem other = problem;
  other.workload.micro_batch = micro_batch;
  try {
    if (is_measured_gpu(problem.machine)) other.use_gpu_sequences_at_once();
    other.validate();
  } catch (const InputError&) {
    return std::nullopt;
  }
  return other;
}

// All rows from `least` to `most` micro-batches, which make as many groups.
struct Rows {
  int least = 1, most = 1;

  MicroBatchGroups groups(int micro_batches) const {
    MicroBatchGroups groups;
    groups.groups = (micro_batches + least - 1) / least;
    groups.first = groups.middle = least;
    groups.last = std::max(1, micro_batches - (groups.groups - 1) * most);
    if (groups.groups == 1) groups.first = groups.last = micro_batches;
    return groups;
  }
};

// One layer takes one micro-batch after the other, whatever the row.
std::vector<Rows> rows_of(const Problem& problem) {
  if (problem.model.layers == 1) return {{1, 1}};
  const auto micro_batches = static_cast<int>(problem.workload.micro_batches());
  std::vector<Rows> all;
  for (int row = 1; row <= micro_batches;) {
    const int groups = (micro_batches + row - 1) / row;
    // The longest row that makes as many groups.
    const int most = groups == 1 ? micro_batches : (micro_batches - 1) / (groups - 1);
    const int end = micro_batches <= most_rows ? row : most;
    all.push_back({row, end});
    row = end + 1;
  }
  return all;
}

// Where part of the model is frozen: every pass over the layers brings what of their parameters no
// memory can hold meanwhile.
BoundCase bound_by_passes(const StepAmounts& amounts, const Problem& problem, const Rows& rows) {
  const int groups = rows.groups(static_cast<int>(problem.workload.micro_batches())).groups;
  const double layer = amounts.parameter_bytes * amounts.layer_elements;
  const double up = amounts.layers * layer, down = amounts.backward_layers * layer;
  const auto bytes = [&](double held) {
    return groups * (std::max(0.0, up - held) + std::max(0.0, down - held));
  };
  const auto seconds = [&](Flow flow, double amount) {
    return amount * amounts.lane_seconds[static_cast<std::size_t>(flow)];
  };
  const double on_gpu = amounts.gpu_memory, in_memory = on_gpu + amounts.host_memory;
  BoundCase found;
  found.seconds = amounts.least_compute();
  found.limit = to_string(Lane::gpu_compute);
  const auto take = [&](Lane lane, double least) {
    if (least <= found.seconds) return;
    found.seconds = least;
    found.limit = to_string(lane);
  };
  // And every update reads and writes what of the optimizer state no memory can hold.
  const double state = std::max(0.0, amounts.state_elements * amounts.state_bytes - in_memory);
  take(Lane::pcie_h2d, seconds(Flow::h2d, bytes(on_gpu)));
  take(Lane::ssd_read, seconds(Flow::read, bytes(in_memory) + state));
  take(Lane::ssd_write, seconds(Flow::write, state));
  // A seed: host memory has some room beside parameters.
  const double in_host = std::clamp(0.8 * amounts.host_memory / up, 0.0, 1.0);
  if (up < 0.8 * on_gpu)
    found.shares.parameters = Share{.gpu = 1};
  else
    found.shares.parameters = Share{.host = in_host, .ssd = 1 - in_host};
  found.shares.optimizer_state = found.shares.checkpoints = found.shares.saved = Share{.host = 1};
  found.shares.saves.emplace_back(saved_none, 1.0);
  found.micro_batch = problem.workload.micro_batch;
  found.row = rows.least;
  return found;
}

std::optional<BoundCase> solve(const StepAmounts& amounts, const Problem& problem,
                               const Rows& rows) {
  if (problem.model.trained_parameters() < problem.model.parameters())
    return bound_by_passes(amounts, problem, rows);
  const auto groups = rows.groups(static_cast<int>(problem.workload.micro_batches()));
  std::optional<BoundCase> one = BoundProgram(amounts, groups, GpuUpdates::of_state_there).solve();
  const double parameters = amounts.parameter_bytes * amounts.all_layer_elements();
  if (parameters < amounts.gpu_memory) {
    auto other = BoundProgram(amounts, groups, GpuUpdates::of_state_in_host).solve();
    if (other && (!one || other->seconds < one->seconds)) one = std::move(other);
  }
  if (!one) return one;
  one->micro_batch = problem.workload.micro_batch;
  one->row = rows.least;
  return one;
}

}  // namespace

std::vector<BoundCase> lower_bounds(const Problem& problem) {
  problem.validate();
  std::vector<BoundCase> all;
  const std::int64_t batch = problem.workload.batch;
  for (std::int64_t micro_batch = batch; micro_batch >= 1; --micro_batch) {
    if (batch % micro_batch != 0) continue;
    const std::optional<Problem> one = with_micro_batch(problem, micro_batch);
    if (!one) continue;
    const StepAmounts amounts(*one);
    for (const Rows& rows : rows_of(*one)) {
      if (auto bound = solve(amounts, *one, rows)) all.push_back(std::move(*bound));
    }
  }
  std::stable_sort(all.begin(), all.end(),
                   [](const BoundCase& a, const BoundCase& b) { return a.seconds < b.seconds; });
  return all;
}

BoundCase lower_bound(const Problem& problem) {
  const std::vector<BoundCase> all = lower_bounds(problem);
  if (!all.empty()) return all.front();
  const auto text = [](std::uint64_t bytes) { return format_bytes(static_cast<double>(bytes)); };
  const Machine& machine = problem.machine;
  throw FitError(fmt::format("{} cannot be trained here by any plan: {} of GPU memory, {} of host "
                             "memory and {} of drives are too little for its model states and "
                             "activations",
                             problem.model.name, text(machine.gpu.memory),
                             text(machine.host.memory), text(machine.drive_capacity())),
                 "more memory or drives, or a smaller model");
}

std::optional<BoundCase> lower_bound_of(const Problem& problem, int row) {
  const std::optional<Problem> one = with_micro_batch(problem, problem.workload.micro_batch);
  if (!one) return std::nullopt;
  if (problem.model.layers == 1) row = 1;
  return solve(StepAmounts(*one), *one, {row, row});
}

}  // namespace spillway
