#include "experiments/plan/comparison.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/errors.hpp"
#include "experiments/plan/tuned.hpp"
#include "experiments/tune/best_settings.hpp"
#include "experiments/tune/plan_space.hpp"
#include "policies/common/policy.hpp"
#include "policies/spillway/spillway.hpp"

namespace spillway {

namespace {

bool is_bare(const std::string& policy) {
  return canonical_policy(policy).find(':') == std::string::npos;
}

class Comparing {
 public:
  Comparing(const Problem& problem, const CompareRequest& request)
      : problem_(problem), request_(request) {}

  Comparison all() {
    result_.names_given = !request_.policies.empty();
    result_.at_best = request_.at_best;
    result_.recomputation = request_.recomputation;
    result_.framework = problem_.framework;
    if (!request_.choose_micro_batch) result_.micro_batch = problem_.workload.micro_batch;
    const std::vector<std::string> policies = policies_to_compare();
    if (request_.at_best || request_.recomputation) {
      one_by_one(policies);
    } else {
      result_.candidates =
          evaluate_candidates(problem_, request_.choose_micro_batch, policies, request_.run,
                              request_.steps, request_.evaluate_one, request_.settle);
    }
    choose(result_.candidates);
    for (const Candidate& one : result_.candidates.all) result_.rows.push_back(row_of(one));
    choose_fastest();
    if (!result_.names_given && !request_.at_best && !request_.recomputation)
      result_.auto_choice = result_.candidates.chosen;
    return std::move(result_);
  }

 private:
  std::vector<std::string> policies_to_compare() const {
    std::vector<std::string> policies = request_.policies;
    if (policies.empty()) {
      policies = candidate_policies();
      // A variant is among the settings that a search tries, and has a recomputation of its own.
      if (request_.at_best || request_.recomputation)
        std::erase_if(policies, [](const std::string& policy) { return !is_bare(policy); });
      std::erase_if(policies, [&](const std::string& policy) {
        return !is_tuned(policy) && !is_candidate(policy, problem_.workload);
      });
    }
    if (request_.recomputation) {
      for (std::string& policy : policies)
        policy = with_recomputation(policy, *request_.recomputation);
    }
    return policies;
  }

  void one_by_one(const std::vector<std::string>& policies) {
    for (const std::string& policy : policies) canonical_policy(policy);  // no typing errors
    std::exception_ptr refused;
    for (std::size_t i = 0; i < policies.size(); ++i) {
      done_ = static_cast<double>(i) / static_cast<double>(policies.size());
      part_ = 1.0 / static_cast<double>(policies.size());
      say("comparing " + policies[i], 0);
      try {
        result_.candidates.all.push_back(best_of(policies[i]));
      } catch (const InputError& error) {
        if (!refused) refused = std::current_exception();
        result_.candidates.refused.push_back({policies[i], error.what()});
      }
    }
    if (result_.candidates.all.empty() && refused) std::rethrow_exception(refused);
    if (request_.at_best) take_plans_of_others();
  }

  void say(const std::string& what, double done_of_part) const {
    if (request_.progress) request_.progress(what, done_ + part_ * done_of_part);
  }

  Candidate best_of(const std::string& policy) {
    if (!request_.at_best || is_tuned(policy)) return evaluated(policy, problem_);
    Pricer pricer(problem_, request_.threads, request_.settle, nullptr, allows());
    SettingsSearch search;
    search.choose_micro_batch = request_.choose_micro_batch;
    if (request_.recomputation) search.held.emplace_back("recompute");
    search.progress = [&](std::uint64_t explored) {
      say(fmt::format("{} settings of {} tried", explored, policy),
          std::min(1.0, static_cast<double>(explored) / static_cast<double>(search.effort)));
    };
    std::optional<Candidate> best;
    constexpr int few = 3;  // prices are extrapolated: so many are evaluated in full
    int fitting = 0;
    const std::vector<PricedTrial> found = best_settings(pricer, policy, search);
    result_.settings_tried += pricer.explored();
    for (const PricedTrial& one : found) {
      // The last is the policy as given.
      if (fitting >= few && &one != &found.back()) continue;
      Candidate candidate = evaluated(one.second.settled, one.first.micro_batch);
      if (!candidate.evaluation.result) continue;
      ++fitting;
      candidate.asked = policy;
      if (!best || is_faster(candidate, *best)) best = std::move(candidate);
    }
    return best ? std::move(*best) : evaluated(policy, problem_);
  }

  // Any plan is one of policy spillway's: its row is no slower than those of the others.
  void take_plans_of_others() {
    std::vector<Candidate>& all = result_.candidates.all;
    const auto own = std::find_if(all.begin(), all.end(),
                                  [](const Candidate& one) { return is_tuned(one.asked); });
    if (own == all.end()) return;
    for (const Candidate& other : all) {
      if (&other == &*own || !other.evaluation.result) continue;
      if (own->evaluation.result && !is_faster(other, *own)) continue;
      const Schedule& schedule = other.evaluation.schedule;
      if (request_.recomputation && !follows(schedule)) continue;
      const std::string policy = spillway_policy(plan_of(schedule.problem(), schedule.policy()));
      Candidate same = evaluated(policy, schedule.problem().workload.micro_batch);
      same.asked = own->asked;
      if (same.evaluation.result && (!own->evaluation.result || is_faster(same, *own)))
        *own = std::move(same);
    }
  }

  static bool is_faster(const Candidate& a, const Candidate& b) {
    const auto rank = [](const Candidate& one) {
      return std::pair(one.evaluation.result->step_seconds, one.wear.bytes_per_step());
    };
    return rank(a) < rank(b);
  }

