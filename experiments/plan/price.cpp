#include "experiments/plan/price.hpp"

#include <algorithm>
#include <cmath>

#include "base/errors.hpp"
#include "policies/common/miniature.hpp"
#include "sim/steady_state.hpp"

namespace spillway {

namespace {

// The first step fills the pipeline; the two after it stand for all.
constexpr int steps_built = 3;
// Fewer layers leave nothing to be told from miniatures.
constexpr std::int64_t fewest_layers = 40;
// Relative to the step time: how much two steps may differ whose mean stands for all; how far the
// whole may be off if it grows as unevenly as three miniatures do.
constexpr double most_unlike = 1e-6, most_uneven = 1e-4;
// Relative to what more layers add to the step time: how long in that the GPU may be idle, and by
// how much more a lane may be late.
constexpr double most_idle = 1e-4, most_behind = 1e-2;
// What is as close as this to a limit of memory is built in full, relative: where miniatures take
// the same bytes, and where the gaps between their buffers differ.
constexpr double close_to_limit = 5e-4, close_if_uneven = 0.03;

constexpr std::array tiers = {Tier::gpu, Tier::host, Tier::ssd};

double seconds_between(std::int64_t begin_ns, std::int64_t end_ns) {
  return static_cast<double>(end_ns - begin_ns) * 1e-9;
}

// What tasks of a few steps tell of all: the last of these steps is as the one before.
struct Sample {
  std::int64_t layers = 0;
  std::array<TierUse, tier_count> memory{};
  SimulationResult result;  // of the last step
  double tasks = 0;         // of the whole schedule
  // By phase and lane: how long after the GPU's last task so far the lane ends what it does in that
  // phase.
  std::array<std::array<double, lane_count>, phase_count> late{};
};

bool is_of_last_step(const Schedule& schedule, const Task& task) {
  return task.step == schedule.steps() - 1 && task.phase != Phase::epilogue;
}

// Makes the step time the mean of the last two steps. False where these differ by too much.
bool take_mean(SimulationResult& result) {
  const std::vector<std::int64_t>& ends = result.step_ends_ns;
  const std::size_t n = ends.size();
  const double last = seconds_between(ends[n - 2], ends[n - 1]);
  const double before = seconds_between(ends[n - 3], ends[n - 2]);
  if (std::abs(last - before) > most_unlike * last) return false;
  result.step_seconds = (last + before) / 2;
  const double factor = result.step_seconds / last;
  for (double* phase : {&result.phases.forward, &result.phases.backward, &result.phases.optimizer})
    *phase *= factor;
  result.hardware_tflops /= factor;
  return true;
}

void set_late(const Schedule& schedule, const SimulationResult& result, Sample& sample) {
  constexpr auto gpu = static_cast<std::size_t>(Lane::gpu_compute);
  const std::span<const Task> tasks = schedule.tasks();
  for (std::size_t t = 0; t < tasks.size(); ++t) {
    if (!is_of_last_step(schedule, tasks[t])) continue;
    double& late = sample.late[static_cast<std::size_t>(tasks[t].phase)]
                              [static_cast<std::size_t>(tasks[t].lane)];
    late = std::max(late, seconds_between(0, result.tasks[t].end_ns));
  }
  double gpu_end = 0;
  for (auto& lanes : sample.late) {
    gpu_end = std::max(gpu_end, lanes[gpu]);
    for (double& late : lanes) late = late > 0 ? late - gpu_end : 0;
  }
}

// Of a schedule of fewer steps than `steps`.
Sample sample_of(const Schedule& schedule, SimulationResult result, int steps) {
  Sample sample;
  sample.layers = schedule.problem().model.layers;
  for (const Tier tier : tiers) sample.memory[static_cast<std::size_t>(tier)] = schedule.use(tier);
  sample.tasks = static_cast<double>(schedule.tasks().size());
  if (result.tasks.empty()) return sample;  // it does not fit
  set_late(schedule, result, sample);
  // Steps are alike: what runs while a step lasts is as much as it has itself.
  for (LaneUse& lane : result.lanes) lane.busy_fraction = 0;
  const std::span<const Task> tasks = schedule.tasks();
  double in_step = 0;
  for (std::size_t t = 0; t < tasks.size(); ++t) {
    if (!is_of_last_step(schedule, tasks[t])) continue;
    ++in_step;
    result.lanes[static_cast<std::size_t>(tasks[t].lane)].busy_fraction +=
        seconds_between(result.tasks[t].start_ns, result.tasks[t].end_ns) / result.step_seconds;
  }
  sample.tasks += in_step * (steps - schedule.steps());
  result.tasks.clear();
  result.step_ends_ns.clear();
  sample.result = std::move(result);
  return sample;
}

Price price_of(const Sample& sample, const std::string& policy) {
  Price price;
  price.policy = policy;
  price.memory = sample.memory;
  price.fits = std::all_of(price.memory.begin(), price.memory.end(),
                           [](const TierUse& use) { return use.peak_bytes <= use.capacity_bytes; });
  price.is_extrapolated = true;
  price.schedule_tasks = static_cast<std::uint64_t>(std::llround(sample.tasks));
  if (price.fits) price.set(sample.result);
  return price;
}

using Three = std::array<const Sample*, 3>;

// The value for `layers`, by the line through the last two of three samples with evenly spaced
// numbers of layers.
struct Line {
  double value = 0;
  double uneven = 0;  // by how much `value` were wrong if each more layer differed as these do
};

double periods_beyond(const Three& three, std::int64_t layers) {
  return static_cast<double>(layers - three[2]->layers) /
         static_cast<double>(three[2]->layers - three[1]->layers);
}

template <class Get>
Line line_of(const Three& three, std::int64_t layers, const Get& get) {
  const double one = get(*three[0]), two = get(*three[1]), last = get(*three[2]);
  const double periods = periods_beyond(three, layers);
  return {last + (last - two) * periods, std::abs(last - 2 * two + one) * periods};
}

// Whether the GPU computes all the time while more layers pass, and no lane falls behind it more
// and more, which may make it wait after some more layers. Lanes that run ahead of the GPU hold up
// nothing.
bool keep_pace(const Sample& one, const Sample& two) {
  const auto computing = [](const Sample& sample) {
    return sample.result.lanes[static_cast<std::size_t>(Lane::gpu_compute)].demand_seconds;
  };
  const double seconds = two.result.step_seconds - one.result.step_seconds;
  if (std::abs(seconds - (computing(two) - computing(one))) > most_idle * seconds) return false;
  for (std::size_t phase = 0; phase < phase_count; ++phase) {
    for (std::size_t lane = 0; lane < lane_count; ++lane) {
      if (two.late[phase][lane] - one.late[phase][lane] > most_behind * seconds) return false;
    }
  }
  return true;
}

// The whole, by what three miniatures have in common.
Sample whole_of(const Three& three, const Problem& problem, std::int64_t layers) {
  const auto value = [&](const auto& get) { return line_of(three, layers, get).value; };
  const auto of_result = [&](double SimulationResult::*member) {
    return value([&](const Sample& s) { return s.result.*member; });
  };
  const auto of_phase = [&](double PhaseSeconds::*member) {
    return value([&](const Sample& s) { return s.result.phases.*member; });
  };
  Sample whole = *three[2];
  whole.layers = layers;
  whole.tasks = value([](const Sample& s) { return s.tasks; });
  SimulationResult& result = whole.result;
  result.step_seconds = of_result(&SimulationResult::step_seconds);
  result.phases = {of_phase(&PhaseSeconds::forward), of_phase(&PhaseSeconds::backward),
                   of_phase(&PhaseSeconds::optimizer)};
  result.hardware_tflops =
      value([](const Sample& s) { return s.result.hardware_tflops * s.result.step_seconds; }) /
      result.step_seconds;
  for (std::size_t lane = 0; lane < result.lanes.size(); ++lane) {
    const auto of_lane = [&](const auto& get) {
      return value([&](const Sample& s) { return get(s.result.lanes[lane], s.result); });
    };
    result.lanes[lane].busy_fraction = of_lane([](const LaneUse& use, const SimulationResult& of) {
                                         return use.busy_fraction * of.step_seconds;
                                       }) /
                                       result.step_seconds;
    result.lanes[lane].bytes =
        of_lane([](const LaneUse& use, const SimulationResult&) { return use.bytes; });
    result.lanes[lane].demand_seconds =
        of_lane([](const LaneUse& use, const SimulationResult&) { return use.demand_seconds; });
  }
  for (std::size_t r = 0; r < result.resources.size(); ++r)
    result.resources[r].demand_seconds =
        value([&](const Sample& s) { return s.result.resources[r].demand_seconds; });
  result.ssd_bytes_written_per_step = of_result(&SimulationResult::ssd_bytes_written_per_step);
  find_bound(result);
  set_rates(problem, result);
  return whole;
}

// Finds the price of one policy, by the least work that tells.
class Pricing {
 public:
  Pricing(const Problem& problem, const std::string& policy, int steps)
      : problem_(problem), policy_(policy), steps_(steps) {}

