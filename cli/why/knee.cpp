// spillway knee: from where on more drives, more memory, a faster link pay no more.
#include <fmt/format.h>

#include <chrono>
#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/errors.hpp"
#include "cli/commands.hpp"
#include "cli/options/picture_option.hpp"
#include "cli/options/problem_options.hpp"
#include "cli/options/question_options.hpp"
#include "cli/options/run_options.hpp"
#include "cli/text/output.hpp"
#include "cli/text/plan_text.hpp"
#include "cli/text/progress.hpp"
#include "cli/why/knee_text.hpp"
#include "experiments/questions/knee_json.hpp"
#include "experiments/questions/knee_plot.hpp"

namespace spillway::cli {

namespace {

struct Options {
  ProblemOptions problem;
  std::string policy = "auto", durability, gain = "3%", plot;
  std::vector<std::string> resources;
  bool json = false;
};

Knees knees_of(const Options& options, const Problem& problem, const Candidate& now,
               const std::vector<KneeRange>& ranges, const WholeRun& run) {
  Activity activity("trying other machines");
  const auto began = std::chrono::steady_clock::now();
  KneeOptions how = knee_options(options.problem, problem, options.policy, run);
  how.threshold = parse_share("gain", options.gain);
  how.progress = [&](std::size_t done, std::size_t all) {
    const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - began;
    activity.say(done_text(done, all, passed.count(), "machines"));
  };
  return find_knees(options.problem, now, ranges, how);
}

std::string subtitle(const Options& options, const Problem& problem) {
  return fmt::format("batch {}, sequence {}, {}", problem.workload.batch, problem.workload.sequence,
                     assumptions_text(problem, 0) +
                         (options.policy == "auto" ? "; the fastest policy of each" : ""));
}

void run_knee(const Options& options, int& exit_code) {
  check_picture_path("--plot", options.plot);
  const std::vector<KneeRange> ranges = parse_knee_ranges(options.resources);
  parse_share("gain", options.gain);
  const Problem problem = options.problem.problem();
  const WholeRun run{durability_of(options.durability, problem.framework), {}};
  const Candidates found =
      evaluate_as_asked(options.problem, problem, {options.policy}, run, default_steps);
  if (!found.chosen) {
    exit_code = exit_does_not_fit;
    fail_to_fit(found, options.problem, problem, {options.policy}, run, default_steps);
  }
  const Candidate& asked = found.all[*found.chosen];
  const Knees knees = knees_of(options, problem, asked, ranges, run);
  const Candidate& now = knees.faster_now ? *knees.faster_now : asked;
  if (!options.plot.empty()) {
    if (!has_curves(knees))
      throw InputError("--plot: there is nothing to draw: no resource has two values that fit",
                       "leave it out, or name values that do");
    const std::string title = fmt::format("{} on {}, {}: what more of the machine gains",
                                          problem.model.name, problem.machine.name, options.policy);
    write_picture(knee_picture(knees, title, subtitle(options, problem), "knee"), options.plot);
  }
  if (!options.json) {
    fmt::print("{}", knee_text(now, knees));
    return;
  }
  nlohmann::ordered_json json = to_json(knees);
  json["plan"] = to_json(now);
  fmt::print("{}\n", to_text(json));
}

}  // namespace

void add_knee(CLI::App& app, int& exit_code) {
  CLI::App* command = app.add_subcommand(
      "knee", "from where on more drives, more memory, a faster link pay no more");
  auto options = std::make_shared<Options>();
  options->problem.add_to(*command, true, {"pipeline"});
  options->problem.add_framework_to(*command);
  command
      ->add_option("--policy", options->policy,
                   "policy and options, or auto: the one predicted fastest on each machine")
      ->capture_default_str();
  command
      ->add_option(
          "--resource", options->resources,
          fmt::format("{}; may be repeated. With values of your own: ssd.count=2,4,8, "
                      "host.memory=256GB,512GB, pcie=1,2 (times the rate it has). "
                      "Default: {}",
                      fmt::join(knee_resources(), " | "), fmt::join(usual_knee_resources(), ", ")))
      ->allow_extra_args(false);
  command
      ->add_option("--gain", options->gain,
                   "more pays where it gains this share of the throughput, e.g. 3% or 0.03")
      ->capture_default_str();
  command->add_option("--durability", options->durability, durability_help());
  command->add_option("--plot", options->plot,
                      "draw throughput over each resource (.svg or .png; needs gnuplot)");
  command->add_flag("--json", options->json, "print one JSON object (docs/metrics.md)");
  command->callback([options, &exit_code] { run_knee(*options, exit_code); });
}

}  // namespace spillway::cli
