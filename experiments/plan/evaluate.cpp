#include "experiments/plan/evaluate.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <utility>

#include "base/errors.hpp"
#include "experiments/plan/all_ranks.hpp"
#include "experiments/plan/price.hpp"
#include "experiments/plan/write_cache.hpp"

namespace spillway {

namespace {

// The stages of a pipeline, simulated together.
Evaluation evaluate_pipeline(const Problem& problem, const std::string& policy, int steps);

class Stopwatch {
 public:
  double seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - began_).count();
  }

 private:
  std::chrono::steady_clock::time_point began_ = std::chrono::steady_clock::now();
};

Evaluation evaluate_pipeline(const Problem& problem, const std::string& policy, int steps) {
  const Stopwatch building;
  std::vector<Schedule> schedules;
  Problem of_stage = problem;
  for (of_stage.rank = 0; of_stage.rank < static_cast<int>(problem.workload.pipeline);
       ++of_stage.rank)
    schedules.push_back(
        build_schedule(of_stage, schedules.empty() ? policy : schedules[0].policy(), steps));
  const auto fits = [](const Schedule& schedule) { return schedule.fits(); };
  const auto lacks = std::find_if_not(schedules.begin(), schedules.end(), fits);
  Evaluation evaluation{lacks == schedules.end() ? schedules.front() : *lacks, {}, 0, 0, 0, false};
  evaluation.schedule_seconds = building.seconds();
  for (const Schedule& schedule : schedules) {
    evaluation.tasks += schedule.tasks_emitted() + schedule.tasks().size();
    StageEvaluation& stage = evaluation.stages.emplace_back();
    stage.layers = schedule.problem().model.layers;
    for (const Tier tier : memories_of(schedule.problem().machine))
      stage.peaks[static_cast<std::size_t>(tier)] = schedule.use(tier).peak_bytes;
  }
  if (lacks != schedules.end()) return evaluation;
  const Stopwatch simulating;
  std::vector<SimulationResult> results;
  evaluation.result = simulate_stages(schedules, schedules.front().problem().machine, &results);
  for (std::size_t stage = 0; stage < results.size(); ++stage)
    evaluation.stages[stage].computes =
        results[stage].lanes[static_cast<std::size_t>(Lane::gpu_compute)].busy_fraction;
  evaluation.simulate_seconds = simulating.seconds();
  return evaluation;
}

}  // namespace

Evaluation evaluate(const Problem& problem, const std::string& policy, int steps) {
  EvaluationReuse none;
  return evaluate_with(none, problem, policy, steps, true);
}

Evaluation evaluate_with(EvaluationReuse& reuse, const Problem& problem, const std::string& policy,
                         int steps, bool asks_times) {
  if (problem.workload.pipeline > 1) return evaluate_pipeline(problem, policy, steps);
  const Stopwatch building;
  Evaluation evaluation{
      reuse.schedules.build(problem, policy, steps), std::nullopt, 0, 0, 0, false};
  evaluation.schedule_seconds = building.seconds();
  evaluation.tasks = evaluation.schedule.tasks_emitted();
  if (!evaluation.schedule.fits()) return evaluation;
  const Stopwatch simulating;
  const Schedule& schedule = evaluation.schedule;
  if (asks_times) {
    evaluation.result = simulate_long_run(schedule, schedule.problem().machine);
  } else {
    SteadyResult steady = reuse.results.of(schedule);
    evaluation.result = std::move(steady.result);
    evaluation.by_some_steps = steady.by_some_steps;
  }
  evaluation.simulate_seconds = simulating.seconds();
  evaluation.tasks += evaluation.schedule.tasks().size();
  return evaluation;
}

Evaluation evaluate_on_gpu(Problem problem, const std::string& policy, int steps) {
  problem.use_gpu_sequences_at_once();
  return evaluate(problem, policy, steps);
}

bool is_measured_gpu(const Machine& machine) {
  return machine.backend() == Backend::cuda && !machine.kernels.empty();
}

EvaluateOne evaluation_on(const Machine& machine) {
  if (is_measured_gpu(machine)) return evaluate_on_gpu;
  return evaluate;
}

