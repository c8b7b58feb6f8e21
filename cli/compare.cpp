// spillway compare: policies side by side.
#include <fmt/format.h>

#include <chrono>
#include <memory>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/errors.hpp"
#include "cli/commands.hpp"
#include "cli/options/problem_options.hpp"
#include "cli/options/run_options.hpp"
#include "cli/text/compare_text.hpp"
#include "cli/text/output.hpp"
#include "cli/text/plan_text.hpp"
#include "cli/why/why_options.hpp"
#include "experiments/watch/training_line.hpp"

namespace spillway::cli {

namespace {

struct Options {
  ProblemOptions problem;
  RunOptions run;
  WhyOptions why;
  std::vector<std::string> policies, positional;  // by --policy, and by themselves
  std::string recompute;
  bool best = false, json = false;
};

// "comparing fuyou, some 0:12 left"
std::string progress_text(const std::string& what, double done, double seconds) {
  if (done <= 0.02) return what;
  return fmt::format("{}, some {} left", what, format_clock(seconds * (1 - done) / done));
}

Comparison compare(const Options& options, const std::vector<std::string>& policies,
                   const Problem& problem, const WholeRun& whole) {
  Activity activity("building the schedules");
  CompareRequest request;
  request.policies = policies_to_compare(policies);
  request.choose_micro_batch = options.problem.chooses_micro_batch();
  request.at_best = options.best;
  if (!options.recompute.empty()) request.recomputation = parse_recomputation(options.recompute);
  request.run = whole;
  request.evaluate_one = options.best ? options.problem.evaluation(problem)
                                      : options.problem.evaluation(problem, activity);
  request.settle = options.problem.settle(problem);
  request.threads = std::max(1u, std::thread::hardware_concurrency());
  const auto began = std::chrono::steady_clock::now();
  request.progress = [&](const std::string& what, double done) {
    const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - began;
    activity.say(progress_text(what, done, passed.count()));
  };
  return compare_policies(problem, request);
}

void run(const Options& options, int& exit_code) {
  const Problem problem = options.problem.problem();
  const WholeRun whole = options.run.whole_run(problem.workload, problem.framework);
  std::vector<std::string> policies = options.positional;
  policies.insert(policies.end(), options.policies.begin(), options.policies.end());
  if (options.why.why) {
    options.why.answer(options.problem, policies, whole, options.json, exit_code);
    return;
  }
  const Comparison comparison = compare(options, policies, problem, whole);
  fmt::print("{}", options.json ? to_text(to_json(comparison)) + "\n"
                                : comparison_text(problem, comparison));
  if (comparison.candidates.chosen) return;
  exit_code = exit_does_not_fit;
  if (policies.empty()) policies.emplace_back("auto");
  fail_to_fit(comparison.candidates, options.problem, problem, policies, whole, default_steps);
}

}  // namespace

void add_compare(CLI::App& app, int& exit_code) {
  CLI::App* command = app.add_subcommand(
      "compare",
      "simulate policies side by side: as published, at their best, or all with the "
      "same recomputation");
  auto options = std::make_shared<Options>();
  options->problem.add_to(*command, true);
  options->problem.add_framework_to(*command);
  options->run.add_to(*command);
  options->why.add_to(*command);
  command->add_option("policies", options->positional,
                      "policies with options to compare, as with --policy");
  command
      ->add_option("--policy", options->policies,
                   "compare these policies instead of all that auto chooses among; may be repeated")
      ->allow_extra_args(false);
  command->add_flag("--best", options->best,
                    "each policy at its best: with the fastest settings that a search over their "
                    "domains and the micro-batch finds");
  command
      ->add_option("--recompute", options->recompute,
                   "off | needed | full: every policy with this recomputation, where its settings "
                   "allow it; rows that cannot follow are not compared")
      ->check(CLI::IsMember({"off", "needed", "full"}));
  command->add_flag("--json", options->json, "print one JSON object (docs/metrics.md)");
  command->callback([options, &exit_code] { run(*options, exit_code); });
}

}  // namespace spillway::cli