  Candidate evaluated(const std::string& policy, std::int64_t micro_batch) const {
    Problem problem = problem_;
    problem.workload.micro_batch = micro_batch;
    return only(evaluate_candidates(problem, false, {policy}, request_.run, request_.steps,
                                    request_.evaluate_one, request_.settle));
  }
  // In its fastest micro-batch, if that may be chosen. What is searched for follows what is asked.
  Candidate evaluated(const std::string& policy, const Problem& problem) const {
    return only(evaluate_candidates(problem, request_.choose_micro_batch, {policy}, request_.run,
                                    request_.steps, request_.evaluate_one, request_.settle,
                                    is_tuned(policy) ? allows() : Allows()));
  }
  static Candidate only(Candidates candidates) { return std::move(candidates.all.front()); }

  Allows allows() const {
    if (!request_.recomputation) return {};
    return [wanted = *request_.recomputation](const Problem& problem, const std::string& policy) {
      return recomputation_of(problem, policy) == wanted;
    };
  }

  bool follows(const Schedule& schedule) const {
    return !request_.recomputation ||
           recomputation_of(schedule.problem(), schedule.policy()) == *request_.recomputation;
  }

  ComparedRow row_of(const Candidate& candidate) const {
    const Schedule& schedule = candidate.evaluation.schedule;
    ComparedRow row;
    row.settings = request_.at_best || is_tuned(candidate.asked) ? SettingsBy::search
                   : is_published(candidate.asked)               ? SettingsBy::published
                                                                 : SettingsBy::given;
    row.recomputation = recomputation_of(schedule.problem(), schedule.policy());
    row.follows = !request_.recomputation || row.recomputation == *request_.recomputation;
    // What a search found is no match for what nobody searched for. Names that are given are meant
    // to be compared; of those that are not, a variant is not what was published.
    const bool is_like_the_others = request_.at_best || row.settings == SettingsBy::published ||
                                    (row.settings == SettingsBy::given && result_.names_given);
    row.competes = is_like_the_others && row.follows && candidate.evaluation.result;
    return row;
  }

  // But for the recomputation that all are to have.
  bool is_published(const std::string& policy) const {
    if (!request_.recomputation) return is_bare(policy);
    const std::string name = policy.substr(0, policy.find(':'));
    return canonical_policy(policy) ==
           canonical_policy(with_recomputation(name, *request_.recomputation));
  }

  void choose_fastest() {
    std::size_t competing = 0;
    std::optional<std::size_t> fastest;
    const std::vector<Candidate>& all = result_.candidates.all;
    for (std::size_t i = 0; i < all.size(); ++i) {
      if (!result_.rows[i].competes) continue;
      ++competing;
      if (!fastest || is_faster(all[i], all[*fastest])) fastest = i;
    }
    if (competing > 1) result_.fastest = fastest;
  }

  const Problem& problem_;
  const CompareRequest& request_;
  Comparison result_;
  double done_ = 0, part_ = 1;
};

}  // namespace

const char* to_string(SettingsBy settings) {
  switch (settings) {
    case SettingsBy::published:
      return "published";
    case SettingsBy::given:
      return "given";
    case SettingsBy::search:
      return "search";
  }
  return "";
}

std::vector<std::string> policies_to_compare(const std::vector<std::string>& asked) {
  if (asked == std::vector<std::string>{"auto"}) return {};
  return policies_named(asked);
}

Comparison compare_policies(const Problem& problem, const CompareRequest& request) {
  return Comparing(problem, request).all();
}

nlohmann::ordered_json to_json(const Comparison& comparison) {
  using Json = nlohmann::ordered_json;
  const Candidates& candidates = comparison.candidates;
  Json list = Json::array();
  for (std::size_t i = 0; i < candidates.all.size(); ++i) {
    const Candidate& one = candidates.all[i];
    const Evaluation& evaluation = one.evaluation;
    std::optional<Explanation> explanation;
    if (evaluation.result) explanation = explain(evaluation.schedule, *evaluation.result);
    Json json = to_json(one, explanation ? &*explanation : nullptr);
    const ComparedRow& row = comparison.rows[i];
    json["compared"] = {{"asked", one.asked},
                        {"settings", to_string(row.settings)},
                        {"recomputation", to_string(row.recomputation)},
                        {"follows", row.follows},
                        {"competes", row.competes}};
    list.push_back(std::move(json));
  }
  const auto policy_of = [&](const std::optional<std::size_t>& index) {
    return index ? Json(candidates.all[*index].evaluation.schedule.policy()) : Json();
  };
  Json json = {{"policies", std::move(list)}};
  json["comparison"] = {
      {"settings", comparison.at_best       ? "best"
                   : comparison.names_given ? "given"
                                            : "published"},
      {"micro_batch", comparison.micro_batch ? Json(*comparison.micro_batch) : Json()},
      {"framework", comparison.framework},
      {"recomputation",
       comparison.recomputation ? Json(to_string(*comparison.recomputation)) : Json()},
      {"settings_tried", comparison.at_best ? Json(comparison.settings_tried) : Json()}};
  json["fastest"] = policy_of(comparison.fastest);
  json["auto"] = policy_of(comparison.auto_choice);
  json["writes_less"] = policy_of(candidates.writes_less);
  for (const Refusal& refusal : candidates.refused)
    json["refused"].push_back({{"policy", refusal.policy}, {"reason", refusal.reason}});
  return json;
}

}  // namespace spillway
