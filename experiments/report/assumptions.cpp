#include "experiments/report/assumptions.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>
#include "base/errors.hpp"
#include "policies/framework/framework.hpp"
#include "policies/machine/field_reader.hpp"
#include "policies/workload/workload_json.hpp"

namespace spillway {

namespace {

struct Value {
  std::string text, source;
};

Value value_of(const toml::node& node) {
  if (const auto* table = node.as_table()) {
    Value value;
    if (const toml::node* inner = table->get("value")) value = value_of(*inner);
    if (const auto source = (*table)["source"].value<std::string>()) value.source = *source;
    return value;
  }
  if (const auto text = node.value<std::string>()) return {*text, ""};
  std::ostringstream text;
  node.visit([&](const auto& one) { text << one; });
  return {text.str(), ""};
}

// Of all keys that machine_to_toml writes.
std::map<std::string, Value> values_of(const Machine& machine) {
  std::map<std::string, Value> values;
  const toml::table document = toml::parse(machine_to_toml(machine));
  for (const std::string& key : machine_keys()) {
    const std::size_t dot = std::min(key.find('.'), key.size());
    const auto first = document[key.substr(0, dot)];
    const auto found = dot == key.size() ? first : first[key.substr(dot + 1)];
    if (const toml::node* node = found.node()) values[key] = value_of(*node);
  }
  return values;
}

bool begins(const std::string& text, std::string_view with) { return text.starts_with(with); }

std::string origin_of(const Value& value, bool set_by_hand, bool is_usual) {
  if (set_by_hand) return "set by hand";
  if (begins(value.source, "extrapolated")) return "extrapolated";
  if (begins(value.source, "derived") || begins(value.source, "ssd.by_count at")) return "derived";
  if (!value.source.empty()) return "given";
  return is_usual ? "assumed" : "given";
}

// Rows of tables that a file may have beside its keys.
struct Rows {
  const char* key;
  std::size_t count;
};

std::vector<Rows> tables_of(const Machine& machine) {
  return {{"gpu.by_shape", machine.gpu.by_shape.size()},
          {"ssd.by_count", machine.ssd.by_count.size()},
          {"ssd.by_queue_depth", machine.ssd.by_queue_depth.size()},
          {"ssd.by_read_share",
           machine.ssd.by_read_share.size() + machine.ssd.read_share_by_depth.size()},
          {"cluster.collectives", machine.cluster.collectives.size()},
          {"kernel", machine.kernels.size()},
          {"reference", machine.references.size()},
          {"trial", machine.trials.size()}};
}

}  // namespace

PageTable machine_table(const Machine& machine, const std::vector<std::string>& overrides) {
  PageTable table;
  table.columns = {{"key"},
                   {"value"},
                   {"origin", false,
                    "given: in the machine file; derived: follows from other keys; extrapolated: "
                    "beyond the rows of a table; assumed: the file leaves it out"},
                   {"source"}};
  const auto values = values_of(machine);
  const auto usual = values_of(Machine{});
  const bool is_cluster = machine.cluster.count() > 1;
  const auto is_by_hand = [&](const std::string& key) {
    return std::any_of(overrides.begin(), overrides.end(),
                       [&](const std::string& one) { return begins(one, key + "="); });
  };
  for (const std::string& key : machine_keys()) {
    const auto value = values.find(key);
    if (value == values.end() || (begins(key, "cluster.") && !is_cluster)) continue;
    const auto other = usual.find(key);
    const bool is_usual = other != usual.end() && other->second.text == value->second.text;
    const bool is_number = key.find('.') != std::string::npos;
    table.rows.push_back(
        {{key},
         {value->second.text},
         {is_number ? origin_of(value->second, is_by_hand(key), is_usual) : "given"},
         {value->second.source}});
  }
  for (const Rows& rows : tables_of(machine)) {
    if (rows.count == 0) continue;
    const auto source = machine.sources.find(rows.key);
    table.rows.push_back({{rows.key},
                          {fmt::format("{} row{}", rows.count, rows.count == 1 ? "" : "s")},
                          {"given"},
                          {source == machine.sources.end() ? "" : source->second}});
  }
  return table;
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