  // Nothing where only the whole schedule tells.
  std::optional<Price> price() {
    if (steps_ <= steps_built) return std::nullopt;
    const std::optional<Miniatures> miniatures = find_miniatures(problem_, policy_, steps_built);
    if (!miniatures || !miniatures->in_rows) return std::nullopt;
    policy_ = miniatures->policy;
    std::optional<Price> price;
    if (problem_.model.layers >= fewest_layers) price = by_miniatures(*miniatures);
    if (price) price->tasks = tasks_;
    return price;
  }

 private:
  // By fewer layers: nothing where they do not repeat evenly.
  std::optional<Price> by_miniatures(const Miniatures& miniatures) {
    const std::int64_t layers = problem_.model.layers;
    std::array<std::optional<Sample>, 3> samples;
    for (std::size_t nth = 0; nth < 3; ++nth) {
      const std::int64_t few = miniature_layers(layers, miniatures.period, static_cast<int>(nth));
      const Schedule schedule = build_miniature(problem_, miniatures, few, steps_built);
      if (!schedule.fits()) return std::nullopt;
      samples[nth] = sample_of(schedule);
      if (!samples[nth]) return std::nullopt;
      if (nth > 0 && !keep_pace(*samples[nth - 1], *samples[nth])) return std::nullopt;
    }
    const Three three = {&*samples[0], &*samples[1], &*samples[2]};
    const Line seconds =
        line_of(three, layers, [](const Sample& s) { return s.result.step_seconds; });
    if (seconds.uneven > most_uneven * seconds.value) return std::nullopt;
    Sample whole = whole_of(three, problem_, layers);
    if (!tell_memory(three, whole)) return std::nullopt;
    return price_of(whole, miniatures.policy);
  }

