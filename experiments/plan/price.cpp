#include "experiments/plan/price.hpp"

#include <algorithm>
#include <cmath>

#include "base/errors.hpp"
#include "experiments/plan/recurrence.hpp"
#include "experiments/plan/write_cache.hpp"
#include "policies/common/schedule_reuse.hpp"
#include "sim/steady_state.hpp"

namespace spillway {

namespace {

// One step fills the pipeline, the next one stands for all, the last one follows it.
constexpr int steps_built = 3;
constexpr int middle_step = 1;
// A model of fewer layers is built in full.
constexpr std::int64_t fewest_layers = 40;
// Layers of miniatures, beside two periods; at most one in `whole_to_part` of all layers.
constexpr std::array layers_at_ends = {6, 8, 12, 16};
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

double sum(const PhaseSeconds& phases) {
  return phases.forward + phases.backward + phases.optimizer;
}

// A simulated miniature.
class Part {
 public:
  explicit Part(const Schedule& schedule)
      : schedule_(schedule),
        costed_(cost_schedule(schedule)),
        times_(simulate_activities(costed_.graph)),
        step_(repeated_step(schedule, times_)) {}

  const Schedule& schedule() const { return schedule_; }
  std::int64_t layers() const { return schedule_.problem().model.layers; }
  // Whether the last steps are alike.
  bool repeats() const { return step_.has_value(); }
  // Whether its layers repeat, so that it tells how long more of them take.
  bool grows(int period) {
    period_ = period;
    if (repeats() && layers_are_alike()) growth_ = growth_by_layers(schedule_, times_, period);
    return growth_.has_value();
  }
  // By the growth of `other`.
  double step_seconds(std::int64_t layers, const Part& other) const {
    return sum(*step_) +
           sum(*other.growth_) / other.period_ * static_cast<double>(layers - this->layers());
  }

  Price price_of(const Problem& problem, int steps) {
    periods_ = static_cast<double>(problem.model.layers - layers()) / period_;
    Price price;
    price.fits = true;
    price.policy = schedule_.policy();
    for (const Tier tier : tiers)
      price.memory[static_cast<std::size_t>(tier)] = schedule_.use(tier);
    price.is_extrapolated = true;
    price.schedule_tasks = tasks(steps);
    price.set(result_of(problem));
    return price;
  }

 private:
  // A layer of a period in the middle, or of the next one.
  bool is_middle(const Task& task, int nth = 0) const {
    const std::int64_t first = layers() / 2 - period_ + std::int64_t{period_} * nth;
    return task.layer >= first && task.layer < first + period_;
  }
  static bool is_in_step(const Task& task) {
    return task.step == middle_step && task.phase != Phase::epilogue;
  }
  // As far as tasks say: a barrier is of no layer, so there should be none.
  bool layers_are_alike() const {
    std::array<std::uint64_t, 2> tasks{}, bytes{};
    for (const Task& task : schedule_.tasks()) {
      if (task.layer < 0) return false;
      for (const int nth : {0, 1}) {
        if (!is_middle(task, nth)) continue;
        ++tasks[static_cast<std::size_t>(nth)];
        bytes[static_cast<std::size_t>(nth)] += task.bytes;
      }
    }
    return tasks[0] == tasks[1] && bytes[0] == bytes[1];
  }
  double whole(double of_part, double of_period) const { return of_part + of_period * periods_; }
  // Of the whole schedule.
  std::uint64_t tasks(int steps) const {
    double all = 0, more = 0;
    for (const Task& task : schedule_.tasks()) {
      const double times = is_in_step(task) ? steps - 2 : 1;
      all += times;
      if (is_middle(task)) more += times;
    }
    return static_cast<std::uint64_t>(std::llround(whole(all, more)));
  }

