#include "experiments/plan/price.hpp"

#include <algorithm>
#include <cmath>

#include "base/errors.hpp"
#include "experiments/plan/simulated_part.hpp"
#include "experiments/plan/write_cache.hpp"

namespace spillway {

namespace {

// Of miniatures: one step fills the pipeline, the next one stands for all, the last one follows it.
constexpr int steps_built = 3;
// A model of fewer layers is built in full.
constexpr std::int64_t fewest_layers = 40;
// Layers of miniatures, beside two periods; at most one in `whole_to_part` of all layers.
constexpr std::array layers_at_ends = {6, 8};
constexpr std::int64_t whole_to_part = 4;
// What is as close as this to a limit of memory is built in full, relative: where two miniatures
// take the same bytes, and where the gaps between their buffers differ.
constexpr double close_to_limit = 5e-4, close_if_uneven = 0.15;
// The most that gaps between buffers may be of their bytes where they differ.
constexpr double most_gaps = 0.02;
// Relative: by how much the live bytes of a miniature may differ from those expected of it; by how
// much the step times may differ that two miniatures tell.
constexpr double most_uneven_bytes = 1e-3, most_uneven_time = 1e-7;

constexpr std::array tiers = {Tier::gpu, Tier::host, Tier::ssd};

// Finds the price of one policy, by the least work that tells.
class Pricing {
 public:
  Pricing(ScheduleReuse& reuse, const Problem& problem, const std::string& policy, int steps)
      : reuse_(reuse), problem_(problem), policy_(policy), steps_(steps) {}

  // Nothing where only the whole schedule tells.
  std::optional<Price> price() {
    if (steps_ <= steps_built || problem_.model.layers < fewest_layers) return std::nullopt;
    miniatures_ = reuse_.miniatures(problem_, policy_, steps_built);
    if (!miniatures_) return std::nullopt;
    std::optional<Price> price = by_miniatures();
    // Miniatures are simulated with the drives' write cache full, as simulate_long_run() begins.
    if (!price || may_stay_in_cache(*price)) return std::nullopt;
    price->tasks = tasks_;
    return price;
  }

 private:
  // Two miniatures have to tell the same.
  std::optional<Price> by_miniatures() {
    const int period = miniatures_->period;
    const std::int64_t layers = problem_.model.layers;
    std::optional<SimulatedPart> smaller;
    for (const int at_ends : layers_at_ends) {
      const std::int64_t few = miniature_layers(layers, period, at_ends + 2 * period);
      if (few > layers / whole_to_part) return std::nullopt;
      std::optional<SimulatedPart> part = miniature(few);
      if (!part) return std::nullopt;
      if (part->grows(period)) {
        if (!smaller) smaller = miniature(few - period);
        if (!smaller || !tell_memory(*part, *smaller) || !tell_time(*part, *smaller))
          return std::nullopt;
        Price price = price_of(*part);
        price.store = whole_store(*part, *smaller);
        return price;
      }
      smaller = std::move(part);
    }
    return std::nullopt;
  }
  Price price_of(const SimulatedPart& part) const {
    Price price;
    price.fits = true;
    price.policy = part.schedule().policy();
    for (const Tier tier : tiers)
      price.memory[static_cast<std::size_t>(tier)] = part.schedule().use(tier);
    price.is_extrapolated = true;
    price.schedule_tasks = part.tasks_of(problem_, steps_);
    price.set(part.result_of(problem_));
    return price;
  }
  // Nothing where it does not fit, or its steps are not alike.
  std::optional<SimulatedPart> miniature(std::int64_t layers) {
    const Schedule schedule = reuse_.miniature(problem_, layers);
    tasks_ += schedule.tasks_emitted();
    if (!schedule.fits()) return std::nullopt;
    tasks_ += schedule.tasks().size();
    std::optional<SimulatedPart> part(std::in_place, schedule);
    if (!part->repeats()) return std::nullopt;
    return part;
  }

  bool may_stay_in_cache(const Price& price) const {
    const std::optional<WriteCache> cache = write_cache_of(problem_.machine);
    const double written = price.ssd_bytes_written_per_step;
    return cache && written > 0 && cache->holds(written, price.step_seconds);
  }

