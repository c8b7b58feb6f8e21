// spillway estimate: does it fit, how long does it take, how much is written to the drives.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/units.hpp"
#include "cli/commands.hpp"
#include "cli/options/problem_options.hpp"
#include "cli/options/question_options.hpp"
#include "cli/options/run_options.hpp"
#include "cli/text/assumptions_text.hpp"
#include "cli/text/output.hpp"
#include "cli/text/plan_text.hpp"
#include "cli/text/question_text.hpp"
#include "experiments/questions/questions_json.hpp"
#include "policies/cost/commit_interval.hpp"

namespace spillway::cli {

namespace {

struct Options {
  ProblemOptions problem;
  RunOptions run;
  QuestionOptions question;
  std::string policy = "auto";
  bool robust = false, json = false;
};

std::string tokens_text(double tokens) {
  return tokens < 1e9 ? fmt::format("{:.3g} million", tokens / 1e6)
                      : fmt::format("{:.3g} billion", tokens / 1e9);
}

// How fast it is; in how many days so many tokens are trained, where the length of the training is
// not given; and what may make it faster.
std::string speed_text(const Candidate& candidate) {
  const SimulationResult& result = *candidate.evaluation.result;
  const Workload& workload = candidate.evaluation.schedule.problem().workload;
  constexpr double billion = 1e9;
  std::string text = fmt::format(
      "step         {}   ({:.1f} tokens/s, {} sets the bound, {:.0f} % of it reached)\n"
      "tokens       {} a day",
      format_seconds(result.step_seconds), result.tokens_per_second, result.bound_by,
      100 * result.efficiency, tokens_text(86400 * result.tokens_per_second));
  if (workload.ranks > 1)
    text += fmt::format("; {:.1f} tokens/s a GPU",
                        result.tokens_per_second / static_cast<double>(workload.ranks));
  if (!candidate.wear.steps)
    text += "; 1 billion in " + long_time(billion / result.tokens_per_second);
  text += "\n" + interval_text(candidate.evaluation, "             ");
  if (result.bound_by != "gpu.compute")
    text += fmt::format(
        "             a larger --batch than {} may train more tokens a second "
        "(--smallest-batch 90% looks for it)\n",
        workload.batch);
  return text;
}

// Of drives that would be worn out within a year: the fastest plan with which they last one; where
// there is none, the one with which they last longest, if that is twice as long or more.
std::string sparing_text(const Candidates& candidates, const Candidate& fastest) {
  const double years = fastest.wear.drive_years().value_or(1);
  if (years >= 1) return "";
  const auto lasts = [](const Candidate& one) { return one.wear.drive_years().value_or(0); };
  const auto is_better = [&](const Candidate& one, const Candidate& other) {
    const bool both = lasts(one) >= 1 && lasts(other) >= 1;
    return both ? one.wear.step_seconds < other.wear.step_seconds : lasts(one) > lasts(other);
  };
  const Candidate* sparing = nullptr;
  for (const Candidate& other : candidates.all) {
    if (!other.evaluation.result || lasts(other) < std::min(1.0, 2 * years)) continue;
    if (sparing == nullptr || is_better(other, *sparing)) sparing = &other;
  }
  if (sparing == nullptr) return "";
  return fmt::format("             {} takes {:.0f} % longer, and they last {}\n",
                     sparing->evaluation.schedule.policy(),
                     100 * (*sparing->wear.step_seconds / *fastest.wear.step_seconds - 1),
                     long_time(lasts(*sparing) * seconds_per_year));
}

// What a user wants to know before buying or starting.
void print(const Candidates& candidates, const Candidate& candidate,
           const std::optional<Robustness>& robustness) {
  const SimulationResult* result =
      candidate.evaluation.result ? &*candidate.evaluation.result : nullptr;
  const Problem& problem = candidate.evaluation.schedule.problem();
  fmt::print("{}{}: {}\n{}", header_text(candidate), result ? "fits" : "does not fit",
             to_text(margin_of(candidate)), memory_text(candidate));
  if (result) {
    fmt::print("{}{}{}", speed_text(candidate), wear_text(candidate.wear, problem.machine),
               sparing_text(candidates, candidate));
  }
  if (robustness) fmt::print("{}", robustness_text(*robustness));
  if (result && !robustness) fmt::print("{}", assumed_note(problem.machine));
}

std::optional<Robustness> robustness_of(const Candidate& candidate) {
  const Evaluation& evaluation = candidate.evaluation;
  if (!evaluation.result) return {};
  Activity activity("trying other rates");
  return robustness(evaluation.schedule, *evaluation.result, 0,
                    [&](const std::string& what) { activity.say(what); });
}

void ask(const Options& options, int& exit_code) {
  ProblemOptions asked = options.problem;
  options.question.complete(asked);
  const Problem problem = asked.problem();
  Activity activity("building schedules");
  options.question.answer(asked, options.run, problem,
                          planners_of(asked, options.run, problem, {options.policy}, activity),
                          activity, options.json, exit_code);
}

void estimate(const Options& options, int& exit_code) {
  if (options.problem.machine.empty()) throw CLI::RequiredError("--machine");
  const Problem problem = options.problem.problem();
  const WholeRun whole = options.run.whole_run(problem.workload, problem.framework);
  const Candidates candidates =
      evaluate_as_asked(options.problem, problem, {options.policy}, whole, default_steps);
  const Candidate& candidate = candidates.chosen ? candidates.all[*candidates.chosen]
                                                 : nearest(candidates, whole.durability);
  const std::optional<Robustness> robustness =
      options.robust ? robustness_of(candidate) : std::nullopt;
  if (options.json) {
    nlohmann::ordered_json json = to_json(candidate);
    if (robustness) json["robustness"] = to_json(*robustness);
    fmt::print("{}\n", to_text(json));
  } else {
    print(candidates, candidate, robustness);
  }
  if (!candidates.chosen) {
    exit_code = exit_does_not_fit;
    fail_to_fit(candidates, options.problem, problem, {options.policy}, whole, default_steps);
  }
}

}  // namespace

void add_estimate(CLI::App& app, int& exit_code) {
  CLI::App* command = app.add_subcommand("estimate",
                                         "does it fit, how long does it take, how much is written "
                                         "to the SSD, how long do drives last");
  auto options = std::make_shared<Options>();
  options->problem.add_to(*command, false);
  options->problem.add_framework_to(*command);
  options->run.add_to(*command);
  command
      ->add_option("--policy", options->policy,
                   "policy and options, or auto: the one predicted fastest")
      ->capture_default_str();
  options->question.add_to(*command);
  auto* robust = command->add_flag(
      "--robust", options->robust,
      "how the step changes where the machine's rates are others than its file says");
  for (const char* question : {"--smallest-batch", "--cheapest"})
    robust->excludes(command->get_option(question));
  command->add_flag("--json", options->json, "print one JSON object (docs/metrics.md)");
  command->callback(
      [options, &exit_code] { (options->question.any() ? ask : estimate)(*options, exit_code); });
}

}  // namespace spillway::cli
