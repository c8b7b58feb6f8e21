#include "experiments/tune/tune.hpp"

#include <algorithm>

#include "experiments/plan/all_ranks.hpp"
#include "experiments/plan/price.hpp"
#include "experiments/tune/relax.hpp"
#include "experiments/tune/seeds.hpp"

namespace spillway {

namespace {

std::vector<PricedTrial> best_first(const Pricer& pricer) {
  const std::map<Trial, TrialPrice>& known = pricer.known();
  const Ranking ranking(known, pricer.problem().model);
  std::vector<PricedTrial> all;
  for (const auto& one : known) {
    if (one.second.fits) all.push_back(one);
  }
  std::stable_sort(all.begin(), all.end(), [&](const PricedTrial& a, const PricedTrial& b) {
    return ranking.of(a.second) < ranking.of(b.second);
  });
  return all;
}

// The fastest plan whose store fits the drives, too. Prices are extrapolated: the fastest few are
// evaluated in full, and are known by what comes of it.
std::optional<Tuned> in_full(Pricer& pricer, const WholeRun& run) {
  constexpr std::size_t few = 3, most = 12;
  std::optional<Tuned> best;
  Ranking::Rank least{};  // its own
  const Ranking ranking(pricer.known(), pricer.problem().model);
  const std::vector<PricedTrial> all = best_first(pricer);
  bool has_other = false;  // of another policy than spillway: no answer is slower than those
  for (std::size_t k = 0; k < all.size(); ++k) {
    const auto& [trial, price] = all[k];
    const bool is_other = trial.policy.rfind("spillway", 0) != 0;
    if (k >= (best ? few : most) && (has_other || !is_other)) continue;
    has_other = has_other || is_other;
    Evaluation one = evaluate(pricer.problem_with(trial.micro_batch), price.settled);
    const Ranking::Rank rank = ranking.of(pricer.correct(trial, price_of(one)));
    if (!one.result) continue;
    const Wear wear = wear_of(one.schedule, &*one.result, run);
    if (!fits_drives(wear.store, one.schedule.problem().machine)) continue;
    if (best && rank >= least) continue;
    least = rank;
    best = Tuned{std::move(one), wear};
  }
  return best;
}

std::vector<PricedTrial> best_of_each(const std::vector<PricedTrial>& all) {
  std::vector<PricedTrial> best;
  const auto name_of = [](const PricedTrial& one) {
    return one.first.policy.substr(0, one.first.policy.find(':'));
  };
  for (const PricedTrial& one : all) {
    const bool is_known = std::any_of(best.begin(), best.end(), [&](const PricedTrial& other) {
      return name_of(other) == name_of(one);
    });
    if (!is_known && name_of(one) != "spillway") best.push_back(one);
  }
  return best;
}

// Of built-in policies at their defaults.
std::vector<PricedTrial> published_of(std::vector<PricedTrial> all) {
  const std::vector<std::string> names = published_policies();
  std::erase_if(all, [&](const PricedTrial& one) {
    return std::find(names.begin(), names.end(), one.first.policy) == names.end();
  });
  return best_of_each(all);
}

std::chrono::steady_clock::duration part_of(double seconds) {
  return std::chrono::duration_cast<std::chrono::steady_clock::duration>(
      std::chrono::duration<double>(seconds));
}

}  // namespace

std::vector<BoundCase> bounds_of(const Problem& problem, bool choose_micro_batch) {
  std::vector<BoundCase> all = lower_bounds(problem);
  if (!choose_micro_batch) {
    std::erase_if(
        all, [&](const BoundCase& one) { return one.micro_batch != problem.workload.micro_batch; });
  }
  return all;
}

double TuneResult::gap() const {
  if (!best) return 0;
  const double seconds = best->evaluation.result->step_seconds;
  return std::max(0.0, 1 - bound.seconds / seconds);
}

namespace {

SearchLimits limits_of(const TuneOptions& options) {
  SearchLimits limits;
  limits.effort = options.effort;
  limits.tasks = default_tasks / default_effort * options.effort;
  limits.choose_micro_batch = options.choose_micro_batch;
  limits.seed = options.seed;
  limits.progress = options.progress;
  return limits;
}

// What was found on a machine with more of something may be good on this one, too; and what is best
// here is at least as good there.
void exchange(Pricer& pricer, std::vector<Relaxation>& relaxations, Trial best,
              double best_seconds) {
  std::vector<std::function<void()>> jobs;
  for (const Relaxation& one : relaxations) jobs.push_back([&] { pricer.price(one.plan); });
  pricer.run(jobs);
  for (const Relaxation& one : relaxations) {
    const TrialPrice here = pricer.price(one.plan);
    if (!here.fits || here.step_seconds >= best_seconds) continue;
    best_seconds = here.step_seconds;
    best = one.plan;
  }
  for (Relaxation& one : relaxations) {
    if (best_seconds < one.step_seconds) {
      one.step_seconds = best_seconds;
      one.plan = best;
    }
    one.gain = 1 - one.step_seconds / best_seconds;
  }
  std::stable_sort(
      relaxations.begin(), relaxations.end(),
      [](const Relaxation& a, const Relaxation& b) { return a.step_seconds < b.step_seconds; });
}

}  // namespace

TuneResult tune(const Problem& problem, const TuneOptions& options) {
  require_no_stages(problem);
  const auto began = std::chrono::steady_clock::now();
  Pricer pricer(problem, options.threads, options.settle, options.journal);
  TuneResult result;
  const std::vector<BoundCase> bounds = bounds_of(problem, options.choose_micro_batch);
  if (!bounds.empty()) result.bound = bounds.front();
  // A fifth of the time for what follows the search.
  if (options.budget_seconds)
    pricer.stop_at(began + part_of(*options.budget_seconds * (options.explains ? 0.8 : 0.95)));
  PlanSearch search(pricer, limits_of(options), bounds);
  search.run();
  if (const auto best = search.best(); best && options.explains) {
    TuneOptions rest = options;
    if (options.budget_seconds) {
      const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - began;
      rest.budget_seconds = std::max(0.0, *options.budget_seconds - passed.count());
    }
    const Trial plan{best->first.micro_batch, best->second.settled};
    result.relaxations = relax(problem, rest, plan);
    exchange(pricer, result.relaxations, plan, best->second.step_seconds);
  }
  result.best = in_full(pricer, options.run);
  result.front = pareto_front(pricer.known());
  const std::vector<PricedTrial> all = best_first(pricer);
  result.runners_up = best_of_each(all);
  result.published = published_of(all);
  if (!result.best) result.nearest = pricer.nearest();
  result.explored = pricer.explored();
  result.stopped_by_clock = pricer.was_stopped();
  return result;
}

}  // namespace spillway
