// spillway validate: predicted against measured, for a recorded trace.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <tuple>

#include "base/errors.hpp"
#include "base/units.hpp"
#include "cli/commands.hpp"
#include "cli/options/problem_options.hpp"
#include "cli/options/run_options.hpp"
#include "cli/text/assumptions_text.hpp"
#include "cli/text/kineto_text.hpp"
#include "cli/text/output.hpp"
#include "cli/text/plan_text.hpp"
#include "cli/text/progress.hpp"
#include "experiments/validate/kineto_mapping.hpp"
#include "experiments/validate/validate.hpp"
#include "experiments/validate/validate_kineto.hpp"
#include "sim/result_json.hpp"
#include "traces/perfetto.hpp"

namespace spillway::cli {

namespace {

using nlohmann::ordered_json;

struct Options {
  ProblemOptions problem;  // of a recorded trace: only --machine and --set
  std::string trace;
  std::string kineto, mapping, policy, lanes;
  int steps = default_steps;
  bool json = false;
};

ordered_json to_json(const Validation& v) {
  const TraceComparison& c = v.comparison;
  ordered_json kinds, lanes, critical;
  for (const Quantity& kind : c.kinds) {
    kinds[kind.name] = {{"predicted", kind.predicted_seconds},
                        {"measured", kind.measured_seconds},
                        {"error", kind.error}};
  }
  for (const LaneQuantity& lane : c.lanes) {
    lanes[lane.name] = {{"predicted_busy", lane.predicted_busy},
                        {"measured_busy", lane.measured_busy}};
  }
  for (const CriticalShare& share : v.critical_path) {
    critical[share.kind] = {{"predicted", share.predicted_seconds},
                            {"measured", share.measured_seconds}};
  }
  ordered_json divergence;
  if (c.first_divergence) {
    divergence = {
        {"task", c.first_divergence->task},
        {"description", c.first_divergence->description},
        {"predicted_seconds", static_cast<double>(c.first_divergence->predicted_ns) / 1e9},
        {"measured_seconds", static_cast<double>(c.first_divergence->measured_ns) / 1e9}};
  }
  ordered_json json = {{"policy", v.schedule.policy()},
                       {"model", v.schedule.problem().model.name},
                       {"machine", v.schedule.problem().machine.name},
                       {"workload", spillway::to_json(v.schedule.problem().workload)},
                       {"steps", v.schedule.steps()},
                       {"overrides", v.schedule.problem().overrides},
                       {"predicted_step_seconds", c.predicted.median_seconds},
                       {"measured_step_seconds", c.measured.median_seconds},
                       {"error", c.error},
                       {"measured_steps", c.measured.seconds.size()},
                       {"extrapolated", !v.predicted.extrapolates.empty()},
                       {"extrapolates", v.predicted.extrapolates},
                       {"kinds", kinds},
                       {"lanes", lanes},
                       {"critical_path", critical},
                       {"first_divergence", divergence},
                       {"diverging_tasks", c.diverging_tasks},
                       {"matched_tasks", c.matched_tasks}};
  if (v.corrected) {
    json["drift"] = v.corrected->drift;
    json["corrected_step_seconds"] = v.corrected->predicted_seconds;
    json["corrected_error"] = v.corrected->error;
  }
  if (v.uncertainty) {
    json["step_seconds_interval"] = {v.uncertainty->low(v.expected_seconds()),
                                     v.uncertainty->high(v.expected_seconds())};
    json["interval_share"] = interval_share;
  }
  return json;
}

void print_drift(const Validation& v) {
  const double predicted = v.comparison.predicted.median_seconds;
  if (v.corrected) {
    fmt::print("machine    {}\n",
               drift_text(v.corrected->drift, v.corrected->predicted_seconds / predicted - 1));
    fmt::print("corrected  predicted {:>10}   error {:+.1f} %   (each rate by its own reference)\n",
               format_seconds(v.corrected->predicted_seconds), 100 * v.corrected->error);
  }
  if (!v.uncertainty) return;
  const double low = v.uncertainty->low(v.expected_seconds()),
               high = v.uncertainty->high(v.expected_seconds());
  const double measured = v.comparison.measured.median_seconds;
  fmt::print("interval   {} to {} holds {:.0f} % of runs; this one lies {}\n", format_seconds(low),
             format_seconds(high), 100 * interval_share,
             measured >= low && measured <= high ? "inside" : "outside");
}

void print_report(const Validation& v, const std::string& path) {
  const TraceComparison& c = v.comparison;
  fmt::print("{}: {} with policy {}\n", path, v.schedule.problem().model.name, v.schedule.policy());
  fmt::print("{}\n", assumptions_text(v.schedule.problem(), v.schedule.steps()));
  fmt::print(
      "step       predicted {:>10}   measured {:>10}   error {:+.1f} %   (median of {} step{}{})\n",
      format_seconds(c.predicted.median_seconds), format_seconds(c.measured.median_seconds),
      100 * c.error, c.measured.seconds.size(), c.measured.seconds.size() == 1 ? "" : "s",
      c.measured.filling ? ", with the filling of the pipeline" : "");
  print_drift(v);
  fmt::print("{:<16} {:>12} {:>12} {:>9}   seconds a step, all tasks of the kind added up\n",
             "kind", "predicted", "measured", "error");
  for (const Quantity& kind : c.kinds) {
    fmt::print("  {:<14} {:>12} {:>12} {:>+7.1f} %\n", kind.name,
               format_seconds(kind.predicted_seconds), format_seconds(kind.measured_seconds),
               100 * kind.error);
  }
  fmt::print("{:<16} {:>12} {:>12}   busy\n", "lane", "predicted", "measured");
  for (const LaneQuantity& lane : c.lanes) {
    fmt::print("  {:<14} {:>10.1f} % {:>10.1f} %\n", lane.name, 100 * lane.predicted_busy,
               100 * lane.measured_busy);
  }
  fmt::print(
      "{:<16} {:>12} {:>12}   on the longest chain of tasks that wait for each other, a step\n",
      "kind", "predicted", "measured");
  for (const CriticalShare& share : v.critical_path) {
    fmt::print("  {:<14} {:>12} {:>12}\n", share.kind, format_seconds(share.predicted_seconds),
               format_seconds(share.measured_seconds));
  }
  if (c.first_divergence) {
    fmt::print(
        "first divergence: task {} ({}): predicted {}, measured {}; {} of {} tasks differ by more "
        "than 25 % and 200 us\n",
        c.first_divergence->task, c.first_divergence->description,
        format_seconds(static_cast<double>(c.first_divergence->predicted_ns) / 1e9),
        format_seconds(static_cast<double>(c.first_divergence->measured_ns) / 1e9),
        c.diverging_tasks, c.matched_tasks);
  } else {
    fmt::print("no task differs by more than 25 % and 200 us\n");
  }
  fmt::print("{}", extrapolation_text(v.predicted.extrapolates));
}

void require_trace(const std::string& path) {
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored)) {
    throw InputError(path + ": no such trace file", "check the spelling of the path");
  }
  if (std::filesystem::is_directory(path, ignored)) {
    throw InputError(
        path + ": this is a folder",
        "name a trace in it, e.g. " + (std::filesystem::path(path) / "trace.json.gz").string());
  }
}

