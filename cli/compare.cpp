// spillway compare: all policies side by side.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/units.hpp"
#include "cli/commands.hpp"
#include "cli/options/problem_options.hpp"
#include "cli/options/run_options.hpp"
#include "cli/text/explanation_text.hpp"
#include "cli/text/output.hpp"
#include "cli/text/plan_text.hpp"
#include "cli/why/why_options.hpp"

namespace spillway::cli {

namespace {

struct Options {
  ProblemOptions problem;
  RunOptions run;
  WhyOptions why;
  std::vector<std::string> policies, named;  // by --policy, and by themselves
  bool json = false;
};

// "host needs 30.00 GB of 24.00 GB", of every tier of which there is too little.
std::string needs_text(const Candidate& candidate) {
  std::string text;
  const Schedule& schedule = candidate.evaluation.schedule;
  const TierUses memory = tier_uses(schedule, candidate.wear);
  for (const Tier tier : {Tier::gpu, Tier::host, Tier::ssd}) {
    const TierUse& use = memory[static_cast<std::size_t>(tier)];
    if (use.peak_bytes <= use.capacity_bytes) continue;
    const bool by_copies = schedule.use(tier).peak_bytes <= use.capacity_bytes;
    text += fmt::format("{}{}{} needs {} of {}", text.empty() ? "" : ", ",
                        by_copies ? "with durability, " : "", to_string(tier),
                        format_bytes(static_cast<double>(use.peak_bytes)),
                        format_bytes(static_cast<double>(use.capacity_bytes)));
    const Machine::Gpu& gpu = schedule.problem().machine.gpu;
    if (tier == Tier::gpu && gpu.limit > 0)
      text += fmt::format(" beside {} of workspaces",
                          format_bytes(static_cast<double>(gpu.workspaces)));
  }
  return text;
}

std::string why_not(const Candidate& candidate) {
  return needs_text(candidate) + "; " + to_text(margin_of(candidate));
}

// "4 % host"
std::string least_left_text(const Candidate& candidate) {
  const FitMargin margin = margin_of(candidate);
  return fmt::format("{:.0f} % {}", 100 * margin.share.value_or(0), to_string(margin.tier));
}

bool drives_matter(const SimulationResult& result) {
  const auto bytes = [&](Lane lane) { return result.lanes[static_cast<std::size_t>(lane)].bytes; };
  return bytes(Lane::ssd_read) + bytes(Lane::ssd_write) > 0;
}

// What stands behind the row that `--policy auto` takes, and one that spares the drives.
std::string mark(const Candidates& candidates, std::size_t row) {
  if (candidates.chosen == row) return "  <- fastest: auto takes it";
  if (candidates.writes_less == row)
    return fmt::format("  <- within {:g} % of the fastest, and writes least",
                       100 * as_good_as_fastest);
  return "";
}

std::string life_text(const Wear& wear) {
  if (!wear.drive_years()) return "";
  return fmt::format("{:.3g} years", *wear.drive_years());
}

void print_table(const Candidates& candidates) {
  const std::vector<Candidate>& all = candidates.all;
  const Problem& problem = all.front().evaluation.schedule.problem();
  fmt::print("{} on {}: {} sequences of {} tokens a step\n", problem.model.name,
             problem.machine.name, problem.workload.batch, problem.workload.sequence);
  if (const std::string ranks = ranks_text(problem); !ranks.empty()) fmt::print("{}\n", ranks);
  fmt::print("{}\n", assumptions_text(problem, all.front().evaluation.schedule.steps()));
  std::size_t width = 0;
  for (const Candidate& one : all) width = std::max(width, one.evaluation.schedule.policy().size());
  const bool with_run = all.front().wear.steps.has_value();
  const bool with_life = all.front().wear.rated_bytes > 0;
  const auto extra = [&](const char* run, const char* life) {
    return (with_run ? fmt::format(" {:>10}", run) : "") +
           (with_life ? fmt::format(" {:>12}", life) : "");
  };
  fmt::print(
      "{:<{}} {:>5} {:>10} {:>10} {:>8} {:<13} {:>6} {:>10} {:>10} {:>10} {:>10} {:>11}{}  {}\n",
      "policy", width, "micro", "step", "tokens/s", "TFLOPS", "bound by", "of it", "gpu", "host",
      "ssd", "least left", "ssd written", extra("whole run", "drives last"),
      "the gpu waits most for");
  for (std::size_t i = 0; i < all.size(); ++i) {
    const Schedule& schedule = all[i].evaluation.schedule;
    const Wear& wear = all[i].wear;
    const auto peak = [&](Tier tier) {
      return format_bytes(static_cast<double>(schedule.use(tier).peak_bytes));
    };
    if (!all[i].evaluation.result) {
      fmt::print("{:<{}} {:>5} does not fit: {}\n", schedule.policy(), width,
                 schedule.problem().workload.micro_batch, why_not(all[i]));
      continue;
    }
    const SimulationResult& r = *all[i].evaluation.result;
    const std::string ssd = problem.machine.ssd.count > 0
                                ? format_bytes(static_cast<double>(wear.store.all()))
                                : peak(Tier::ssd);
    fmt::print(
        "{:<{}} {:>5} {:>10} {:>10.1f} {:>8.3g} {:<13} {:>4.0f} % {:>10} {:>10} {:>10} {:>10} "
        "{:>11}{}  "
        "{}{}{}\n",
        schedule.policy(), width, schedule.problem().workload.micro_batch,
        format_seconds(r.step_seconds), r.tokens_per_second, r.model_tflops, r.bound_by,
        100 * r.efficiency, peak(Tier::gpu), peak(Tier::host), ssd, least_left_text(all[i]),
        format_bytes(wear.bytes_per_step()),
        extra(format_bytes(wear.run_bytes().value_or(0)).c_str(), life_text(wear).c_str()),
        longest_stall_text(explain(schedule, r)),
        drives_matter(r) && problem.machine.ssd.extrapolated() ? "  extrapolated" : "",
        mark(candidates, i));
  }
  for (const Refusal& refusal : candidates.refused)
    fmt::print("{:<{}} cannot run this: {}\n", refusal.policy, width, refusal.reason);
  const std::string note = extrapolation_text(problem.machine);
  if (!note.empty()) fmt::print("{}\n", note);
}

nlohmann::ordered_json to_json(const Candidates& candidates) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const Candidate& one : candidates.all) {
    const Evaluation& evaluation = one.evaluation;
    std::optional<Explanation> explanation;
    if (evaluation.result) explanation = explain(evaluation.schedule, *evaluation.result);
    list.push_back(to_json(one, explanation ? &*explanation : nullptr));
  }
  nlohmann::ordered_json json = {{"policies", std::move(list)}};
  const auto policy_of = [&](const std::optional<std::size_t>& index) {
    return index ? nlohmann::ordered_json(candidates.all[*index].evaluation.schedule.policy())
                 : nlohmann::ordered_json();
  };
  json["fastest"] = policy_of(candidates.chosen);
  json["auto"] = json["fastest"];
  json["writes_less"] = policy_of(candidates.writes_less);
  for (const Refusal& refusal : candidates.refused)
    json["refused"].push_back({{"policy", refusal.policy}, {"reason", refusal.reason}});
  return json;
}

