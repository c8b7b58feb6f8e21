#include "cli/options/question_options.hpp"

#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/errors.hpp"
#include "cli/commands.hpp"
#include "cli/text/output.hpp"
#include "cli/text/plan_text.hpp"
#include "cli/text/question_text.hpp"
#include "experiments/questions/questions_json.hpp"

namespace spillway::cli {

namespace {

using Say = std::function<void(const std::string&)>;

template <class Answer>
void show(const Answer& answer, const Problem& problem, bool json) {
  fmt::print("{}", json ? to_text(to_json(answer)) + "\n" : answer_text(problem, answer));
}

[[noreturn]] void fail_to_reach(const CheapestMachine& machine, const PriceList& list) {
  const MachineWish& wish = machine.wish;
  std::string what = fmt::format("no machine of {} reaches {} tokens/s", list.origin,
                                 plain_digits(wish.tokens_per_second));
  if (wish.drive_years > 0) what += " with drives that last " + life_text(wish.drive_years);
  if (!machine.fastest_below) {
    what += ": the model fits on none that was tried";
    if (!machine.shortage)
      throw FitError(what, "try a smaller model or a smaller " + Setting{"batch"});
    const std::string full = tiers_text(machine.shortage->full);
    throw FitError(
        what + fmt::format("; nearest is {}, which lacks {} memory", machine.shortage->name, full),
        fmt::format("add parts with more {} memory to the list, or try a smaller model "
                    "or a smaller ",
                    full) +
            Setting{"batch"});
  }
  const MachinePoint& best = *machine.fastest_below;
  what += fmt::format(": the fastest, {} for {} {}, makes {:.1f}", best.name,
                      price_text(best.machine.price), list.currency, best.tokens_per_second);
  if (best.drive_years) what += ", and its drives last " + life_text(*best.drive_years);
  if (best.tokens_per_second >= wish.tokens_per_second)
    throw FitError(what, "allow less of " + Setting{"drives_last"} +
                             ", or add drives of more endurance, or more host memory, to the list");
  Message hint = fmt::format("{} sets its bound; a larger ", best.bound_by) + Setting{"batch"} +
                 " may raise it";
  // Below one there is nothing to ask for.
  if (best.tokens_per_second >= 1)
    hint += "; or ask for " +
            Setting{"tokens_per_second", fmt::format("{:.0f}", std::floor(best.tokens_per_second))};
  throw FitError(what, hint + "; or add parts that are faster there");
}

}  // namespace

double parse_share(const std::string& setting, const std::string& text) {
  double share = 0;
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, share);
  const bool percent = rest != end && *rest == '%';
  if (percent) share /= 100;
  if (error != std::errc() || rest + percent != end || !(share > 0 && share <= 1))
    throw InputError(Setting{setting, text} + ": not a share between 0 and 1",
                     "examples: " + Setting{setting, "90%"} + ", " + Setting{setting, "0.05"});
  return share;
}

PlansAsked plans_asked(const ProblemOptions& options, const RunOptions& run, const Problem& problem,
                       const std::vector<std::string>& policies) {
  PlansAsked asked;
  asked.policies = policies_named(policies);
  for (const std::string& policy : asked.policies) canonical_policy(policy);  // no typing errors
  asked.choose_micro_batch = options.chooses_micro_batch();
  asked.run = [&run, framework = problem.framework](const Workload& workload) {
    return run.whole_run(workload, framework);
  };
  asked.evaluate_one = options.evaluation(problem);
  asked.settle = options.settle(problem);
  return asked;
}

Planners planners_of(const ProblemOptions& options, const RunOptions& run, const Problem& problem,
                     const std::vector<std::string>& policies, Activity& activity) {
  PlansAsked asked = plans_asked(options, run, problem, policies);
  asked.evaluate_one = options.evaluation(problem, activity);
  return {planner_of(asked), policies};
}

