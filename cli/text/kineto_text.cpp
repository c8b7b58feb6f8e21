#include "cli/text/kineto_text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/units.hpp"
#include "cli/options/problem_options.hpp"
#include "cli/text/assumptions_text.hpp"
#include "sim/result_json.hpp"

namespace spillway::cli {

namespace {

using nlohmann::ordered_json;

constexpr std::size_t most_unmapped_shown = 8;

std::string error_text(const std::optional<double>& error) {
  return error ? fmt::format("{:+.1f} %", 100 * *error) : "";
}

std::string seconds_text(const std::optional<double>& seconds) {
  return seconds ? format_seconds(*seconds) : "not mapped";
}

// How many events of the steps a rule took, where that is none.
std::string idle_rules_text(const KinetoValidation& v, const KinetoMapping& mapping) {
  std::string text;
  for (std::size_t r = 0; r < mapping.rules.size(); ++r) {
    if (v.measured.events_of_rules[r] > 0) continue;
    text +=
        fmt::format("note: the rule at {} takes no event of these steps\n", mapping.rules[r].place);
  }
  return text;
}

std::string unmapped_text(const KinetoImport& measured) {
  std::string text =
      fmt::format("unmapped       {} a step in which something runs and no lane does; {} idle\n",
                  format_seconds(measured.unmapped_seconds), format_seconds(measured.idle_seconds));
  for (std::size_t i = 0; i < std::min(measured.unmapped.size(), most_unmapped_shown); ++i) {
    const UnmappedEvents& one = measured.unmapped[i];
    text += fmt::format("  {:>10} {:>7} x  {} ({})\n", format_seconds(one.seconds), one.count,
                        one.name, one.category.empty() ? "no category" : one.category);
  }
  if (measured.unmapped.size() > most_unmapped_shown)
    text += fmt::format("  and {} more names\n", measured.unmapped.size() - most_unmapped_shown);
  return text;
}

// Of a step. Means over steps may add up to a little more than the whole.
double busy(double seconds, double step) { return step > 0 ? std::min(1.0, seconds / step) : 0; }

ordered_json optional_json(const std::optional<double>& value) {
  return value ? ordered_json(*value) : ordered_json(nullptr);
}

}  // namespace

std::string report_of(const KinetoValidation& v, const KinetoMapping& mapping,
                      const std::string& path) {
  const Schedule& schedule = v.prediction.schedule;
  const Problem& problem = schedule.problem();
  std::string text = fmt::format("{}: held against {} with policy {} on {}\n", path,
                                 problem.model.name, schedule.policy(), problem.machine.name);
  text += fmt::format("{}\n", assumptions_text(problem, schedule.steps()));
  text += fmt::format("step           predicted {:>10}   measured {:>10}   error {:+.1f} %\n",
                      format_seconds(v.predicted_step_seconds),
                      format_seconds(v.measured_step_seconds), 100 * v.error);
  text += fmt::format("               measured: the median of {} step{}, after {} left out\n",
                      v.measured.step_seconds.size(),
                      v.measured.step_seconds.size() == 1 ? "" : "s", v.measured.left_out);
  std::size_t width = 14;
  for (const KinetoQuantity& kind : v.kinds) width = std::max(width, kind.name.size());
  text += fmt::format("{:<{}} {:>12} {:>12} {:>10}   seconds a step\n", "kind", width + 2,
                      "predicted", "measured", "error");
  for (const KinetoQuantity& kind : v.kinds) {
    text += fmt::format("  {:<{}} {:>12} {:>12} {:>10}\n", kind.name, width,
                        format_seconds(kind.predicted_seconds), seconds_text(kind.measured_seconds),
                        error_text(kind.error()));
  }
  text += fmt::format("{:<{}} {:>12} {:>12}   busy\n", "lane", width + 2, "predicted", "measured");
  for (const KinetoQuantity& lane : v.lanes) {
    text += fmt::format(
        "  {:<{}} {:>10.1f} % {:>12}\n", lane.name, width,
        100 * busy(lane.predicted_seconds, v.predicted_step_seconds),
        lane.measured_seconds
            ? fmt::format("{:.1f} %", 100 * busy(*lane.measured_seconds, v.measured_step_seconds))
            : "not mapped");
  }
  text += unmapped_text(v.measured);
  text += idle_rules_text(v, mapping);
  return text + extrapolation_text(v.prediction.result->extrapolates);
}

ordered_json kineto_json(const KinetoValidation& v, const KinetoMapping& mapping) {
  const Schedule& schedule = v.prediction.schedule;
  const Problem& problem = schedule.problem();
  ordered_json kinds = ordered_json::object(), lanes = ordered_json::object();
  for (const KinetoQuantity& kind : v.kinds) {
    kinds[kind.name] = {{"predicted", kind.predicted_seconds},
                        {"measured", optional_json(kind.measured_seconds)},
                        {"error", optional_json(kind.error())}};
  }
  for (const KinetoQuantity& lane : v.lanes) {
    std::optional<double> measured_busy;
    if (lane.measured_seconds)
      measured_busy = busy(*lane.measured_seconds, v.measured_step_seconds);
    lanes[lane.name] = {{"predicted_busy", busy(lane.predicted_seconds, v.predicted_step_seconds)},
                        {"measured_busy", optional_json(measured_busy)}};
  }
  ordered_json unmapped = ordered_json::array(), rules = ordered_json::array();
  for (const UnmappedEvents& one : v.measured.unmapped) {
    unmapped.push_back({{"name", one.name},
                        {"category", one.category},
                        {"events", one.count},
                        {"seconds", one.seconds}});
  }
  for (std::size_t r = 0; r < mapping.rules.size(); ++r) {
    const MappingRule& rule = mapping.rules[r];
    rules.push_back({{"place", rule.place},
                     {"lane", rule.ignored ? ordered_json(nullptr) : ordered_json(rule.lane)},
                     {"kind", rule.ignored ? ordered_json(nullptr) : ordered_json(rule.kind())},
                     {"events", v.measured.events_of_rules[r]}});
  }
  return {{"policy", schedule.policy()},
          {"model", problem.model.name},
          {"machine", problem.machine.name},
          {"framework", problem.framework},
          {"workload", spillway::to_json(problem.workload)},
          {"steps", schedule.steps()},
          {"overrides", problem.overrides},
          {"predicted_step_seconds", v.predicted_step_seconds},
          {"measured_step_seconds", v.measured_step_seconds},
          {"error", v.error},
          {"measured_steps", v.measured.step_seconds.size()},
          {"left_out_steps", v.measured.left_out},
          {"extrapolated", !v.prediction.result->extrapolates.empty()},
          {"extrapolates", v.prediction.result->extrapolates},
          {"kinds", kinds},
          {"lanes", lanes},
          {"unmapped_seconds", v.measured.unmapped_seconds},
          {"idle_seconds", v.measured.idle_seconds},
          {"unmapped", unmapped},
          {"rules", rules}};
}

}  // namespace spillway::cli