  // By what a period of layers adds; the ssd tier of a miniature is that of the whole.
  StoreBytes whole_store(const SimulatedPart& part, const SimulatedPart& smaller) const {
    const StoreBytes more = store_bytes(part.schedule(), true),
                     less = store_bytes(smaller.schedule(), true);
    const auto periods =
        static_cast<std::uint64_t>((problem_.model.layers - part.layers()) / miniatures_->period);
    const auto whole = [&](std::uint64_t StoreBytes::*bytes) {
      return more.*bytes + periods * (more.*bytes - less.*bytes);
    };
    StoreBytes store;
    store.tier = more.tier;
    for (const auto bytes : {&StoreBytes::second_copies, &StoreBytes::memory_copies,
                             &StoreBytes::record, &StoreBytes::first_fill})
      store.*bytes = whole(bytes);
    store.records = record_file_bytes(store.record);
    store.on_set[0] = store.all();  // miniatures are of one set
    return store;
  }

  static bool is_close(const TierUse& use, double margin) {
    const auto limit = static_cast<double>(use.capacity_bytes);
    return use.peak_bytes > 0 && static_cast<double>(use.peak_bytes) > limit * (1 - margin);
  }
  // Whether it is sure that the whole fits, too.
  bool tell_memory(const SimulatedPart& part, const SimulatedPart& smaller) const {
    return std::all_of(tiers.begin(), tiers.end(), [&](Tier tier) {
      const TierUse &use = part.schedule().use(tier), &other = smaller.schedule().use(tier);
      const auto live = static_cast<double>(use.live_peak_bytes);
      const auto expected = static_cast<double>(miniatures_->live[static_cast<std::size_t>(tier)]);
      const bool is_exact =
          use.peak_bytes == other.peak_bytes && use.live_peak_bytes == other.live_peak_bytes;
      const bool has_gaps = static_cast<double>(use.peak_bytes) > (1 + most_gaps) * live;
      return std::abs(live - expected) <= most_uneven_bytes * expected && (is_exact || !has_gaps) &&
             !is_close(use, is_exact ? close_to_limit : close_if_uneven);
    });
  }
  bool tell_time(const SimulatedPart& part, const SimulatedPart& smaller) const {
    const double one = part.step_seconds(problem_.model.layers, part);
    return std::abs(one - smaller.step_seconds(problem_.model.layers, part)) <=
           most_uneven_time * one;
  }

  ScheduleReuse& reuse_;
  const Problem& problem_;
  const std::string& policy_;
  const int steps_;
  std::optional<Miniatures> miniatures_;
  std::uint64_t tasks_ = 0;
};

}  // namespace

void Price::set(SimulationResult of) {
  step_seconds = of.step_seconds;
  tokens_per_second = of.tokens_per_second;
  bound_seconds = of.bound_seconds;
  bound_by = of.bound_by;
  ssd_bytes_written_per_step = of.ssd_bytes_written_per_step;
  of.tasks.clear();
  result = std::move(of);
}

Price price_of(const Evaluation& evaluation) {
  const Schedule& schedule = evaluation.schedule;
  Price price;
  price.fits = schedule.fits();
  price.policy = schedule.policy();
  price.tasks = evaluation.tasks;
  price.schedule_tasks = schedule.tasks().size();
  price.store = store_bytes(schedule, true);
  price.memory = tier_uses(schedule);
  if (evaluation.result) price.set(*evaluation.result);
  return price;
}

std::optional<Price> quick_price(const Problem& problem, const std::string& policy, int steps) {
  ScheduleReuse none;
  return quick_price_with(none, problem, policy, steps);
}

std::optional<Price> quick_price_with(ScheduleReuse& reuse, const Problem& problem,
                                      const std::string& policy, int steps) {
  if (problem.workload.pipeline > 1) return std::nullopt;
  try {
    return Pricing(reuse, problem, policy, steps).price();
  } catch (const InputError&) {  // evaluate() says it of the whole problem
    return std::nullopt;
  }
}

Price price(const Problem& problem, const std::string& policy, int steps) {
  if (std::optional<Price> price = quick_price(problem, policy, steps)) return *std::move(price);
  EvaluationReuse none;
  return price_of(evaluate_with(none, problem, policy, steps, false));
}

}  // namespace spillway
