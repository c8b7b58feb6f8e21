// spillway compare: all policies side by side.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/units.hpp"
#include "cli/commands.hpp"
#include "cli/explanation_text.hpp"
#include "cli/problem_options.hpp"
#include "experiments/evaluate.hpp"
#include "sim/result_json.hpp"

namespace spillway::cli {

namespace {

struct Options {
  ProblemOptions problem;
  std::vector<std::string> policies;
  bool json = false;
};

std::string why_not(const Schedule& schedule) {
  std::string text;
  for (const Tier tier : {Tier::gpu, Tier::host, Tier::ssd}) {
    const TierUse& use = schedule.use(tier);
    if (use.peak_bytes <= use.capacity_bytes) continue;
    text += fmt::format("{}{} needs {} of {}", text.empty() ? "" : ", ", to_string(tier),
                        format_bytes(static_cast<double>(use.peak_bytes)),
                        format_bytes(static_cast<double>(use.capacity_bytes)));
  }
  return text;
}

void print_table(const std::vector<Evaluation>& all) {
  const Problem& problem = all.front().schedule.problem();
  fmt::print("{} on {}: {} sequences of {} tokens a step\n", problem.model.name,
             problem.machine.name, problem.workload.batch, problem.workload.sequence);
  std::size_t width = 0;
  for (const Evaluation& one : all) width = std::max(width, one.schedule.policy().size());
  fmt::print("{:<{}} {:>5} {:>10} {:>10} {:>8} {:<13} {:>6} {:>10} {:>10} {:>10} {:>11}  {}\n",
             "policy", width, "micro", "step", "tokens/s", "TFLOPS", "bound by", "of it", "gpu",
             "host", "ssd", "ssd written", "the gpu waits most for");
  const auto best = fastest(all);
  for (std::size_t i = 0; i < all.size(); ++i) {
    const Schedule& schedule = all[i].schedule;
    const auto peak = [&](Tier tier) {
      return format_bytes(static_cast<double>(schedule.use(tier).peak_bytes));
    };
    if (!all[i].result) {
      fmt::print("{:<{}} {:>5} does not fit: {}\n", schedule.policy(), width,
                 schedule.problem().workload.micro_batch, why_not(schedule));
      continue;
    }
    const SimulationResult& r = *all[i].result;
    fmt::print(
        "{:<{}} {:>5} {:>10} {:>10.1f} {:>8.3g} {:<13} {:>4.0f} % {:>10} {:>10} {:>10} {:>11}  "
        "{}{}\n",
        schedule.policy(), width, schedule.problem().workload.micro_batch,
        format_seconds(r.step_seconds), r.tokens_per_second, r.model_tflops, r.bound_by,
        100 * r.efficiency, peak(Tier::gpu), peak(Tier::host), peak(Tier::ssd),
        format_bytes(r.ssd_bytes_written_per_step), longest_stall_text(explain(schedule, r)),
        best == i ? "  <- fastest" : "");
  }
}

void run(const Options& options, int& exit_code) {
  const Problem problem = options.problem.problem();
  const auto all = evaluate_policies(problem, options.problem.chooses_micro_batch(),
                                     options.policies, options.problem.evaluation(problem));
  if (options.json) {
    nlohmann::ordered_json list = nlohmann::ordered_json::array();
    for (const Evaluation& one : all) {
      std::optional<Explanation> explanation;
      if (one.result) explanation = explain(one.schedule, *one.result);
      list.push_back(to_json(one.schedule, one.result ? &*one.result : nullptr,
                             one.schedule_seconds, one.simulate_seconds,
                             explanation ? &*explanation : nullptr));
    }
    fmt::print("{}\n", nlohmann::ordered_json{{"policies", list}}.dump(2));
  } else {
    print_table(all);
  }
  if (!fastest(all)) {
    exit_code = exit_does_not_fit;
    all.back().schedule.require_fit();
  }
}

}  // namespace

void add_compare(CLI::App& app, int& exit_code) {
  CLI::App* command = app.add_subcommand("compare", "simulate all policies side by side");
  auto options = std::make_shared<Options>();
  options->problem.add_to(*command, true);
  command
      ->add_option("--policy", options->policies,
                   "compare these policies instead of all; may be repeated")
      ->allow_extra_args(false);
  command->add_flag("--json", options->json, "print one JSON object (docs/metrics.md)");
  command->callback([options, &exit_code] { run(*options, exit_code); });
}

}  // namespace spillway::cli
