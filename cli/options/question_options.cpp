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

Planners planners_of(const ProblemOptions& options, const RunOptions& run, const Problem& problem,
                     const std::vector<std::string>& policies, Activity& activity) {
  PlansAsked asked;
  for (const std::string& policy : policies) {
    for (const std::string& one : policies_named(policy)) {
      canonical_policy(one);  // no typing errors
      asked.policies.push_back(one);
    }
  }
  asked.choose_micro_batch = options.chooses_micro_batch();
  asked.run = [&run, framework = problem.framework](const Workload& workload) {
    return run.whole_run(workload, framework);
  };
  asked.evaluate_one = options.evaluation(problem, activity);
  if (options.chooses_sequences_at_once() && is_measured_gpu(problem.machine))
    asked.settle = [](Problem& settled) { settled.use_gpu_sequences_at_once(); };
  return {planner_of(asked), planners_of_each(asked), policies};
}

void QuestionOptions::add_to(CLI::App& command) {
  auto* first =
      command
          .add_option("--largest", largest, "model | batch: the largest model, or batch, that fits")
          ->check(CLI::IsMember({"model", "batch"}));
  auto* second = command.add_option("--smallest-batch", smallest_batch,
                                    "the smallest batch that reaches this share of the peak "
                                    "throughput, e.g. 90%, and the curve behind it");
  auto* third = command.add_option("--cheapest", cheapest,
                                   "the cheapest machine of this price list (a TOML file, or "
                                   "`example`) that reaches --tokens-per-second");
  auto* speed = command.add_option("--tokens-per-second", tokens_per_second,
                                   "throughput that --cheapest is to reach");
  command
      .add_option("--drives-last", drives_last,
                  "years that the drives of --cheapest are to last, training day and night; "
                  "default: any")
      ->needs(third);
  first->excludes(second)->excludes(third);
  second->excludes(third);
  third->needs(speed);
  speed->needs(third);
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
  if (!smallest_batch.empty()) parse_share("smallest_batch", smallest_batch);
  if (largest != "batch" && smallest_batch.empty()) return;
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
  const auto require = [&](bool answered, Problem smallest) {
    if (answered) return;
    exit_code = exit_does_not_fit;
    const WholeRun whole = run.whole_run(smallest.workload, smallest.framework);
    smallest.validate();
    const Candidates found = planners.all.best(smallest, planners.all.choose_micro_batch);
    if (found.chosen)
      throw FitError("larger ones take too long to try: " + smallest.model.name +
                         fmt::format(" fits with {} sequences a step", smallest.workload.batch),
                     "name one with " + Setting{"policy"} + ", which is tried at length");
    fail_to_fit(found, options, smallest, planners.policies, whole, default_steps);
  };
  Problem smallest = problem;
  if (planners.all.choose_micro_batch) smallest.workload.micro_batch = 1;
  smallest.workload.batch = smallest.workload.micro_batch;
  if (largest == "batch") {
    const std::vector<LargestBatch> batches = largest_batches(problem, planners.each, say);
    require(batches.front().batch > 0, smallest);
    show(batches, problem, json);
  } else if (largest == "model") {
    const LargestModel model = largest_model(problem, planners.all, say);
    require(model.layers > 0 || model.of_family, problem);
    show(model, problem, json);
  } else if (!smallest_batch.empty()) {
    const SmallestBatch batch = spillway::smallest_batch(
        problem, planners.all, parse_share("smallest_batch", smallest_batch), say);
    require(batch.peak.batch > 0, smallest);
    show(batch, problem, json);
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
