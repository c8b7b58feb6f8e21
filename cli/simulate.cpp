// spillway simulate: one policy on one machine, in detail.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/errors.hpp"
#include "base/units.hpp"
#include "cli/commands.hpp"
#include "cli/options/picture_option.hpp"
#include "cli/options/problem_options.hpp"
#include "cli/options/run_options.hpp"
#include "cli/options/setting_options.hpp"
#include "cli/text/assumptions_text.hpp"
#include "cli/text/command_text.hpp"
#include "cli/text/explanation_text.hpp"
#include "cli/text/output.hpp"
#include "cli/text/plan_text.hpp"
#include "cli/text/progress.hpp"
#include "experiments/plan/all_ranks.hpp"
#include "experiments/plots/gantt.hpp"
#include "experiments/questions/assumptions.hpp"
#include "experiments/questions/questions_json.hpp"
#include "policies/common/run_record.hpp"
#include "sim/to_trace.hpp"
#include "traces/perfetto.hpp"

namespace spillway::cli {

namespace {

struct Options {
  ProblemOptions problem;
  std::string policy, durability;
  int steps = default_steps;
  std::string trace, dot, gantt;
  bool json = false, explain = false, all_ranks = false;
  std::optional<bool> sensitivity;
};

void check(const Options& options) {
  check_output_path("--trace", options.trace, &only_a_trace());
  check_output_path("--dot", options.dot);
  check_picture_path("--gantt", options.gantt);
  if (options.steps < 1 || options.steps > 1000) {
    throw InputError(fmt::format("--steps {} is not in 1 .. 1000", options.steps),
                     "leave it out: a few steps show the steady state");
  }
}

std::string all_ranks_text(const AllRanks& all, double alone) {
  if (all.are_as_one())
    return fmt::format("all {} together: each takes what one by itself does, to the nanosecond\n",
                       all.step_seconds.size());
  const auto [least, most] = std::minmax_element(all.step_seconds.begin(), all.step_seconds.end());
  return fmt::format(
      "all {} together: {} to {} a step; one by itself, whose shards are the largest: {}\n",
      all.step_seconds.size(), format_seconds(*least), format_seconds(*most),
      format_seconds(alone));
}

nlohmann::ordered_json to_json(const AllRanks& all) {
  return {{"step_seconds", all.step_seconds},
          {"as_one", all.are_as_one()},
          {"furthest_ns", all.same_tasks ? nlohmann::ordered_json(all.furthest_ns)
                                         : nlohmann::ordered_json(nullptr)}};
}

// The stages of a pipeline side by side.
std::string stages_text(const std::vector<StageEvaluation>& stages) {
  std::string text = "stages         layers  computes         gpu        host         ssd\n";
  for (std::size_t stage = 0; stage < stages.size(); ++stage) {
    const StageEvaluation& one = stages[stage];
    text += fmt::format("  {:<12} {:>6}   {:>5.1f} %", stage, one.layers, 100 * one.computes);
    for (const std::uint64_t bytes : one.peaks)
      text += fmt::format("  {:>10}", format_bytes(static_cast<double>(bytes)));
    text += "\n";
  }
  return text + "  ssd: without copies of optimizer state for commits\nbelow: of stage 0\n";
}

void print_result(const Candidate& candidate, const SimulationResult& result,
                  const Explanation& explanation, const std::optional<AllRanks>& all) {
  const Problem& problem = candidate.evaluation.schedule.problem();
  fmt::print("{}", header_text(candidate));
  fmt::print("step           {}   forward {}, backward {}, optimizer {}\n",
             format_seconds(result.step_seconds), format_seconds(result.phases.forward),
             format_seconds(result.phases.backward), format_seconds(result.phases.optimizer));
  fmt::print("{}", interval_text(candidate.evaluation, "               "));
  fmt::print("throughput     {:.1f} tokens/s   model {:.4g} TFLOPS, hardware {:.4g} TFLOPS\n",
             result.tokens_per_second, result.model_tflops, result.hardware_tflops);
  if (problem.workload.ranks > 1)
    fmt::print("ranks          {:.1f} tokens/s a GPU\n",
               result.tokens_per_second / static_cast<double>(problem.workload.ranks));
  if (all) fmt::print("               {}", all_ranks_text(*all, result.step_seconds));
  fmt::print("bound          {} by {}: {:.1f} % of the bound is reached\n",
             format_seconds(result.bound_seconds), result.bound_by, 100 * result.efficiency);
  fmt::print("{}", wear_text(candidate.wear, problem.machine, "", 15));
  if (!candidate.evaluation.stages.empty())
    fmt::print("{}", stages_text(candidate.evaluation.stages));
  fmt::print("lanes          busy     bytes a step\n");
  for (int lane = 0; lane < lane_count; ++lane) {
    const LaneUse& use = result.lanes[static_cast<std::size_t>(lane)];
    if (use.busy_fraction == 0) continue;
    fmt::print("  {:<13} {:>5.1f} %  {:>10}\n", to_string(static_cast<Lane>(lane)),
               100 * use.busy_fraction, use.bytes > 0 ? format_bytes(use.bytes) : "");
  }
  fmt::print("{}", critical_path_text(explanation));
  fmt::print("{}", stalls_text(explanation));
  fmt::print("memory: {}\n{}", to_text(margin_of(candidate)), memory_text(candidate));
}

// Simulating a longer schedule some twenty times over takes more than a few seconds.
constexpr std::size_t most_tasks_unasked = 500'000;

// Whether to simulate the step at the ends of what is assumed: as asked; else where people read the
// answer, and it is soon there.
bool looks_at_effects(const Options& options, const Schedule& schedule) {
  return options.sensitivity.value_or(!options.json &&
                                      schedule.tasks().size() <= most_tasks_unasked);
}

std::optional<AssumptionEffects> effects_if_asked(const Options& options,
                                                  const Evaluation& evaluation) {
  if (options.explain || !evaluation.result || !looks_at_effects(options, evaluation.schedule))
    return {};
  Activity activity("simulating what is assumed");
  return effects_of_assumptions(evaluation.schedule, *evaluation.result,
                                [&](const std::string& what) { activity.say(what); });
}

void write_dot_file(const Schedule& schedule, const std::string& path) {
  std::ostringstream text;
  schedule.write_dot(text);
  write_file(path, text.str());
}

void run_simulate(const Options& options, int& exit_code) {
  check(options);
  const Problem problem = options.problem.problem();
  const WholeRun run{durability_of(options.durability, problem.framework), {}};
  const Candidates candidates =
      evaluate_as_asked(options.problem, problem, {options.policy}, run, options.steps);
  const Candidate& candidate =
      candidates.chosen ? candidates.all[*candidates.chosen] : nearest(candidates, run.durability);
  const Evaluation& evaluation = candidate.evaluation;
  const Schedule& schedule = evaluation.schedule;
  const Machine& machine = schedule.problem().machine;
  const SimulationResult* result = evaluation.result ? &*evaluation.result : nullptr;
  if (!options.dot.empty()) write_dot_file(schedule, options.dot);
  if (!options.trace.empty() && result) {
    Trace trace = to_trace(schedule, *result);
    trace.metadata = make_trace(schedule, "simulator").metadata;
    write_trace(trace, options.trace);
  }
  if (!options.gantt.empty() && result)
    write_picture(gantt_of(schedule, *result, std::filesystem::path(options.gantt).stem().string()),
                  options.gantt);
  std::optional<AllRanks> all;
  if (options.all_ranks && result) all = simulate_all_ranks(schedule, *result);
  if (options.json) {
    std::optional<Explanation> explanation;
    if (result) explanation = explain(schedule, *result);
    nlohmann::ordered_json json = to_json(candidate, explanation ? &*explanation : nullptr);
    const std::optional<AssumptionEffects> effects = effects_if_asked(options, evaluation);
    json["assumed"] = effects ? to_json(*effects) : to_json(assumed_values(machine));
    if (all) json["all_ranks"] = to_json(*all);
    fmt::print("{}\n", to_text(json));
  } else {
    if (result) {
      print_result(candidate, *result, explain(schedule, *result), all);
      const std::optional<AssumptionEffects> effects = effects_if_asked(options, evaluation);
      fmt::print("{}", effects ? effects_text(*effects) : assumed_text(assumed_values(machine)));
    }
    if (options.explain) {
      std::ostringstream text;
      schedule.write_explain(text);
      fmt::print("{}{}", result ? "\n" : "", text.str());
    }
  }
  if (!result) {
    exit_code = exit_does_not_fit;
    fail_to_fit(candidates, options.problem, problem, {options.policy}, run, options.steps);
  }
}

}  // namespace

void add_simulate(CLI::App& app, int& exit_code) {
  CLI::App* command = app.add_subcommand("simulate", "simulate one policy in detail");
  auto options = std::make_shared<Options>();
  options->problem.add_to(*command, true);
  options->problem.add_framework_to(*command);
  command
      ->add_option("--policy", options->policy,
                   "policy and options, e.g. greedysnake:alpha=0.2,snake=off; or auto: the one "
                   "predicted fastest")
      ->required();
  command->add_option("--steps", options->steps, "steps to simulate")->capture_default_str();
  command->add_option("--durability", options->durability, durability_help());
  command->add_option("--trace", options->trace,
                      "write the simulated trace (Perfetto JSON; .gz compresses)");
  command->add_option("--gantt", options->gantt,
                      "draw one steady step, a row a lane (.svg or .png, with the script and the "
                      "data beside it; needs gnuplot)");
  command->add_option("--dot", options->dot, "write the schedule's graph for Graphviz");
  command->add_flag("--all-ranks", options->all_ranks,
                    "simulate every GPU of the machine, and say whether one stands for all");
  command->add_flag("--explain", options->explain, "print the schedule for reading, too");
  command->add_flag_callback(
      "--sensitivity", [options] { options->sensitivity = true; },
      "simulate the step with each assumed value of the machine at both ends of its range: done "
      "without being asked unless with --json, or where it takes long");
  command->add_flag_callback(
      "--no-sensitivity", [options] { options->sensitivity = false; },
      "name what is assumed, and leave out how far it moves the step");
  command->add_flag("--json", options->json, "print one JSON object (docs/metrics.md)");
  command->callback([options, &exit_code] { run_simulate(*options, exit_code); });
}

}  // namespace spillway::cli
