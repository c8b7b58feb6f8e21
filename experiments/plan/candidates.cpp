#include "experiments/plan/candidates.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/errors.hpp"
#include "base/units.hpp"
#include "experiments/plan/tuned.hpp"
#include "policies/common/registry.hpp"
#include "sim/result_json.hpp"
#include "sim/step_interval.hpp"

namespace spillway {

EvaluateOne with_durability(EvaluateOne evaluate_one, const Durability& durability) {
  return [evaluate_one = std::move(evaluate_one), durability](
             const Problem& problem, const std::string& policy, int steps) {
    Evaluation evaluation = evaluate_one(problem, policy, steps);
    const Schedule& schedule = evaluation.schedule;
    if (!fits_drives(store_bytes(schedule, durability.on()), schedule.problem().machine))
      evaluation.result.reset();
    return evaluation;
  };
}

void choose(Candidates& candidates) {
  const auto seconds = [&](std::size_t i) {
    return candidates.all[i].evaluation.result->step_seconds;
  };
  const auto each = [&](const auto& take) {
    for (std::size_t i = 0; i < candidates.all.size(); ++i) {
      if (candidates.all[i].evaluation.result) take(i);
    }
  };
  const auto written = [&](std::size_t i) { return candidates.all[i].wear.bytes_per_step(); };
  candidates.chosen = candidates.writes_less = std::nullopt;
  each([&](std::size_t i) {
    const std::optional<std::size_t>& chosen = candidates.chosen;
    if (!chosen ||
        std::pair(seconds(i), written(i)) < std::pair(seconds(*chosen), written(*chosen)))
      candidates.chosen = i;
  });
  if (!candidates.chosen) return;
  const double slowest = seconds(*candidates.chosen) * (1 + as_good_as_fastest);
  std::size_t least = *candidates.chosen;
  each([&](std::size_t i) {
    if (seconds(i) <= slowest && written(i) < written(least)) least = i;
  });
  if (least != *candidates.chosen) candidates.writes_less = least;
}

std::vector<std::string> candidate_policies() {
  std::vector<std::string> policies;
  for (const PolicyInfo& info : known_policies()) policies.push_back(info.name);
  policies.emplace_back("fuyou:swap=auto");  // its default is what was published, not the fastest
  return policies;
}

std::vector<std::string> policies_named(const std::string& policy) {
  if (policy == "auto") return candidate_policies();
  return {policy};
}

std::vector<std::string> policies_named(const std::vector<std::string>& policies) {
  std::vector<std::string> all;
  for (const std::string& policy : policies)
    for (const std::string& one : policies_named(policy)) all.push_back(one);
  return all;
}

Candidates evaluate_candidates(const Problem& problem, bool choose_micro_batch,
                               const std::vector<std::string>& policies, const WholeRun& run,
                               int steps, const EvaluateOne& evaluate_one,
                               const std::function<void(Problem&)>& settle, const Allows& allows) {
  const EvaluateOne evaluate_durable = with_durability(evaluate_one, run.durability);
  Candidates candidates;
  std::exception_ptr refused;
  for (const std::string& policy : policies) canonical_policy(policy);  // no typing errors
  std::uint64_t tasks_left = most_tasks_tried;
  for (std::size_t i = 0; i < policies.size(); ++i) {
    const std::string& policy = policies[i];
    if (policies.size() > 1 && !is_tuned(policy) && !is_candidate(policy, problem.workload))
      continue;
    if (is_tuned(policy) && problem.workload.pipeline > 1) {
      candidates.refused.push_back({policy, "the search knows no stages of a pipeline"});
      if (policies.size() == 1)
        throw InputError("plans of a pipeline's stages are not searched for",
                         "name a policy, e.g. " + Setting{"policy", "1f1b"});
      continue;
    }
    if (tasks_left == 0) {
      candidates.refused.push_back(
          {policy, fmt::format("not tried: the plans before it took all of the {} million tasks "
                               "that are tried for one answer; ask for this policy alone",
                               most_tasks_tried / 1'000'000)});
      continue;
    }
    // Its bounds alone would take minutes.
    constexpr std::int64_t most_batch = 65'536;
    if (is_tuned(policy) && problem.workload.batch > most_batch && policies.size() > 1) {
      candidates.refused.push_back(
          {policy, fmt::format("not searched for: a batch of more than {} sequences", most_batch)});
      continue;
    }
    if (allows && !is_tuned(policy) && !allows(problem, policy)) {
      candidates.refused.push_back({policy, "it is not allowed here"});
      continue;
    }
    try {
      Evaluation evaluation =
          is_tuned(policy)
              ? evaluate_tuned(problem, choose_micro_batch, steps, evaluate_durable, settle, allows)
          : choose_micro_batch ? evaluate_best_micro_batch(problem, policy, steps, evaluate_durable,
                                                           tasks_left / (policies.size() - i))
                               : evaluate_durable(problem, policy, steps);
      tasks_left -= std::min(tasks_left, evaluation.tasks);
      const SimulationResult* result = evaluation.result ? &*evaluation.result : nullptr;
      Wear wear = wear_of(evaluation.schedule, result, run);
      candidates.all.push_back({std::move(evaluation), wear, policy});
    } catch (const InputError& error) {
      if (!refused) refused = std::current_exception();
      candidates.refused.push_back({policy, error.what()});
    }
  }
  if (candidates.all.empty() && refused) std::rethrow_exception(refused);
  choose(candidates);
  return candidates;
}

void require_fit(const Candidate& candidate) {
  const Schedule& schedule = candidate.evaluation.schedule;
  const Problem& problem = schedule.problem();
  const StoreBytes& store = candidate.wear.store;
  const auto fits = [&](Tier tier) {
    return schedule.use(tier).peak_bytes <= schedule.use(tier).capacity_bytes;
  };
  // The tier alone may be too large, too: the message is of all of the store.
  const bool has_copies = store.second_copies + store.memory_copies > 0;
  if (!fits(Tier::gpu) || !fits(Tier::host) || !has_copies) schedule.require_fit();
  if (fits_drives(store, problem.machine)) return;
  const auto text = [](std::uint64_t bytes) { return format_bytes(static_cast<double>(bytes)); };
  const int lacking = std::max(0, store.lacking(problem.machine));
  const std::uint64_t needed = store.on_set[static_cast<std::size_t>(lacking)],
                      there_is = problem.machine.drives(lacking).capacity;
  throw FitError(
      fmt::format(
          "{} with policy {} does not fit in {} memory: with durability its store needs "
          "{} ({} bytes), {} more than the {} there is: {} of the ssd tier, {} second "
          "copies of optimizer state on the drives, {} copies of optimizer state in memory{}",
          problem.model.name, schedule.policy(), drive_set_name(lacking), text(needed), needed,
          text(needed - there_is), text(there_is), text(store.tier), text(store.second_copies),
          text(store.memory_copies),
          problem.machine.drive_sets() > 1 ? ", on all sets of drives" : ""),
      Setting{"durability", "off"} +
          fmt::format(" needs {}, and nothing can be resumed then; or larger drives: ",
                      text(store.tier)) +
          Setting{drive_set_key(lacking, "capacity"), fmt::format("{}B", needed)});
}

namespace {

void add_interval(nlohmann::ordered_json& json, const Evaluation& evaluation) {
  const double step = evaluation.result->step_seconds;
  const auto uncertainty = step_uncertainty(evaluation.schedule, *evaluation.result,
                                            evaluation.schedule.problem().machine);
  if (!uncertainty) return;
  json["step_seconds_interval"] = {uncertainty->low(step), uncertainty->high(step)};
  json["interval_share"] = interval_share;
}

}  // namespace

FitMargin margin_of(const Candidate& candidate) {
  TierUses memory = tier_uses(candidate.evaluation.schedule, candidate.wear);
  // Of a pipeline, what the stage leaves that leaves least.
  for (const StageEvaluation& stage : candidate.evaluation.stages) {
    for (const std::size_t tier : {std::size_t{0}, std::size_t{1}}) {  // gpu, host
      const TierUse own{.peak_bytes = stage.peaks[tier],
                        .capacity_bytes = memory[tier].capacity_bytes};
      const bool is_first = &stage == &candidate.evaluation.stages.front();
      if (!is_first && free_bytes(own) < free_bytes(memory[tier])) memory[tier] = own;
    }
  }
  return fit_margin(memory);
}

nlohmann::ordered_json to_json(const Candidate& candidate, const Explanation* explanation) {
  const Evaluation& evaluation = candidate.evaluation;
  nlohmann::ordered_json json =
      to_json(evaluation.schedule, evaluation.result ? &*evaluation.result : nullptr,
              evaluation.schedule_seconds, evaluation.simulate_seconds, explanation);
  const Problem& problem = evaluation.schedule.problem();
  const bool simulated = evaluation.result.has_value();
  json["fits"] = simulated;
  for (const StageEvaluation& stage : evaluation.stages) {
    nlohmann::ordered_json peaks;
    for (const Tier tier : memories_of(problem.machine))
      peaks[to_string(tier)] = stage.peaks[static_cast<std::size_t>(tier)];
    json["stages"].push_back(
        {{"layers", stage.layers},
         {"peak_bytes", peaks},
         {"computes", simulated ? nlohmann::ordered_json(stage.computes) : nullptr}});
  }
  if (simulated) add_interval(json, evaluation);
  add_wear(json, candidate.wear, problem.machine);
  add_margins(json, tier_uses(evaluation.schedule, candidate.wear));
  if (!simulated) json["ssd_bytes_written_per_step"] = json["wear"] = nullptr;
  return json;
}

}  // namespace spillway