void run(const Options& options, int& exit_code) {
  const Problem problem = options.problem.problem();
  const WholeRun whole = options.run.whole_run(problem.workload, problem.framework);
  std::vector<std::string> policies = options.named;
  policies.insert(policies.end(), options.policies.begin(), options.policies.end());
  if (options.why.why) {
    options.why.answer(options.problem, policies, whole, options.json, exit_code);
    return;
  }
  if (policies.empty()) policies.emplace_back("auto");
  const Candidates candidates =
      evaluate_as_asked(options.problem, problem, policies, whole, default_steps);
  if (options.json) {
    fmt::print("{}\n", to_text(to_json(candidates)));
  } else {
    print_table(candidates);
  }
  if (!candidates.chosen) {
    exit_code = exit_does_not_fit;
    fail_to_fit(candidates, options.problem, problem, policies, whole, default_steps);
  }
}

}  // namespace

void add_compare(CLI::App& app, int& exit_code) {
  CLI::App* command = app.add_subcommand("compare", "simulate all policies side by side");
  auto options = std::make_shared<Options>();
  options->problem.add_to(*command, true);
  options->problem.add_framework_to(*command);
  options->run.add_to(*command);
  options->why.add_to(*command);
  command->add_option("policies", options->named,
                      "policies with options to compare, as with --policy");
  command
      ->add_option("--policy", options->policies,
                   "compare these policies instead of all that auto chooses among; may be repeated")
      ->allow_extra_args(false);
  command->add_flag("--json", options->json, "print one JSON object (docs/metrics.md)");
  command->callback([options, &exit_code] { run(*options, exit_code); });
}

}  // namespace spillway::cli