void check(const Options& options) {
  require_trace(options.trace);
  if (!options.problem.overrides.empty() && options.problem.machine.empty()) {
    throw InputError("--set changes a key of --machine, and none is named",
                     "name a machine too, e.g. the machine.toml of the run");
  }
}

// Settings are as many as follow --set, and the trace may follow them: it is the one that sets
// nothing.
void take_trace_from_settings(Options& options) {
  const auto sets_nothing = [](const std::string& text) {
    return text.find('=') == std::string::npos;
  };
  std::vector<std::string>& settings = options.problem.overrides;
  const auto trace = std::find_if(settings.begin(), settings.end(), sets_nothing);
  if (options.trace.empty() && trace != settings.end()) {
    options.trace = *trace;
    settings.erase(trace);
  }
  if (options.trace.empty()) throw CLI::RequiredError("trace");
}

void run(const Options& options) {
  check(options);
  const std::string& name = options.problem.machine;
  const std::vector<std::string>& settings = options.problem.overrides;
  std::optional<Machine> machine;
  if (!name.empty()) machine = load_machine(name, settings);
  const Validation validation = [&] {
    Activity activity("reading the trace and simulating its schedule");
    return validate_trace(read_trace(options.trace), options.trace, machine, settings);
  }();
  if (options.json) {
    fmt::print("{}\n", to_text(to_json(validation)));
  } else {
    print_report(validation, options.trace);
  }
}