std::vector<std::int64_t> micro_batch_candidates(std::int64_t batch) {
  std::vector<std::int64_t> candidates;
  for (std::int64_t parts = 1; parts <= std::min(batch, most_micro_batches); ++parts) {
    if (batch % parts == 0) candidates.push_back(batch / parts);
  }
  return candidates;
}

std::vector<std::int64_t> spread_out(const std::vector<std::int64_t>& candidates) {
  constexpr std::size_t few = 16;
  if (candidates.size() <= few) return candidates;
  std::vector<std::int64_t> all;
  for (const std::int64_t one : candidates) {
    if (all.empty() || 4 * one < 3 * all.back() || one == candidates.back()) all.push_back(one);
  }
  return all;
}

std::vector<std::int64_t> candidates_beside(std::int64_t best,
                                            const std::vector<std::int64_t>& candidates) {
  const std::vector<std::int64_t> spread = spread_out(candidates);
  const auto at = std::find(spread.begin(), spread.end(), best);
  std::vector<std::int64_t> beside;
  if (at == spread.end()) return beside;
  const std::int64_t above = at == spread.begin() ? best : *std::prev(at);
  const std::int64_t below = std::next(at) == spread.end() ? best : *std::next(at);
  for (const std::int64_t one : candidates) {
    if (one < above && one > below && one != best) beside.push_back(one);
  }
  return beside;
}

namespace {

// The divisors of the batch below the candidates, the largest first.
std::vector<std::int64_t> smaller_micro_batches(std::int64_t batch) {
  std::vector<std::int64_t> smaller;
  for (std::int64_t size = batch / (most_micro_batches + 1); size >= 1; --size) {
    if (batch % size == 0) smaller.push_back(size);
  }
  return smaller;
}

// How much of the memory that a schedule needs is not there, as the largest share of a tier's.
double shortage(const Schedule& schedule) {
  double largest = 0;
  for (const Tier tier : memories_of(schedule.problem().machine)) {
    const TierUse& use = schedule.use(tier);
    if (use.peak_bytes <= use.capacity_bytes) continue;
    largest = std::max(largest, static_cast<double>(use.peak_bytes) /
                                    std::max(1.0, static_cast<double>(use.capacity_bytes)));
  }
  return largest;
}

// The search of evaluate_best_micro_batch().
class MicroBatchSearch {
 public:
  MicroBatchSearch(Problem problem, const std::string& policy, int steps,
                   const EvaluateOne& evaluate_one, std::uint64_t most_tasks)
      : problem_(std::move(problem)),
        policy_(policy),
        steps_(steps),
        evaluate_one_(evaluate_one),
        most_tasks_(most_tasks) {}

  Evaluation best() {
    const std::int64_t batch = problem_.workload.rank_batch();
    const std::vector<std::int64_t> candidates = micro_batch_candidates(batch);
    for (const std::int64_t micro_batch : spread_out(candidates)) attempt(micro_batch);
    if (best_) {
      const std::int64_t best = best_->schedule.problem().workload.micro_batch;
      for (const std::int64_t micro_batch : candidates_beside(best, candidates))
        attempt(micro_batch);
    }
    // Many micro-batches gain nothing, but may be the only ones that fit.
    for (const std::int64_t micro_batch : smaller_micro_batches(batch)) {
      if (best_) break;
      attempt(micro_batch);
    }
    if (!best_ && nearest_) best_ = nearest_in_full();
    if (!best_) std::rethrow_exception(refused_);
    best_->tasks = tasks_;
    if (!best_->result) best_->left_untried = left_untried_;
    return std::move(*best_);
  }

 private:
  // Until one fits, short schedules tell which do not: longer ones need no less memory.
  void attempt(std::int64_t micro_batch) {
    if (!best_) {
      std::optional<Evaluation> trial =
          evaluate(micro_batch, std::min(steps_, trial_steps), most_tasks_);
      if (!trial && was_too_long_) left_untried_ = std::max(left_untried_, micro_batch);
      if (!trial) return;
      if (!trial->result) return keep_if_nearest(std::move(*trial));
    }
    if (best_ && is_slower(micro_batch)) return;
    // The first that seems to fit may be long: it is an answer, which others only improve on.
    std::optional<Evaluation> one =
        evaluate(micro_batch, steps_, best_ ? most_tasks_ : tasks_ + most_tasks_of_first);
    if (!one) return;
    if (!one->result) return keep_if_nearest(std::move(*one));
    if (!best_ || one->result->tokens_per_second > best_->result->tokens_per_second)
      best_ = std::move(one);
  }