  // Nothing where its steps are not alike. What does not fit is not simulated.
  std::optional<Sample> sample_of(const Schedule& schedule) {
    tasks_ += schedule.tasks_emitted();
    SimulationResult result;
    if (schedule.fits()) {
      result = simulate(schedule);
      tasks_ += schedule.tasks().size();
      if (!take_mean(result)) return std::nullopt;
      set_rates(problem_, result);
    }
    return spillway::sample_of(schedule, std::move(result), steps_);
  }

  static bool is_close(const TierUse& most, const TierUse& least, double margin) {
    const auto limit = static_cast<double>(most.capacity_bytes);
    return most.peak_bytes > 0 && static_cast<double>(most.peak_bytes) > limit * (1 - margin) &&
           static_cast<double>(least.live_peak_bytes) < limit * (1 + margin);
  }

  // The most that one of them takes. False where that is too close to a limit to tell.
  static bool tell_memory(const Three& three, Sample& whole) {
    for (std::size_t tier = 0; tier < tier_count; ++tier) {
      TierUse most = three[0]->memory[tier], least = most;
      for (const Sample* sample : three) {
        const TierUse& use = sample->memory[tier];
        if (use.peak_bytes > most.peak_bytes) most = use;
        if (use.peak_bytes < least.peak_bytes) least = use;
      }
      whole.memory[tier] = most;
      const bool is_exact = most.peak_bytes == least.peak_bytes;
      if (is_close(most, least, is_exact ? close_to_limit : close_if_uneven)) return false;
    }
    return true;
  }

  const Problem& problem_;
  std::string policy_;
  const int steps_;
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
  try {
    return Pricing(problem, policy, steps).price();
  } catch (const InputError&) {  // evaluate() says it of the whole problem
    return std::nullopt;
  }
}

Price price(const Problem& problem, const std::string& policy, int steps) {
  if (std::optional<Price> price = quick_price(problem, policy, steps)) return *std::move(price);
  return price_of(evaluate(problem, policy, steps));
}

}  // namespace spillway
