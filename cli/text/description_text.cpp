#include "cli/text/description_text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <string_view>
#include <vector>

#include "base/units.hpp"
#include "policies/schedule/program.hpp"

namespace spillway::cli {

namespace {

using nlohmann::ordered_json;

// Rows of cells, each column as wide as its widest cell; the last one is not padded.
std::string columns_text(const std::vector<std::vector<std::string>>& rows,
                         const std::string& margin) {
  std::vector<std::size_t> widths;
  for (const auto& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (std::size_t c = 0; c < row.size(); ++c) widths[c] = std::max(widths[c], row[c].size());
  }
  std::string text;
  for (const auto& row : rows) {
    std::string line = margin;
    for (std::size_t c = 0; c < row.size(); ++c)
      line += c + 1 == row.size() ? row[c] : fmt::format("{:<{}}  ", row[c], widths[c]);
    text += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
  }
  return text;
}

std::string bytes_text(std::uint64_t bytes) { return format_bytes(static_cast<double>(bytes)); }

// What a plan may use of it.
std::string usable_text(const Machine& machine) {
  std::string text = fmt::format("a plan may use {} of GPU memory, {} of host memory",
                                 bytes_text(machine.gpu.memory), bytes_text(machine.host.memory));
  if (machine.ssd.count > 0)
    text += fmt::format(", {} on {} drive{}", bytes_text(machine.ssd.capacity), machine.ssd.count,
                        machine.ssd.count == 1 ? "" : "s");
  for (int set = 1; set < machine.drive_sets(); ++set)
    text += fmt::format(" and {} on {} of {}", bytes_text(machine.drives(set).capacity),
                        machine.drives(set).count, drive_set_name(set));
  if (machine.cluster.count() > 1)
    text += fmt::format("; {} GPU{} of {} server{}", machine.cluster.gpus,
                        machine.cluster.gpus == 1 ? "" : "s", machine.cluster.nodes,
                        machine.cluster.nodes == 1 ? "" : "s");
  return text;
}

// A source without the word that says its origin, which has a column of its own.
std::string without_origin(const std::string& source) {
  for (const std::string_view word : {"derived: ", "assumed: "}) {
    if (source.rfind(word, 0) == 0) return source.substr(word.size());
  }
  return source;
}

std::array<int, 3> count_origins(const MachineAccount& account) {
  std::array<int, 3> counts{};
  for (const MachineValue& value : account.values) {
    if (value.key != "name" && value.key != "description" && account.concerns(value.key))
      ++counts.at(static_cast<std::size_t>(value.origin));
  }
  return counts;
}

std::string tables_text(const MachineAccount& account) {
  std::string text;
  for (const MachineTable& table : account.tables) {
    text += fmt::format("\n{}: {}, {}: {}\n", table.key, table.summary, to_string(table.origin),
                        without_origin(table.source));
    std::vector<std::vector<std::string>> rows = {table.columns};
    rows.insert(rows.end(), table.rows.begin(), table.rows.end());
    text += columns_text(rows, "  ");
  }
  return text;
}

}  // namespace

std::string machine_text(const MachineAccount& account) {
  const Machine& machine = account.machine;
  const auto [given, derived, assumed] = count_origins(account);
  std::string text = machine.name + "\n";
  if (!machine.description.empty()) text += machine.description + "\n";
  text += fmt::format("{}\n{} values are given, {} derived, {} assumed\n\n", usable_text(machine),
                      given, derived, assumed);
  std::vector<std::vector<std::string>> rows = {
      {"key", "value", "origin", "from where, by which rule, or why"}};
  for (const MachineValue& value : account.values) {
    if (value.key == "name" || value.key == "description" || !account.concerns(value.key)) continue;
    rows.push_back({value.key, value.shown, to_string(value.origin), without_origin(value.source)});
  }
  text += columns_text(rows, "");
  if (machine.ssd.count == 0) text += "without drives: the other keys of ssd say nothing\n";
  if (machine.cluster.count() == 1) text += "one GPU: the keys of cluster say nothing\n";
  return text + tables_text(account);
}

ordered_json machine_json(const MachineAccount& account) {
  const Machine& machine = account.machine;
  ordered_json values = ordered_json::array();
  for (const MachineValue& value : account.values) {
    if (value.key == "name" || value.key == "description") continue;
    values.push_back({{"key", value.key},
                      {"value", value.value},
                      {"text", value.shown},
                      {"origin", to_string(value.origin)},
                      {"source", value.source},
                      {"concerns", account.concerns(value.key)}});
  }
  ordered_json tables = ordered_json::array();
  for (const MachineTable& table : account.tables) {
    tables.push_back({{"key", table.key},
                      {"origin", to_string(table.origin)},
                      {"source", table.source},
                      {"columns", table.columns},
                      {"rows", table.rows}});
  }
  ordered_json usable;
  for (const Tier tier : memories_of(machine))
    usable[to_string(tier)] = capacities(machine)[static_cast<std::size_t>(tier)];
  return {{"name", machine.name},
          {"description", machine.description},
          {"usable_bytes", usable},
          {"values", values},
          {"tables", tables}};
}

std::string type_of(const TextDomain& domain) {
  const auto begins = [&](const char* text) { return domain.values.rfind(text, 0) == 0; };
  if (begins("a whole number")) return "whole number";
  if (begins("a number")) return "number";
  if (begins("one of on | off")) return "switch";
  if (begins("one of ")) return "choice";
  return "text";
}

std::string policy_text(const PolicyInfo& info) {
  std::string text = fmt::format("{}\n{}\npaper: {}\n", info.name, info.idea, info.paper);
  if (info.for_pipelines)
    text +=
        "an order for the stages of a pipeline; with one stage it is policy resident, or its "
        "micro-batches in another order (docs/pipelines.md)\n";
  else if (info.for_several_ranks)
    text += "for several ranks; with one it is policy resident (docs/ranks.md)\n";
  text += fmt::format("\n--policy {}:SETTING=VALUE,...\n\n", info.name);
  for (const PolicyOption& option : info.options) {
    text +=
        fmt::format("{} ({}), default {}\n    {}\n    {}\n", option.name, type_of(option.domain),
                    option.default_value, option.domain.values, option.help);
  }
  return text;
}

ordered_json policy_json(const PolicyInfo& info) {
  ordered_json options = ordered_json::array();
  for (const PolicyOption& option : info.options) {
    options.push_back({{"name", option.name},
                       {"type", type_of(option.domain)},
                       {"default", option.default_value},
                       {"values", option.domain.values},
                       {"takes_less_memory", option.frugal},
                       {"help", option.help}});
  }
  return {{"name", info.name},
          {"paper", info.paper},
          {"idea", info.idea},
          {"for_several_ranks", info.for_several_ranks},
          {"for_pipelines", info.for_pipelines},
          {"options", options}};
}

}  // namespace spillway::cli