  // Whether the price, which may be off by a thousandth, rules out that it is the fastest so far.
  bool is_slower(std::int64_t micro_batch) {
    constexpr double surely = 1 - 2e-3;
    // What is evaluated on a GPU is another problem than this one.
    if (is_measured_gpu(problem_.machine)) return false;
    problem_.workload.micro_batch = micro_batch;
    try {
      const std::optional<Price> one = quick_price(problem_, policy_, steps_);
      if (!one) return false;
      tasks_ += one->tasks;
      return one->tokens_per_second < surely * best_->result->tokens_per_second;
    } catch (const InputError&) {
      return false;  // evaluate() says why
    }
  }

  // Nothing: more tasks than are left, or a cut that does not go with the other settings, such as
  // 16-bit gradients with several micro-batches. The next one may.
  std::optional<Evaluation> evaluate(std::int64_t micro_batch, int steps,
                                     std::uint64_t most_tasks) {
    const auto visits = static_cast<double>(problem_.workload.rank_batch() / micro_batch * steps);
    // A trial that does not fit is not simulated.
    const double share = steps < steps_ ? 1.0 / share_of_planning : 1;
    const double expected = static_cast<double>(tasks_) + visits * tasks_of_visit_ * share;
    const bool has_answer = best_ || nearest_;
    was_too_long_ = has_answer && expected > static_cast<double>(most_tasks);
    if (was_too_long_) return {};
    problem_.workload.micro_batch = micro_batch;
    try {
      Evaluation one = evaluate_one_(problem_, policy_, steps);
      // What does not fit is not simulated, and quickly known.
      tasks_ += one.result ? one.tasks : one.tasks / share_of_planning;
      tasks_of_visit_ = static_cast<double>(one.tasks) / visits;
      return one;
    } catch (const InputError&) {
      if (!refused_) refused_ = std::current_exception();
      return {};
    }
  }

  void keep_if_nearest(Evaluation one) {
    if (!nearest_ || shortage(one.schedule) < shortage(nearest_->schedule))
      nearest_ = std::move(one);
  }
  // With all steps, unless that is too long.
  Evaluation nearest_in_full() {
    if (nearest_->schedule.steps() == steps_) return std::move(*nearest_);
    std::optional<Evaluation> whole = evaluate(nearest_->schedule.problem().workload.micro_batch,
                                               steps_, tasks_ + most_tasks_tried);
    return std::move(whole ? *whole : *nearest_);
  }

  static constexpr int trial_steps = 1;
  static constexpr std::uint64_t most_tasks_of_first = 3 * most_tasks_tried;
  // To emit tasks takes so small a part of what it takes to emit and to simulate them.
  static constexpr std::uint64_t share_of_planning = 4;

  Problem problem_;
  const std::string& policy_;
  const int steps_;
  const EvaluateOne& evaluate_one_;
  const std::uint64_t most_tasks_;
  std::uint64_t tasks_ = 0;                   // of all that was evaluated
  double tasks_of_visit_ = 0;                 // of a micro-batch in a step, as far as is known
  std::optional<Evaluation> best_, nearest_;  // that fits; that lacks least of those that do not
  bool was_too_long_ = false;                 // what was asked for last
  std::int64_t left_untried_ = 0;
  std::exception_ptr refused_;
};

}  // namespace

std::string untried_text(const Evaluation& evaluation) {
  const std::int64_t untried = evaluation.left_untried;
  if (untried == 0) return "";
  return fmt::format("; micro-batches of {}{}, which take long to plan, were not tried", untried,
                     untried > 1 ? " and fewer" : "");
}

Evaluation evaluate_best_micro_batch(Problem problem, const std::string& policy, int steps,
                                     const EvaluateOne& evaluate_one, std::uint64_t most_tasks) {
  return MicroBatchSearch(std::move(problem), policy, steps, evaluate_one, most_tasks).best();
}

}  // namespace spillway
