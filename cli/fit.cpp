// spillway fit: the largest model, the largest batch, the least memory, by policy.
#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "cli/commands.hpp"
#include "cli/options/problem_options.hpp"
#include "cli/options/question_options.hpp"
#include "cli/options/run_options.hpp"
#include "cli/text/fit_text.hpp"
#include "cli/text/output.hpp"
#include "cli/text/progress.hpp"
#include "experiments/plan/in_parallel.hpp"
#include "experiments/questions/questions_json.hpp"
#include "experiments/watch/training_line.hpp"

namespace spillway::cli {

namespace {

struct Options {
  ProblemOptions problem;
  RunOptions run;
  std::vector<std::string> policies, largest, least;
  bool json = false;
};

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
  const FitColumns columns = fit_columns(options.largest, options.least);
  ProblemOptions problem = options.problem;
  static_cast<ProblemRequest&>(problem) = with_batch(problem, columns);
  const Problem smallest = problem.problem();
  const PlansAsked asked = plans_asked(problem, options.run, smallest,
                                       policies_to_fit(options.policies, smallest.workload));
  const FitTable table = [&] {
    Activity activity("building schedules");
    return fit_table(problem, asked, columns, usual_threads(),
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
