#include "experiments/plan/price.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>

#include "base/errors.hpp"
#include "policies/common/miniature.hpp"
#include "sim/steady_state.hpp"

namespace spillway {

namespace {

// Fewer steps are no steady state, and fewer layers leave nothing to be told from miniatures.
constexpr int fewest_steps = 4;
constexpr std::int64_t fewest_layers = 24;
// Miniatures together have at most this share of the layers: with more, the whole costs less.
constexpr double most_of_layers = 1;
// How far the whole may be from what the last three miniatures say, if it grows as unevenly as they
// do: relative.
constexpr double most_uneven_time = 2e-4, most_uneven_bytes = 5e-4;
// What is as close as this to a limit of memory is built in full.
constexpr double close_to_limit = 1e-3;

// What grows with the number of layers by the same amount each.
enum Quantity : std::size_t {
  step_seconds,
  forward_seconds,
  backward_seconds,
  optimizer_seconds,
  flops,
  tasks,
  quantity_count
};

struct Sample {
  std::int64_t layers = 0;
  std::array<double, quantity_count> quantities{};
  std::array<TierUse, tier_count> memory{};  // beside that of the other layers
  std::array<LaneUse, lane_count> lanes{};
  std::vector<ResourceUse> resources;
  bool time_is_extrapolated = false;
};

// The value for `layers`, by the line through the last two of three samples of evenly spaced
// numbers of layers.
struct Line {
  double value = 0;
  double uneven = 0;  // by how much `value` were wrong if each more layer differed as these do
};

using Three = std::array<const Sample*, 3>;

template <class Get>
Line line_of(const Three& samples, std::int64_t layers, const Get& get) {
  const double one = get(*samples[0]), two = get(*samples[1]), three = get(*samples[2]);
  const auto apart = static_cast<double>(samples[2]->layers - samples[1]->layers);
  const double periods = static_cast<double>(layers - samples[2]->layers) / apart;
  return {three + (three - two) * periods, std::abs(three - 2 * two + one) * periods};
}

class ByMiniatures {
 public:
  ByMiniatures(const Problem& problem, const Miniatures& miniatures, int steps)
      : problem_(problem), miniatures_(miniatures), steps_(steps) {}

  // Nothing where miniatures do not agree.
  std::optional<Price> price() {
    for (const int period : {miniatures_.period, 3 * miniatures_.period}) {
      Three three{};
      for (int nth = 0; nth < 3; ++nth) {
        three[static_cast<std::size_t>(nth)] =
            sample(miniature_layers(problem_.model.layers, period, nth));
        if (three[static_cast<std::size_t>(nth)] == nullptr) return std::nullopt;
      }
      if (std::optional<Price> price = extrapolated(three)) return price;
      if (is_close_) return std::nullopt;
    }
    return std::nullopt;
  }

 private:
  // Null where its steps are not alike, or where it makes miniatures no less work than the whole.
  const Sample* sample(std::int64_t layers) {
    const auto known = samples_.find(layers);
    if (known != samples_.end()) return &known->second;
    layers_built_ += layers;
    if (static_cast<double>(layers_built_) >
        most_of_layers * static_cast<double>(problem_.model.layers))
      return nullptr;
    const Schedule schedule = build_miniature(problem_, miniatures_, layers, steps_built);
    const SimulationResult result = simulate(schedule);
    tasks_built_ += 2 * schedule.tasks().size();
    const std::vector<std::int64_t>& ends = result.step_ends_ns;
    const std::int64_t last = ends[steps_built - 1] - ends[steps_built - 2];
    const std::int64_t before = ends[steps_built - 2] - ends[steps_built - 3];
    if (std::abs(last - before) > 2 + last / 1'000'000) return nullptr;
    return &samples_.emplace(layers, sample_of(schedule, result)).first->second;
  }

  // From the last step, which is as the one before.
  Sample sample_of(const Schedule& schedule, const SimulationResult& result) const {
    Sample sample;
    sample.layers = schedule.problem().model.layers;
    sample.time_is_extrapolated = result.extrapolated;
    for (const Tier tier : {Tier::gpu, Tier::host, Tier::ssd})
      sample.memory[static_cast<std::size_t>(tier)] = schedule.use(tier);
    sample.lanes = result.lanes;
    sample.resources = result.resources;
    for (LaneUse& lane : sample.lanes) lane.busy_fraction = 0;
    const int last = schedule.steps() - 1;
    double in_step = 0;
    const std::span<const Task> tasks_of_all = schedule.tasks();
    for (std::size_t t = 0; t < tasks_of_all.size(); ++t) {
      const Task& task = tasks_of_all[t];
      if (task.step != last || task.phase == Phase::epilogue) continue;
      ++in_step;
      // Every step is like this one: what runs in a step of this one's length is what this one has.
      sample.lanes[static_cast<std::size_t>(task.lane)].busy_fraction +=
          static_cast<double>(result.tasks[t].end_ns - result.tasks[t].start_ns) * 1e-9;
    }
    auto& quantities = sample.quantities;
    quantities[step_seconds] = result.step_seconds;
    quantities[forward_seconds] = result.phases.forward;
    quantities[backward_seconds] = result.phases.backward;
    quantities[optimizer_seconds] = result.phases.optimizer;
    quantities[flops] = result.hardware_tflops * result.step_seconds;
    quantities[tasks] = static_cast<double>(tasks_of_all.size()) + in_step * (steps_ - last - 1);
    return sample;
  }

