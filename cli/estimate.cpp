// spillway estimate: does it fit, how long does it take, how much is written to the drives.
#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "base/units.hpp"
#include "cli/commands.hpp"
#include "cli/options/problem_options.hpp"
#include "cli/options/run_options.hpp"
#include "cli/text/output.hpp"
#include "cli/text/plan_text.hpp"

namespace spillway::cli {

namespace {

struct Options {
  ProblemOptions problem;
  RunOptions run;
  std::string policy;
  bool json = false;
};

// What a user wants to know before buying or starting.
void print(const Candidate& candidate) {
  const SimulationResult* result =
      candidate.evaluation.result ? &*candidate.evaluation.result : nullptr;
  const Problem& problem = candidate.evaluation.schedule.problem();
  fmt::print("{}{}\n{}", header_text(candidate), result ? "fits" : "does not fit",
             memory_text(candidate));
  if (result) {
    fmt::print("step         {}   ({:.1f} tokens/s, {:.3g}M tokens a day)\n",
               format_seconds(result->step_seconds), result->tokens_per_second,
               result->tokens_per_second * 86400 / 1e6);
    fmt::print("{}", wear_text(candidate.wear, problem.machine));
  }
  fmt::print("{}", trainable_text(problem.model));
}

void run(const Options& options, int& exit_code) {
  const Problem problem = options.problem.problem();
  const WholeRun whole = options.run.whole_run(problem.workload);
  const Candidates candidates =
      evaluate_as_asked(options.problem, problem, {options.policy}, whole, default_steps);
  const Candidate& candidate = candidates.chosen ? candidates.all[*candidates.chosen]
                                                 : nearest(candidates, whole.durability);
  if (options.json) {
    fmt::print("{}\n", to_text(to_json(candidate)));
  } else {
    print(candidate);
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
  options->problem.add_to(*command, true);
  options->problem.add_framework_to(*command);
  options->run.add_to(*command);
  command
      ->add_option("--policy", options->policy,
                   "policy and options, or auto: the one predicted fastest")
      ->required();
  command->add_flag("--json", options->json, "print one JSON object (docs/metrics.md)");
  command->callback([options, &exit_code] { run(*options, exit_code); });
}

}  // namespace spillway::cli
