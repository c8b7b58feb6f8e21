#include "experiments/report/assumptions.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/units.hpp"
#include "experiments/report/facts.hpp"
#include "policies/common/parsed_policy.hpp"
#include "policies/framework/framework.hpp"
#include "policies/machine/machine_account.hpp"
#include "policies/workload/workload_json.hpp"

namespace spillway {

namespace {

// A step at one end of a range, and how far that is from the step as it is.
Cell moved_cell(const std::optional<double>& seconds, double step_seconds) {
  if (!seconds || step_seconds <= 0) return {};
  return number_cell(*seconds, fmt::format("{} ({})", format_seconds(*seconds),
                                           signed_percent_text(*seconds / step_seconds - 1)));
}

}  // namespace

PageTable machine_table(const Machine& machine) {
  const MachineAccount account = account_of(machine);
  PageTable table;
  table.columns = {{"key"},
                   {"value"},
                   {"origin", false,
                    "given: in the machine file; derived: follows from other keys; assumed: the "
                    "file leaves it out, or says so"},
                   {"source"}};
  for (const MachineValue& value : account.values) {
    if (!account.concerns(value.key)) continue;
    table.rows.push_back({{value.key}, {value.shown}, {to_string(value.origin)}, {value.source}});
  }
  for (const MachineTable& rows : account.tables)
    table.rows.push_back({{rows.key}, {rows.summary}, {to_string(rows.origin)}, {rows.source}});
  return table;
}

PageTable effects_table(const AssumptionEffects& effects) {
  PageTable table;
  table.columns = {{"assumed"},
                   {"taken as"},
                   {"may be"},
                   {"the step then, at one end", true},
                   {"at the other", true},
                   {"why it is assumed, and where the range is from"}};
  for (const AssumedEffect& effect : effects.effects) {
    const AssumedValue& value = effect.value;
    if (!effect.low_step_seconds) continue;
    table.rows.push_back({{value.name()},
                          {value.value},
                          {value.low + " to " + value.high},
                          moved_cell(effect.low_step_seconds, effects.step_seconds),
                          moved_cell(effect.high_step_seconds, effects.step_seconds),
                          {value.why + "; " + value.range_source}});
  }
  return table;
}

// "alpha=0.25, snake=on": the options that the policy's text leaves at their defaults.
std::string options_left(const std::string& policy) {
  const ParsedPolicy parsed = parse_policy(policy);
  std::string text;
  for (const PolicyOption& option : parsed.info.options) {
    if (!parsed.options.contains(option.name))
      text += fmt::format("{}{}={}", text.empty() ? "" : ", ", option.name, option.default_value);
  }
  return text.empty() ? "none" : text;
}

PageTable workload_table(const Schedule& schedule) {
  const Problem& problem = schedule.problem();
  PageTable table;
  table.columns = {{"what"}, {"value"}};
  const auto add = [&](const std::string& what, const std::string& value) {
    table.rows.push_back({{what}, {value}});
  };
  add("model", problem.model.name);
  add("machine", problem.machine.name);
  add("policy", schedule.policy());
  add("its other options", options_left(schedule.policy()));
  const nlohmann::ordered_json workload = workload_json(problem.workload);
  for (const auto& [key, value] : workload.items()) {
    std::string words = key;
    std::replace(words.begin(), words.end(), '_', ' ');
    add(words, value.is_string() ? value.get<std::string>() : value.dump());
  }
  add("steps of the schedule", std::to_string(schedule.steps()));
  add("framework", problem.framework == own_framework
                       ? "spillway: nothing is laid over the schedule"
                       : problem.framework);
  add("set by hand", problem.overrides.empty()
                         ? "nothing"
                         : fmt::format("{}", fmt::join(problem.overrides, ", ")));
  return table;
}

}  // namespace spillway