  SimulationResult result_of(const Problem& problem) const {
    const PhaseSeconds& more = *growth_;
    SimulationResult result;
    result.extrapolates = costed_.extrapolates;
    result.phases = {whole(step_->forward, more.forward), whole(step_->backward, more.backward),
                     whole(step_->optimizer, more.optimizer)};
    result.step_seconds = sum(result.phases);
    set_work(result);
    find_bound(result);
    set_rates(problem, result);
    return result;
  }
  void set_work(SimulationResult& result) const {
    const TaskWork all = work_of(schedule_, costed_.graph, is_in_step);
    const TaskWork more = work_of(schedule_, costed_.graph, [&](const Task& task) {
      return is_in_step(task) && is_middle(task);
    });
    for (std::size_t lane = 0; lane < result.lanes.size(); ++lane) {
      LaneUse& use = result.lanes[lane];
      use.bytes = whole(all.lanes[lane].bytes, more.lanes[lane].bytes);
      use.demand_seconds = whole(all.lanes[lane].demand_seconds, more.lanes[lane].demand_seconds);
    }
    for (std::size_t r = 0; r < all.resources.size(); ++r)
      result.resources.push_back({all.resources[r].name, whole(all.resources[r].demand_seconds,
                                                               more.resources[r].demand_seconds)});
    const std::span<const Task> tasks = schedule_.tasks();
    for (TaskId t = 0; t < tasks.size(); ++t) {
      if (!is_in_step(tasks[t])) continue;
      const double busy = static_cast<double>(times_[t].end_ns - times_[t].start_ns) * 1e-9;
      result.lanes[static_cast<std::size_t>(tasks[t].lane)].busy_fraction +=
          whole(busy, is_middle(tasks[t]) ? busy : 0) / result.step_seconds;
    }
    result.ssd_bytes_written_per_step =
        result.lanes[static_cast<std::size_t>(Lane::ssd_write)].bytes;
    result.hardware_tflops = whole(all.flops, more.flops) / result.step_seconds * 1e-12;
  }

  Schedule schedule_;
  CostedSchedule costed_;
  std::vector<ActivityTimes> times_;
  std::optional<PhaseSeconds> step_;
  int period_ = 0;
  std::optional<PhaseSeconds> growth_;  // with so many more layers
  double periods_ = 0;                  // that the whole has more
};

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
    std::optional<Part> smaller;
    for (const int at_ends : layers_at_ends) {
      const std::int64_t few = miniature_layers(layers, period, at_ends + 2 * period);
      if (few > layers / whole_to_part) return std::nullopt;
      std::optional<Part> part = miniature(few);
      if (!part) return std::nullopt;
      if (part->grows(period)) {
        if (!smaller) smaller = miniature(few - period);
        if (!smaller || !tell_memory(*part, *smaller) || !tell_time(*part, *smaller))
          return std::nullopt;
        return part->price_of(problem_, steps_);
      }
      smaller = std::move(part);
    }
    return std::nullopt;
  }
  // Nothing where it does not fit, or its steps are not alike.
  std::optional<Part> miniature(std::int64_t layers) {
    const Schedule schedule = reuse_.miniature(problem_, layers);
    tasks_ += schedule.tasks_emitted();
    if (!schedule.fits()) return std::nullopt;
    tasks_ += schedule.tasks().size();
    std::optional<Part> part(std::in_place, schedule);
    if (!part->repeats()) return std::nullopt;
    return part;
  }

  bool may_stay_in_cache(const Price& price) const {
    const std::optional<WriteCache> cache = write_cache_of(problem_.machine);
    const double written = price.ssd_bytes_written_per_step;
    return cache && written > 0 && cache->holds(written, price.step_seconds);
  }

  static bool is_close(const TierUse& use, double margin) {
    const auto limit = static_cast<double>(use.capacity_bytes);
    return use.peak_bytes > 0 && static_cast<double>(use.peak_bytes) > limit * (1 - margin);
  }
  // Whether it is sure that the whole fits, too.
  bool tell_memory(const Part& part, const Part& smaller) const {
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
  bool tell_time(const Part& part, const Part& smaller) const {
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
  for (const Tier tier : tiers) price.memory[static_cast<std::size_t>(tier)] = schedule.use(tier);
  if (evaluation.result) price.set(*evaluation.result);
  return price;
}

std::optional<Price> quick_price(const Problem& problem, const std::string& policy, int steps) {
  ScheduleReuse none;
  return quick_price_with(none, problem, policy, steps);
}

std::optional<Price> quick_price_with(ScheduleReuse& reuse, const Problem& problem,
                                      const std::string& policy, int steps) {
  try {
    return Pricing(reuse, problem, policy, steps).price();
  } catch (const InputError&) {  // evaluate() says it of the whole problem
    return std::nullopt;
  }
}

Price price(const Problem& problem, const std::string& policy, int steps) {
  if (std::optional<Price> price = quick_price(problem, policy, steps)) return *std::move(price);
  return price_of(evaluate(problem, policy, steps));
}

}  // namespace spillway