void fail_to_fit_at_all(const ProblemOptions& options, const RunOptions& run,
                        const Problem& problem, const std::vector<std::string>& policies) {
  Problem smallest = problem;
  Workload& workload = smallest.workload;
  if (options.chooses_micro_batch()) workload.micro_batch = 1;
  workload.batch = workload.micro_batch * workload.ranks;
  const WholeRun whole = run.whole_run(workload, smallest.framework);
  const Candidates found = evaluate_as_asked(options, smallest, policies, whole, default_steps);
  if (found.chosen)
    throw FitError("larger ones take too long to try: " + smallest.model.name +
                       fmt::format(" fits with {} sequences a step", workload.batch),
                   "name one with " + Setting{"policy"} + ", which is tried at length");
  fail_to_fit(found, options, smallest, policies, whole, default_steps);
}

void QuestionOptions::add_to(CLI::App& command) {
  auto* share = command.add_option("--smallest-batch", smallest_batch,
                                   "the smallest batch that reaches this share of the peak "
                                   "throughput, e.g. 90%, and the curve behind it");
  auto* list = command.add_option("--cheapest", cheapest,
                                  "the cheapest machine of this price list (a TOML file, or "
                                  "`example`) that reaches --tokens-per-second");
  auto* speed = command.add_option("--tokens-per-second", tokens_per_second,
                                   "throughput that --cheapest is to reach");
  command
      .add_option("--drives-last", drives_last,
                  "years that the drives of --cheapest are to last, training day and night; "
                  "default: any")
      ->needs(list);
  share->excludes(list);
  list->needs(speed);
  speed->needs(list);
}

void QuestionOptions::complete(ProblemOptions& problem) const {
  if (!cheapest.empty()) {
    if (!(tokens_per_second > 0))
      throw InputError(
          Setting{"tokens_per_second", fmt::format("{:g}", tokens_per_second)} +
              ": it is not above zero",
          "the throughput that is wanted, e.g. " + Setting{"tokens_per_second", "500"});
    if (!(drives_last >= 0))
      throw InputError(
          Setting{"drives_last", fmt::format("{:g}", drives_last)} + ": it is below zero",
          "years that the drives are to last, e.g. " + Setting{"drives_last", "1"});
    if (problem.machine.empty()) problem.machine = load_price_list(cheapest).machine;
  }
  if (problem.machine.empty()) throw CLI::RequiredError("--machine");
  if (smallest_batch.empty()) return;
  parse_share("smallest_batch", smallest_batch);
  if (problem.workload.contains("batch"))
    throw InputError(Setting{"batch", problem.workload["batch"]} + ": the batch is the answer here",
                     "leave it out, or ask for the plan of that batch without the question");
  // Batches that are multiples of it are tried.
  if (!problem.chooses_micro_batch()) problem.workload["batch"] = problem.workload["micro_batch"];
}

void QuestionOptions::answer(const ProblemOptions& options, const RunOptions& run,
                             const Problem& problem, const Planners& planners, Activity& activity,
                             bool json, int& exit_code) const {
  const Say say = [&activity](const std::string& what) { activity.say(what); };
  if (!smallest_batch.empty()) {
    const SmallestBatch batch = spillway::smallest_batch(
        problem, planners.all, parse_share("smallest_batch", smallest_batch), say);
    if (batch.peak.batch > 0) return show(batch, problem, json);
    exit_code = exit_does_not_fit;
    fail_to_fit_at_all(options, run, problem, planners.policies);
  } else {
    const PriceList list = load_price_list(cheapest);
    const CheapestMachine machine =
        cheapest_machine(options, planners.all, list, {tokens_per_second, drives_last}, say);
    fmt::print("{}",
               json ? to_text(to_json(machine, list)) + "\n" : answer_text(problem, machine, list));
    if (!machine.fast_enough.empty()) return;
    exit_code = exit_does_not_fit;
    fail_to_reach(machine, list);
  }
}

}  // namespace spillway::cli
