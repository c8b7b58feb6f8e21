// spillway validate: predicted against measured, for a recorded trace.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/errors.hpp"
#include "base/units.hpp"
#include "cli/commands.hpp"
#include "cli/options/problem_options.hpp"
#include "cli/text/assumptions_text.hpp"
#include "cli/text/output.hpp"
#include "cli/text/progress.hpp"
#include "experiments/validate/validate.hpp"
#include "sim/result_json.hpp"
#include "traces/perfetto.hpp"

namespace spillway::cli {

namespace {

using nlohmann::ordered_json;

struct Options {
  std::string trace, machine;
  std::vector<std::string> settings;
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
  fmt::print("{:<16} {:>12} {:>12}   on the critical path, per step\n", "kind", "predicted",
             "measured");
  for (const CriticalShare& share : v.critical_path) {
    fmt::print("  {:<14} {:>12} {:>12}\n", share.kind, format_seconds(share.predicted_seconds),
               format_seconds(share.measured_seconds));
  }
  if (c.first_divergence) {
    fmt::print(
        "first divergence: task {} ({}): predicted {}, measured {}; {} of {} tasks differ by more "
        "than 25 %\n",
        c.first_divergence->task, c.first_divergence->description,
        format_seconds(static_cast<double>(c.first_divergence->predicted_ns) / 1e9),
        format_seconds(static_cast<double>(c.first_divergence->measured_ns) / 1e9),
        c.diverging_tasks, c.matched_tasks);
  } else {
    fmt::print("no task differs by more than 25 %\n");
  }
  fmt::print("{}", extrapolation_text(v.predicted.extrapolates));
}

void check(const Options& options) {
  std::error_code ignored;
  if (!std::filesystem::exists(options.trace, ignored)) {
    throw InputError(options.trace + ": no such trace file", "check the spelling of the path");
  }
  if (std::filesystem::is_directory(options.trace, ignored)) {
    throw InputError(options.trace + ": this is a folder",
                     "name a trace in it, e.g. " +
                         (std::filesystem::path(options.trace) / "trace.json.gz").string());
  }
  if (!options.settings.empty() && options.machine.empty()) {
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
  const auto trace = std::find_if(options.settings.begin(), options.settings.end(), sets_nothing);
  if (options.trace.empty() && trace != options.settings.end()) {
    options.trace = *trace;
    options.settings.erase(trace);
  }
  if (options.trace.empty()) throw CLI::RequiredError("trace");
}

void run(const Options& options) {
  check(options);
  std::optional<Machine> machine;
  if (!options.machine.empty()) machine = load_machine(options.machine, options.settings);
  const Validation validation = [&] {
    Activity activity("reading the trace and simulating its schedule");
    return validate_trace(read_trace(options.trace), options.trace, machine, options.settings);
  }();
  if (options.json) {
    fmt::print("{}\n", to_text(to_json(validation)));
  } else {
    print_report(validation, options.trace);
  }
}

}  // namespace

void add_validate(CLI::App& app, int&) {
  CLI::App* command =
      app.add_subcommand("validate", "simulate the schedule of a recorded trace and compare");
  auto options = std::make_shared<Options>();
  command->add_option("trace", options->trace, "a trace written by `spillway train`; required");
  command->add_option("--machine", options->machine,
                      "use these rates instead of those recorded in the trace");
  command->add_option("--set", options->settings,
                      "override keys of --machine, e.g. --set ssd.count=6 host.memory=256GB");
  command->add_flag("--json", options->json, "print one JSON object");
  command->callback([options] {
    take_trace_from_settings(*options);
    run(*options);
  });
}

}  // namespace spillway::cli
