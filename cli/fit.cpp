// spillway fit: the largest model, the largest batch, the least memory, by policy.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/errors.hpp"
#include "cli/commands.hpp"
#include "cli/options/problem_options.hpp"
#include "cli/options/question_options.hpp"
#include "cli/options/run_options.hpp"
#include "cli/text/fit_text.hpp"
#include "cli/text/output.hpp"
#include "cli/text/progress.hpp"
#include "experiments/questions/questions_json.hpp"
#include "experiments/watch/training_line.hpp"
#include "policies/workload/workload_fields.hpp"

namespace spillway::cli {

namespace {

struct Options {
  ProblemOptions problem;
  RunOptions run;
  std::vector<std::string> policies, largest, least;
  bool json = false;
};

// All of them where none is named.
FitColumns columns_of(const Options& options) {
  const bool all = options.largest.empty() && options.least.empty();
  const auto is_in = [&](const std::vector<std::string>& names, const std::string& name) {
    return all || std::find(names.begin(), names.end(), name) != names.end();
  };
  FitColumns columns;
  columns.model = is_in(options.largest, "model");
  columns.batch = is_in(options.largest, "batch");
  for (const Tier tier : {Tier::gpu, Tier::host, Tier::ssd})
    columns.least[static_cast<std::size_t>(tier)] = is_in(options.least, to_string(tier));
  return columns;
}

// The request, where the batch is not a part of any question.
ProblemOptions asked_problem(const Options& options, const FitColumns& columns) {
  ProblemOptions problem = options.problem;
  WorkloadTexts& workload = problem.workload;
  const bool is_answer = columns.batch && columns.count() == 1;
  if (is_answer && workload.contains("batch"))
    throw InputError(Setting{"batch", workload["batch"]} + ": the batch is the answer here",
                     "leave it out; the largest model and the least memory are asked at a batch");
  if (workload.contains("batch") || problem.chooses_micro_batch()) return problem;
  // A micro-batch for each rank, of which there are as many as the machine says: of a batch that
  // any number of them shares.
  ProblemOptions shared = problem;
  shared.workload.erase("micro_batch");
  shared.workload["batch"] = "322560";
  Workload one;
  find_workload_field("micro_batch")->read(one, workload["micro_batch"]);
  workload["batch"] = std::to_string(one.micro_batch * shared.problem().workload.ranks);
  return problem;
}

std::string progress_text(const FitProgress& now) {
  std::string text = fmt::format("{} of {} answers", now.done, now.all);
  if (now.done > 0) {
    const double left =
        now.seconds * static_cast<double>(now.all - now.done) / static_cast<double>(now.done);
    text += fmt::format(", some {} left", format_clock(left));
  }
  return fmt::format("{}; {}", text, now.what);
}

void run(const Options& options, int& exit_code) {
  const FitColumns columns = columns_of(options);
  const ProblemOptions problem = asked_problem(options, columns);
  const std::vector<std::string> policies =
      options.policies.empty() ? std::vector<std::string>{"auto"} : options.policies;
  PlansAsked asked = plans_asked(problem, options.run, problem.problem(), policies);
  const Workload workload = problem.problem().workload;
  if (options.policies.empty())
    std::erase_if(asked.policies,
                  [&](const std::string& policy) { return !is_candidate(policy, workload); });
  const FitTable table = [&] {
    // Each thread holds a schedule or two.
    constexpr unsigned most_threads = 8;
    Activity activity("building schedules");
    return fit_table(problem, asked, columns,
                     std::clamp(std::thread::hardware_concurrency(), 1u, most_threads),
                     [&](const FitProgress& now) { activity.say(progress_text(now)); });
  }();
  fmt::print("{}", options.json ? to_text(to_json(table)) + "\n" : answer_text(table));
  if (table.fits()) return;
  exit_code = exit_does_not_fit;
  fail_to_fit_at_all(problem, options.run, table.problem, asked.policies);
}

}  // namespace

void add_fit(CLI::App& app, int& exit_code) {
  CLI::App* command = app.add_subcommand(
      "fit", "the largest model, the largest batch and the least memory, by policy");
  auto options = std::make_shared<Options>();
  options->problem.add_to(*command, true, {"pipeline"});
  options->problem.add_framework_to(*command);
  options->run.add_durability_to(*command);
  command
      ->add_option("--policy", options->policies,
                   "of these policies instead of all that auto chooses among; may be repeated")
      ->allow_extra_args(false);
  command
      ->add_option("--largest", options->largest,
                   "model | batch: ask this alone; may be repeated, and go with --least")
      ->check(CLI::IsMember({"model", "batch"}))
      ->allow_extra_args(false);
  command
      ->add_option("--least", options->least,
                   "gpu | host | ssd: ask for the least of this memory alone; may be repeated")
      ->check(CLI::IsMember({"gpu", "host", "ssd"}))
      ->allow_extra_args(false);
  command->add_flag("--json", options->json, "print one JSON object (docs/questions.md)");
  command->callback([options, &exit_code] { run(*options, exit_code); });
}

}  // namespace spillway::cli
