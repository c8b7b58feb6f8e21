// spillway simulate: one policy on one machine, in detail. And estimate: does it fit, how long, how
// much wear.
#include <fmt/format.h>

#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/errors.hpp"
#include "base/units.hpp"
#include "cli/commands.hpp"
#include "cli/explanation_text.hpp"
#include "cli/output.hpp"
#include "cli/problem_options.hpp"
#include "experiments/evaluate.hpp"
#include "experiments/gantt.hpp"
#include "experiments/gnuplot.hpp"
#include "policies/run_record.hpp"
#include "sim/result_json.hpp"
#include "sim/to_trace.hpp"
#include "traces/perfetto.hpp"

namespace spillway::cli {

namespace {

struct Options {
  ProblemOptions problem;
  std::string policy;
  int steps = default_steps;
  std::string trace, dot, gantt;
  bool json = false, explain = false;
};

std::string extension_of(const std::string& path) {
  return std::filesystem::path(path).extension().string();
}

void check_gantt(const std::string& path) {
  if (path.empty()) return;
  check_output_path("--gantt", path);
  if (extension_of(path) != ".svg" && extension_of(path) != ".png") {
    throw InputError(fmt::format("--gantt {}: neither .svg nor .png", path),
                     "name a picture, e.g. --gantt step.svg");
  }
  require_gnuplot();
}

Evaluation evaluate_as_asked(const Options& options) {
  check_output_path("--trace", options.trace);
  check_output_path("--dot", options.dot);
  check_gantt(options.gantt);
  const Problem problem = options.problem.problem();
  if (options.steps < 1 || options.steps > 1000) {
    throw InputError(fmt::format("--steps {} is not in 1 .. 1000", options.steps),
                     "leave it out: a few steps show the steady state");
  }
  const EvaluateOne evaluation = options.problem.evaluation(problem);
  return options.problem.chooses_micro_batch()
             ? evaluate_best_micro_batch(problem, options.policy, options.steps, evaluation)
             : evaluation(problem, options.policy, options.steps);
}

void print_memory(const Schedule& schedule) {
  for (const Tier tier : {Tier::gpu, Tier::host, Tier::ssd}) {
    const TierUse& use = schedule.use(tier);
    fmt::print("  {:<5} {:>10} of {:>10}{}\n", to_string(tier),
               format_bytes(static_cast<double>(use.peak_bytes)),
               format_bytes(static_cast<double>(use.capacity_bytes)),
               use.peak_bytes > use.capacity_bytes ? "   does not fit" : "");
  }
}

void print_header(const Schedule& schedule) {
  const Problem& problem = schedule.problem();
  fmt::print("{} on {}, policy {}\n", problem.model.name, problem.machine.name, schedule.policy());
  fmt::print("  {} sequences of {} tokens a step, {} micro-batch{} of {}\n", problem.workload.batch,
             problem.workload.sequence, problem.workload.micro_batches(),
             problem.workload.micro_batches() == 1 ? "" : "es", problem.workload.micro_batch);
}

void print_result(const Schedule& schedule, const SimulationResult& result,
                  const Explanation& explanation) {
  print_header(schedule);
  fmt::print("step           {}   forward {}, backward {}, optimizer {}\n",
             format_seconds(result.step_seconds), format_seconds(result.phases.forward),
             format_seconds(result.phases.backward), format_seconds(result.phases.optimizer));
  fmt::print("throughput     {:.1f} tokens/s   model {:.4g} TFLOPS, hardware {:.4g} TFLOPS\n",
             result.tokens_per_second, result.model_tflops, result.hardware_tflops);
  fmt::print("bound          {} by {}: {:.1f} % of the bound is reached\n",
             format_seconds(result.bound_seconds), result.bound_by, 100 * result.efficiency);
  fmt::print("ssd written    {} a step\n", format_bytes(result.ssd_bytes_written_per_step));
  fmt::print("lanes          busy     bytes a step\n");
  for (int lane = 0; lane < lane_count; ++lane) {
    const LaneUse& use = result.lanes[static_cast<std::size_t>(lane)];
    if (use.busy_fraction == 0) continue;
    fmt::print("  {:<13} {:>5.1f} %  {:>10}\n", to_string(static_cast<Lane>(lane)),
               100 * use.busy_fraction, use.bytes > 0 ? format_bytes(use.bytes) : "");
  }
  fmt::print("{}", critical_path_text(explanation));
  fmt::print("{}", stalls_text(explanation));
  fmt::print("memory\n");
  print_memory(schedule);
  if (result.extrapolated) {
    fmt::print(
        "note: some kernels were not measured at this shape; their times are extrapolated\n"
        "      (`spillway calibrate --model ... --micro-batches ... --sequence ...` measures "
        "them)\n");
  }
}

void write_dot_file(const Schedule& schedule, const std::string& path) {
  std::ostringstream text;
  schedule.write_dot(text);
  write_file(path, text.str());
}

void run_simulate(const Options& options, int& exit_code) {
  const Evaluation evaluation = evaluate_as_asked(options);
  const Schedule& schedule = evaluation.schedule;
  const SimulationResult* result = evaluation.result ? &*evaluation.result : nullptr;
  if (!options.dot.empty()) write_dot_file(schedule, options.dot);
  if (!options.trace.empty() && result) {
    Trace trace = to_trace(schedule, *result);
    trace.metadata = make_trace(schedule, "simulator").metadata;
    write_trace(trace, options.trace);
  }
  if (!options.gantt.empty() && result) {
    write_file(options.gantt,
               draw(gantt_of(schedule, *result, "gantt"), extension_of(options.gantt).substr(1)));
  }
  if (options.json) {
    std::optional<Explanation> explanation;
    if (result) explanation = explain(schedule, *result);
    fmt::print("{}\n", to_json(schedule, result, evaluation.schedule_seconds,
                               evaluation.simulate_seconds, explanation ? &*explanation : nullptr)
                           .dump(2));
  } else if (options.explain) {
    std::ostringstream text;
    schedule.write_explain(text);
    fmt::print("{}", text.str());
  } else if (result) {
    print_result(schedule, *result, explain(schedule, *result));
  }
  if (!result) {
    exit_code = exit_does_not_fit;
    schedule.require_fit();
  }
}

// What a user wants to know before buying or starting.
void run_estimate(const Options& options, int& exit_code) {
  const Evaluation evaluation = evaluate_as_asked(options);
  const Schedule& schedule = evaluation.schedule;
  const SimulationResult* result = evaluation.result ? &*evaluation.result : nullptr;
  if (options.json) {
    nlohmann::ordered_json json =
        to_json(schedule, result, evaluation.schedule_seconds, evaluation.simulate_seconds);
    fmt::print("{}\n", json.dump(2));
  } else {
    print_header(schedule);
    fmt::print("{}\n", result ? "fits" : "does not fit");
    print_memory(schedule);
    if (result) {
      const double steps_per_day = 86400 / result->step_seconds;
      fmt::print("step         {}   ({:.1f} tokens/s, {:.3g}M tokens a day)\n",
                 format_seconds(result->step_seconds), result->tokens_per_second,
                 result->tokens_per_second * 86400 / 1e6);
      fmt::print("ssd written  {} a step, {} a day\n",
                 format_bytes(result->ssd_bytes_written_per_step),
                 format_bytes(result->ssd_bytes_written_per_step * steps_per_day));
    }
  }
  if (!result) {
    exit_code = exit_does_not_fit;
    schedule.require_fit();
  }
}

}  // namespace

void add_simulate(CLI::App& app, int& exit_code) {
  CLI::App* command = app.add_subcommand("simulate", "simulate one policy in detail");
  auto options = std::make_shared<Options>();
  options->problem.add_to(*command, true);
  command
      ->add_option("--policy", options->policy,
                   "policy and options, e.g. greedysnake:alpha=0.2,snake=off")
      ->required();
  command->add_option("--steps", options->steps, "steps to simulate")->capture_default_str();
  command->add_option("--trace", options->trace,
                      "write the simulated trace (Perfetto JSON; .gz compresses)");
  command->add_option("--gantt", options->gantt,
                      "draw one steady step, a row a lane (.svg or .png; needs gnuplot)");
  command->add_option("--dot", options->dot, "write the schedule's graph for Graphviz");
  command->add_flag("--explain", options->explain, "print the schedule for reading");
  command->add_flag("--json", options->json, "print one JSON object (docs/metrics.md)");
  command->callback([options, &exit_code] { run_simulate(*options, exit_code); });
}

void add_estimate(CLI::App& app, int& exit_code) {
  CLI::App* command = app.add_subcommand(
      "estimate", "does it fit, how long does a step take, how much is written to the SSD");
  auto options = std::make_shared<Options>();
  options->problem.add_to(*command, true);
  command->add_option("--policy", options->policy, "policy and options")->required();
  command->add_flag("--json", options->json, "print one JSON object (docs/metrics.md)");
  command->callback([options, &exit_code] { run_estimate(*options, exit_code); });
}

}  // namespace spillway::cli
