#include "experiments/questions/planner.hpp"

#include <algorithm>
#include <memory>
#include <utility>

#include "base/errors.hpp"
#include "experiments/plan/hints.hpp"

namespace spillway {

namespace {

// Policies on trial, the one that fitted last first.
class PoliciesOnTrial {
 public:
  PoliciesOnTrial(const PlansAsked& asked, const TrialBounds& bounds)
      : question_(question_of(asked)), trials_(question_, bounds) {}

  std::optional<Fit> fit(const Problem& problem) {
    const Way first{question_.policies[last_], problem.workload.micro_batch};
    std::optional<Fit> nearest;
    if (consider(problem, first, nearest)) return nearest;
    for (std::size_t i = 0; i < question_.policies.size(); ++i) {
      if (i == last_) continue;
      if (!consider(problem, {question_.policies[i], first.micro_batch}, nearest)) continue;
      last_ = i;
      break;
    }
    return nearest;
  }
  void begin() { trials_.begin(); }
  bool cut_short() const { return trials_.cut_short(); }

  // Whether the policy fits with some micro-batch. Takes nothing of what fit() may take.
  bool fits_somehow(const Problem& problem, const std::string& policy) const {
    FitTrials trials(question_);
    trials.begin_remedy();
    const std::vector<std::int64_t> sizes = micro_batch_candidates(problem.workload.rank_batch());
    return std::any_of(sizes.begin(), sizes.end(), [&](std::int64_t size) {
      const std::optional<Need> need =
          trials.trial(problem, {policy, size}, question_.durability.on());
      return need && need->fits();
    });
  }

 private:
  static FitQuestion question_of(const PlansAsked& asked) {
    FitQuestion question;
    question.policies = asked.policies;
    question.durability = asked.run({}).durability;
    question.settle = asked.settle;
    return question;
  }

  // Whether it fits; `nearest` is then this one.
  bool consider(const Problem& problem, const Way& way, std::optional<Fit>& nearest) {
    trials_.begin_remedy();
    std::optional<Need> need = trials_.verified(problem, way, question_.durability.on());
    if (!need) return false;
    const bool fits = need->fits();
    if (fits || !nearest || need->overshoot() < nearest->need.overshoot())
      nearest = {way.policy, std::move(*need)};
    return fits;
  }

  const FitQuestion question_;
  FitTrials trials_;
  std::size_t last_ = 0;
};

}  // namespace

namespace {

Candidates evaluate_asked(const PlansAsked& asked, const Problem& problem, bool choose_micro_batch,
                          const std::vector<std::string>& policies) {
  return evaluate_candidates(problem, choose_micro_batch, policies, asked.run(problem.workload),
                             default_steps, asked.evaluate_one);
}

// Many policies share a bound on what is tried, so that one may find no micro-batch that fits
// though there is one. Where none of them did, each that has one is evaluated by itself.
Candidates evaluate_at_length(const PlansAsked& asked, const Problem& problem,
                              bool choose_micro_batch, PoliciesOnTrial& trials) {
  Candidates found = evaluate_asked(asked, problem, choose_micro_batch, asked.policies);
  if (found.chosen || !choose_micro_batch || asked.policies.size() == 1) return found;
  for (const std::string& policy : asked.policies) {
    if (!trials.fits_somehow(problem, policy)) continue;
    Candidates one = evaluate_asked(asked, problem, true, {policy});
    if (one.chosen) found.all.push_back(std::move(one.all[*one.chosen]));
  }
  choose(found);
  return found;
}

// What is chosen of the candidates that `evaluate_all` returns. Nothing: nothing fits, or can run
// the problem.
template <class EvaluateAll>
std::optional<Candidate> chosen_of(const EvaluateAll& evaluate_all) {
  try {
    Candidates found = evaluate_all();
    if (!found.chosen) return {};
    return std::move(found.all[*found.chosen]);
  } catch (const InputError&) {
    return {};
  }
}

}  // namespace

Planner planner_of(const PlansAsked& asked, const TrialBounds& bounds) {
  const auto trials = std::make_shared<PoliciesOnTrial>(asked, bounds);
  Planner planner;
  if (asked.policies.size() == 1) planner.name = asked.policies[0];
  planner.best = [asked, trials](const Problem& problem, bool choose_micro_batch) {
    return evaluate_at_length(asked, problem, choose_micro_batch, *trials);
  };
  planner.fit = [trials](const Problem& problem) { return trials->fit(problem); };
  planner.fitted = [asked](const Problem& problem, const Fit& fit) {
    return chosen_of([&] { return evaluate_asked(asked, problem, false, {fit.need.settled}); });
  };
  planner.begin = [trials] { trials->begin(); };
  planner.cut_short = [trials] { return trials->cut_short(); };
  planner.choose_micro_batch = asked.choose_micro_batch;
  return planner;
}

Planner planner_of(std::function<Candidates(const Problem&, bool choose_micro_batch)> best,
                   const Durability& durability, bool choose_micro_batch) {
  Planner planner;
  planner.fit = [best, durability](const Problem& problem) -> std::optional<Fit> {
    try {
      const Candidates found = best(problem, false);
      const Candidate& plan = found.chosen ? found.all[*found.chosen] : nearest(found, durability);
      const Need need = need_of(plan.evaluation.schedule, durability.on());
      return Fit{need.settled, need};
    } catch (const InputError&) {
      return {};
    }
  };
  planner.fitted = [best](const Problem& problem, const Fit&) {
    return chosen_of([&] { return best(problem, false); });
  };
  planner.best = std::move(best);
  planner.choose_micro_batch = choose_micro_batch;
  return planner;
}

std::optional<Candidate> best_plan(const Planner& planner, const Problem& problem,
                                   bool choose_micro_batch) {
  return chosen_of([&] { return planner.best(problem, choose_micro_batch); });
}

std::vector<Tier> full_tiers(const Need& need) {
  std::vector<Tier> full;
  for (std::size_t tier = 0; tier < need.bytes.size(); ++tier) {
    if (need.bytes[tier] > need.capacity[tier]) full.push_back(static_cast<Tier>(tier));
  }
  return full;
}

}  // namespace spillway