  template <class Get>
  double value(const Three& three, const Get& get) const {
    return line_of(three, problem_.model.layers, get).value;
  }

  // Nothing where the three are not on one line.
  std::optional<Price> extrapolated(const Three& three) {
    const Line seconds = line_of(three, problem_.model.layers,
                                 [](const Sample& s) { return s.quantities[step_seconds]; });
    if (seconds.uneven > most_uneven_time * seconds.value) return std::nullopt;
    Price price;
    price.policy = miniatures_.policy;
    price.is_extrapolated = true;
    price.fits = true;
    if (!tell_memory(price, three)) return std::nullopt;
    if (price.fits) tell_time(price, three);
    price.tasks = tasks_built_;
    return price;
  }

  // False where miniatures do not agree, or are too close to a limit to tell.
  bool tell_memory(Price& price, const Three& three) {
    price.memory = three[2]->memory;
    for (std::size_t tier = 0; tier < tier_count; ++tier) {
      const TierUse& use = price.memory[tier];
      const auto most = static_cast<double>(use.capacity_bytes);
      const auto bytes = static_cast<double>(use.peak_bytes);
      if (use.peak_bytes > use.capacity_bytes) price.fits = false;
      is_close_ = is_close_ || (bytes > 0 && std::abs(bytes - most) < close_to_limit * most);
      for (const Sample* other : {three[0], three[1]}) {
        const double differs = static_cast<double>(other->memory[tier].peak_bytes) - bytes;
        if (std::abs(differs) > most_uneven_bytes * bytes) return false;
      }
    }
    return !is_close_;
  }

  void tell_time(Price& price, const Three& three) const {
    const auto of_quantity = [&](Quantity quantity) {
      return value(three, [&](const Sample& s) { return s.quantities[quantity]; });
    };
    SimulationResult result;
    const double seconds = of_quantity(step_seconds);
    result.step_seconds = seconds;
    result.phases = {of_quantity(forward_seconds), of_quantity(backward_seconds),
                     of_quantity(optimizer_seconds)};
    result.hardware_tflops = of_quantity(flops) / seconds;
    result.extrapolated = three[2]->time_is_extrapolated;
    for (std::size_t lane = 0; lane < result.lanes.size(); ++lane) {
      const auto of_lane = [&](double LaneUse::*member) {
        return value(three, [&](const Sample& s) { return s.lanes[lane].*member; });
      };
      result.lanes[lane] = {of_lane(&LaneUse::busy_fraction) / seconds, of_lane(&LaneUse::bytes),
                            of_lane(&LaneUse::demand_seconds)};
    }
    for (std::size_t r = 0; r < three[2]->resources.size(); ++r) {
      const double demand =
          value(three, [&](const Sample& s) { return s.resources[r].demand_seconds; });
      result.resources.push_back({three[2]->resources[r].name, demand});
    }
    find_bound(result);
    set_rates(problem_, result);
    result.ssd_bytes_written_per_step =
        result.lanes[static_cast<std::size_t>(Lane::ssd_write)].bytes;
    price.schedule_tasks = static_cast<std::uint64_t>(std::llround(of_quantity(tasks)));
    price.set(std::move(result));
  }

  // The first one fills the pipeline; what the last two have in common is steady.
  static constexpr std::size_t steps_built = 3;

  const Problem& problem_;
  const Miniatures& miniatures_;
  const int steps_;
  std::map<std::int64_t, Sample> samples_;  // by number of layers
  std::int64_t layers_built_ = 0;
  bool is_close_ = false;
  std::uint64_t tasks_built_ = 0;
};

std::optional<Price> price_by_miniatures(const Problem& problem, const std::string& policy,
                                         int steps) {
  if (steps < fewest_steps || problem.model.layers < fewest_layers) return std::nullopt;
  try {
    const std::optional<Miniatures> miniatures = find_miniatures(problem, policy, steps);
    if (!miniatures) return std::nullopt;
    return ByMiniatures(problem, *miniatures, steps).price();
  } catch (const InputError&) {  // what evaluate() says of it is of the whole problem
    return std::nullopt;
  }
}

}  // namespace

void Price::set(SimulationResult one) {
  step_seconds = one.step_seconds;
  tokens_per_second = one.tokens_per_second;
  bound_seconds = one.bound_seconds;
  bound_by = one.bound_by;
  ssd_bytes_written_per_step = one.ssd_bytes_written_per_step;
  one.tasks.clear();
  result = std::move(one);
}

Price price_of(const Evaluation& evaluation) {
  const Schedule& schedule = evaluation.schedule;
  Price price;
  price.fits = schedule.fits();
  price.policy = schedule.policy();
  price.tasks = evaluation.tasks;
  price.schedule_tasks = schedule.tasks().size();
  for (const Tier tier : {Tier::gpu, Tier::host, Tier::ssd})
    price.memory[static_cast<std::size_t>(tier)] = schedule.use(tier);
  if (evaluation.result) price.set(*evaluation.result);
  return price;
}

Price price(const Problem& problem, const std::string& policy, int steps) {
  if (std::optional<Price> price = price_by_miniatures(problem, policy, steps)) return *price;
  return price_of(evaluate(problem, policy, steps));
}

}  // namespace spillway
