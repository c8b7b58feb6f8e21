#include "cli/why/why_options.hpp"

#include <fmt/format.h>

#include <chrono>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/errors.hpp"
#include "cli/commands.hpp"
#include "cli/options/picture_option.hpp"
#include "cli/text/output.hpp"
#include "cli/text/plan_text.hpp"
#include "cli/text/progress.hpp"
#include "cli/why/why_text.hpp"
#include "experiments/plan/in_parallel.hpp"
#include "experiments/plots/gantt_pair.hpp"
#include "experiments/why/why_json.hpp"

namespace spillway::cli {

namespace {

std::vector<std::string> names_in(const std::string& list) {
  std::vector<std::string> names;
  std::istringstream text(list);
  for (std::string name; std::getline(text, name, ',');) names.push_back(name);
  return names;
}

AskedPlan plan_of(const std::string& policy, const ProblemOptions& options, const Problem& problem,
                  const WholeRun& run, int& exit_code) {
  Candidates found = evaluate_as_asked(options, problem, {policy}, run, default_steps);
  if (found.chosen) return {policy, std::move(found.all[*found.chosen])};
  exit_code = exit_does_not_fit;
  // The two that are compared were named.
  constexpr bool other_policies = false;
  fail_to_fit(found, options, problem, {policy}, run, default_steps, other_policies);
}

Why explained(const Problem& problem, const AskedPlan& a, const AskedPlan& b,
              const ProblemOptions& options, const WholeRun& run, const std::string& first) {
  Activity activity("changing one setting at a time");
  const auto began = std::chrono::steady_clock::now();
  AblationOptions how;
  how.first = names_in(first);
  how.threads = usual_threads();
  how.progress = [&](std::size_t done, std::size_t most) {
    const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - began;
    activity.say(done_text(done, most, passed.count(), "plans between the two"));
  };
  return explain_difference(problem, a, b, options.evaluation(problem), run.durability.on(), how);
}

}  // namespace

void WhyOptions::add_to(CLI::App& command) {
  auto* asked = command.add_flag(
      "--why", why,
      "say why one of two policies is faster: what rests where, what each lane does, critical "
      "paths, and what each setting in which they differ gains");
  command
      .add_option("--gantt", gantt,
                  "with --why: draw a step of both on one axis of time, with the memory in use "
                  "(.svg or .png; needs gnuplot)")
      ->needs(asked);
  command
      .add_option("--change-first", first,
                  "with --why: settings that are changed first, in this order, e.g. "
                  "order.row,micro_batch; the others follow, each time what gains most")
      ->needs(asked);
}

void WhyOptions::answer(const ProblemOptions& options, const std::vector<std::string>& policies,
                        const WholeRun& run, bool json, int& exit_code) const {
  if (policies.size() != 2)
    throw InputError(fmt::format("--why is asked of {} polic{}", policies.size(),
                                 policies.size() == 1 ? "y" : "ies"),
                     "name the two that are to be compared: spillway compare zero-infinity "
                     "greedysnake --why ...");
  check_picture_path("--gantt", gantt);
  const Problem problem = options.problem();
  const AskedPlan a = plan_of(policies[0], options, problem, run, exit_code);
  const AskedPlan b = plan_of(policies[1], options, problem, run, exit_code);
  const Why why = explained(problem, a, b, options, run, first);
  if (!gantt.empty()) {
    const Evaluation &of_a = a.plan.evaluation, &of_b = b.plan.evaluation;
    write_picture(
        gantt_pair_of({of_a.schedule, *of_a.result}, {of_b.schedule, *of_b.result}, "gantt_pair"),
        gantt);
  }
  fmt::print("{}", json ? to_text(to_json(why)) + "\n" : why_text(why));
}

}  // namespace spillway::cli
