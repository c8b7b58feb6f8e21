#include "experiments/plan/fit_trials.hpp"

#include <algorithm>

#include "base/errors.hpp"
#include "base/units.hpp"
#include "experiments/plan/all_ranks.hpp"
#include "experiments/plan/wear.hpp"
#include "policies/machine/memory_beside.hpp"

namespace spillway {

namespace {

constexpr std::int64_t tasks_per_visit = 12;  // of a layer by a micro-batch, at the least
// One step is close to the peaks of more; what is found is verified with as many as asked for.
constexpr int trial_steps = 1;

// The sizes that are not as they were, rounded up with what lies beside them: so they are given.
void round_up(Sizes& sizes, const Sizes& before, const Problem& problem) {
  const Sizes beside = {problem.machine.gpu.workspaces, memory_beside(problem)};
  for (std::size_t t = 0; t < sizes.size(); ++t) {
    if (sizes[t] != before[t]) sizes[t] = round_size(sizes[t] + beside[t], true) - beside[t];
  }
}

}  // namespace

Sizes sizes_of(const Machine& machine) { return capacities(machine); }

void set_sizes(Machine& machine, const Sizes& sizes) {
  machine.gpu.memory = sizes[0];
  machine.host.memory = sizes[1];
  for (int set = 0; set < most_drive_sets; ++set)
    machine.drives(set).capacity = sizes[static_cast<std::size_t>(drives_tier(set))];
  Machine::Ssd& ssd = machine.ssd;
  if (sizes[2] == 0 || ssd.count > 0) return;
  ssd.count = 1;
  ssd.read = ssd.write = 2e9;
}

double Need::overshoot() const {
  double sum = 0;
  for (std::size_t t = 0; t < bytes.size(); ++t) {
    if (bytes[t] > capacity[t])
      sum += static_cast<double>(bytes[t]) / std::max(1.0, static_cast<double>(capacity[t])) - 1;
  }
  return sum;
}

double Need::difficulty() const {
  double sum = overshoot();
  for (std::size_t t = 0; t < bytes.size(); ++t)
    if (bytes[t] > capacity[t]) sum += one_more_memory;
  return sum;
}

Need need_of(const Schedule& schedule, bool durable) {
  Need need;
  need.settled = schedule.policy();
  for (const Tier tier : memories_of(schedule.problem().machine)) {
    need.bytes[static_cast<std::size_t>(tier)] = schedule.use(tier).peak_bytes;
    need.capacity[static_cast<std::size_t>(tier)] = schedule.use(tier).capacity_bytes;
  }
  const StoreBytes store = store_bytes(schedule, durable);
  if (!fits_drives(store, schedule.problem().machine)) {
    const int lacking = std::max(0, store.lacking(schedule.problem().machine));
    need.bytes[static_cast<std::size_t>(drives_tier(lacking))] =
        store.on_set[static_cast<std::size_t>(lacking)];
  }
  return need;
}

void FitTrials::begin() {
  tasks_ = 0;
  cut_short_ = false;
  begin_remedy();
}

void FitTrials::begin_remedy(int times) {
  trials_left_ = bounds_.trials;
  tasks_left_ = std::min(times * bounds_.tasks_of_remedy, bounds_.tasks_of_all - tasks_);
}

std::optional<Need> FitTrials::need(Problem problem, const Way& way, bool durable, int steps) {
  problem.workload.micro_batch = way.micro_batch;
  const std::int64_t expected =
      (problem.model.layers + 2) * steps * problem.workload.micro_batches() * tasks_per_visit;
  if (trials_left_ == 0 || expected > std::min(tasks_left_, bounds_.tasks_of_trial)) {
    cut_short_ = true;
    return {};
  }
  --trials_left_;
  try {
    if (question_.settle) question_.settle(problem);
    const Schedule schedule = stage_that_lacks(problem, way.policy, steps);
    const auto built = static_cast<std::int64_t>(schedule.tasks_emitted());
    tasks_left_ -= built;
    tasks_ += built;
    return need_of(schedule, durable);
  } catch (const InputError&) {
    return {};
  }
}

std::optional<Need> FitTrials::trial(const Problem& problem, const Way& way, bool durable) {
  return need(problem, way, durable, std::min(question_.steps, trial_steps));
}

std::optional<Need> FitTrials::verified(const Problem& problem, const Way& way, bool durable) {
  std::optional<Need> short_run = trial(problem, way, durable);
  if (!short_run || !short_run->fits()) return short_run;
  return need(problem, way, durable, question_.steps);
}

bool FitTrials::fits(const Problem& problem, const Way& way, bool durable) {
  const std::optional<Need> whole = verified(problem, way, durable);
  return whole && whole->fits();
}

std::optional<Need> FitTrials::need_with(const Sizes& sizes, const Way& way, int steps) {
  Problem problem = question_.problem;
  set_sizes(problem.machine, sizes);
  return need(problem, way, question_.durability.on(), steps);
}

// Until it fits. Policies place states by the sizes, so that more of one may lead to another need.
bool FitTrials::raise(Sizes& sizes, const Way& way, int steps) {
  for (int round = 0; round < 6; ++round) {
    const std::optional<Need> found = need_with(sizes, way, steps);
    if (!found) return false;
    if (found->fits()) return true;
    for (std::size_t t = 0; t < sizes.size(); ++t) {
      if (found->bytes[t] <= found->capacity[t]) continue;
      // The tier has less than it was given (a GPU's free memory): no more can be had.
      if (found->capacity[t] < sizes[t]) return false;
      sizes[t] = found->bytes[t];
    }
  }
  return false;
}

// Sizes that were raised, by bisection, as long as it still fits; to 2 %.
void FitTrials::lower(Sizes& sizes, const Way& way, int steps) {
  const Sizes before = sizes_of(question_.problem.machine);
  for (std::size_t t = 0; t < sizes.size(); ++t) {
    if (sizes[t] == before[t]) continue;
    std::uint64_t low = before[t], middle = sizes[t] - sizes[t] / 50;
    while (low < middle && middle < sizes[t]) {
      Sizes less = sizes;
      less[t] = middle;
      const std::optional<Need> found = need_with(less, way, steps);
      if (!found) return;
      (found->fits() ? sizes[t] : low) = middle;
      if (sizes[t] - low <= sizes[t] / 50) break;
      middle = low + (sizes[t] - low) / 2;
    }
  }
}

std::optional<Sizes> FitTrials::least_sizes(const Way& way) {
  const Sizes before = sizes_of(question_.problem.machine);
  const int few = std::min(question_.steps, trial_steps);
  Sizes sizes = before;
  if (!raise(sizes, way, few)) return {};
  lower(sizes, way, few);
  round_up(sizes, before, question_.problem);
  // Lowering may have used up what a remedy may take; what it has found is not thrown away for
  // that.
  trials_left_ = std::max(trials_left_, bounds_.trials / 10);
  tasks_left_ = std::max(tasks_left_, bounds_.tasks_of_remedy / 2);
  if (!raise(sizes, way, question_.steps)) return {};
  round_up(sizes, before, question_.problem);
  const std::optional<Need> verified = need_with(sizes, way, question_.steps);
  if (!verified || !verified->fits()) return {};
  return sizes;
}

}  // namespace spillway