// The options that only a trace of another program takes, which says of itself neither what was
// trained nor how.
void check_kineto(const Options& options, const CLI::App& command) {
  const std::vector<std::string> of_both = {"--machine", "--set", "--plugin", "--json", "--help"};
  for (const CLI::Option* option : command.get_options()) {
    const std::string name = option->get_name();
    const bool is_of_both = std::find(of_both.begin(), of_both.end(),
                                      "--" + option->get_single_name()) != of_both.end();
    if (option->count() == 0 || is_of_both || option->get_positional()) continue;
    if (options.kineto.empty()) {
      throw InputError(name + " goes with --kineto; a trace of `spillway train` says it itself",
                       "leave it out, or name a trace of PyTorch's: --kineto trace.json.gz");
    }
  }
  if (options.kineto.empty()) return;
  if (!options.trace.empty())
    throw InputError(options.trace + ": a second trace beside --kineto " + options.kineto,
                     "name one of them");
  const std::vector<std::tuple<const char*, const std::string*, const char*>> needed = {
      {"--mapping", &options.mapping, "a file that says which events belong to which lane"},
      {"--model", &options.problem.model, "what was trained, e.g. --model gpt2-124m"},
      {"--machine", &options.problem.machine, "the machine, e.g. --machine machine.toml"},
      {"--policy", &options.policy, "the policy to hold it against, e.g. --policy resident"}};
  for (const auto& [flag, value, hint] : needed) {
    if (value->empty())
      throw InputError(fmt::format("--kineto needs {}", flag),
                       fmt::format("{} (docs/traces.md)", hint));
  }
  if (options.steps < 1 || options.steps > 1000)
    throw InputError(fmt::format("--steps {} is not in 1 .. 1000", options.steps),
                     "leave it out: a few steps show the steady state");
  require_trace(options.kineto);
  check_output_path("--lanes", options.lanes, &only_a_trace());
}

Evaluation predict(const Options& options) {
  const Problem problem = options.problem.problem();
  const WholeRun run{durability_of("", problem.framework), {}};
  Candidates candidates =
      evaluate_as_asked(options.problem, problem, {options.policy}, run, options.steps);
  if (!candidates.chosen)
    fail_to_fit(candidates, options.problem, problem, {options.policy}, run, options.steps);
  return std::move(candidates.all[*candidates.chosen].evaluation);
}

void run_kineto(const Options& options) {
  const KinetoMapping mapping = load_kineto_mapping(options.mapping);
  KinetoImport measured = [&] {
    Activity activity("reading the trace");
    return import_kineto(read_kineto(options.kineto, mapping.args()), mapping, options.kineto);
  }();
  if (!options.lanes.empty()) write_trace(measured.trace, options.lanes);
  const KinetoValidation validation = validate_kineto(predict(options), std::move(measured));
  if (options.json) {
    fmt::print("{}\n", to_text(kineto_json(validation, mapping)));
  } else {
    fmt::print("{}", report_of(validation, mapping, options.kineto));
  }
}

}  // namespace

void add_validate(CLI::App& app, int&) {
  CLI::App* command = app.add_subcommand(
      "validate", "simulate the schedule of a recorded trace, or of a PyTorch trace, and compare");
  auto options = std::make_shared<Options>();
  command->add_option("trace", options->trace, "a trace written by `spillway train`");
  options->problem.add_to(*command, false);
  options->problem.add_framework_to(*command);
  command->get_option("--model")->required(false);
  command->get_option("--machine")
      ->description("use these rates instead of those recorded in the trace");
  command->add_flag("--json", options->json, "print one JSON object (docs/metrics.md)");
  command->add_option("--kineto", options->kineto,
                      "a trace of torch.profiler's in place of one of `spillway train`");
  command->add_option("--mapping", options->mapping,
                      "which of its events belong to which lane: a TOML file (docs/traces.md)");
  command->add_option("--policy", options->policy, "the policy that it is held against");
  command->add_option("--steps", options->steps, "steps to simulate")->capture_default_str();
  command->add_option("--lanes", options->lanes,
                      "write the lanes of the PyTorch trace as a trace of Spillway's (.gz "
                      "compresses)");
  for (CLI::Option* option : command->get_options()) {
    const std::string name = option->get_single_name();
    if (name != "trace" && name != "machine" && name != "set" && name != "json" && name != "help")
      option->group("With --kineto, a trace of PyTorch's");
  }
  command->callback([options, command] {
    check_kineto(*options, *command);
    if (!options->kineto.empty()) return run_kineto(*options);
    take_trace_from_settings(*options);
    run(*options);
  });
}

}  // namespace spillway::cli
