#include "experiments/plan/steady_results.hpp"

#include <xxhash.h>

#include <memory>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/errors.hpp"
#include "experiments/plan/simulated_part.hpp"
#include "experiments/plan/write_cache.hpp"
#include "policies/model/operators.hpp"

namespace spillway {

namespace {

constexpr std::size_t most_results = 4096;
// Shorter schedules take less than a millisecond.
constexpr std::size_t fewest_tasks = 5'000;

// 128 bits of all that is added.
class Hash {
 public:
  Hash() : state_(XXH3_createState(), XXH3_freeState) { XXH3_128bits_reset(state_.get()); }

  template <class T>
  void add(const T& value) {
    static_assert(std::has_unique_object_representations_v<T> || std::is_floating_point_v<T>);
    XXH3_128bits_update(state_.get(), &value, sizeof value);
  }
  template <class T>
  void add_all(std::span<const T> values) {
    static_assert(std::has_unique_object_representations_v<T>);
    add(values.size());
    XXH3_128bits_update(state_.get(), values.data(), values.size_bytes());
  }
  void add_bytes_of(const std::vector<Activity>& activities) {
    static_assert(sizeof(Activity) == 2 * sizeof(std::uint32_t) + sizeof(double) +
                                          sizeof(std::int64_t));  // no byte without a meaning
    add(activities.size());
    XXH3_128bits_update(state_.get(), activities.data(), activities.size() * sizeof(Activity));
  }
  std::array<std::uint64_t, 2> digest() const {
    const XXH128_hash_t hash = XXH3_128bits_digest(state_.get());
    return {hash.low64, hash.high64};
  }

 private:
  std::unique_ptr<XXH3_state_t, XXH_errorcode (*)(XXH3_state_t*)> state_;
};

// Of the schedule, what its tasks cost on the machine, and of the problem what rates of a result
// follow from.
std::array<std::uint64_t, 2> hash_of(const CostedSchedule& costed, const Problem& problem,
                                     std::uint64_t fingerprint) {
  Hash hash;
  hash.add(fingerprint);
  hash.add_bytes_of(costed.graph.activities);
  for (const Demand& demand : costed.graph.demands) {
    hash.add(demand.rate_cap);
    hash.add(demand.weight);
    hash.add(demand.usage_count);
    for (std::uint32_t u = 0; u < demand.usage_count; ++u) {
      hash.add(demand.usages[u].resource);
      hash.add(demand.usages[u].per_unit);
    }
  }
  for (const Resource& resource : costed.graph.resources) {
    hash.add_all(std::span(resource.name));
    hash.add(resource.capacity);
  }
  for (const std::string& text : costed.extrapolates) hash.add_all(std::span(text));
  const Workload& workload = problem.workload;
  hash.add(workload.tokens_per_step());
  hash.add(step_flops(problem.model, workload.batch, workload.sequence));
  hash.add(problem.workload.ranks);
  hash.add(problem.machine.cluster.sharing);
  return hash.digest();
}

bool is_same(const Schedule& one, const Schedule& other) {
  return one.tasks().data() == other.tasks().data();
}

// Nothing where the step does not repeat, and where the whole may take longer than is simulated:
// cost_schedule() says so.
std::optional<SteadyResult> by_some_steps(const Schedule& schedule, const Repetition& repetition,
                                          CostedSchedule costed) {
  constexpr double surely_countable_seconds = 1e6;
  try {
    const SimulatedPart part(schedule, repetition, std::move(costed));
    if (!part.repeats()) return std::nullopt;
    SteadyResult result = {part.result_of(schedule.problem()), true};
    const double all = result.result.step_seconds * (schedule.steps() + 2);
    if (all * lane_count > surely_countable_seconds) return std::nullopt;
    return result;
  } catch (const InputError&) {
    return std::nullopt;
  }
}

}  // namespace

const SteadyResults::Known& SteadyResults::known(const Schedule& schedule) {
  if (!last_ || !is_same(last_->schedule, schedule))
    last_ = Known{schedule,
                  schedule.tasks().size() < fewest_tasks ? std::nullopt : repetition_of(schedule),
                  schedule.fingerprint()};
  return *last_;
}

SteadyResult SteadyResults::of(const Schedule& schedule) {
  const Problem& problem = schedule.problem();
  // Then one of two simulations counts.
  if (write_cache_of(problem.machine)) {
    SteadyResult result = {simulate_long_run(schedule, problem.machine)};
    result.result.tasks.clear();
    return result;
  }
  const Known& of = known(schedule);
  const std::size_t count = of.repetition ? of.repetition->tasks : schedule.tasks().size();
  CostedSchedule costed = cost_first_tasks(schedule, count);
  Key key = hash_of(costed, problem, of.fingerprint);
  if (const auto found = results_.find(key); found != results_.end()) return found->second;
  std::optional<SteadyResult> result;
  if (of.repetition) {
    result = by_some_steps(schedule, *of.repetition, std::move(costed));
    // Then the costs of all tasks count.
    if (!result) costed = cost_schedule(schedule), key = hash_of(costed, problem, of.fingerprint);
  }
  if (!result) {
    result = {simulate(schedule, costed)};
    result->result.tasks.clear();
  }
  if (results_.size() >= most_results) results_.clear();
  return results_.emplace(key, *std::move(result)).first->second;
}

}  // namespace spillway
