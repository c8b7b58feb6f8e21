// spillway policies | models | machines | frameworks: what is built in.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/units.hpp"
#include "cli/commands.hpp"
#include "cli/text/output.hpp"
#include "policies/common/registry.hpp"
#include "policies/framework/framework.hpp"
#include "policies/machine/machine.hpp"
#include "policies/machine/machine_parts.hpp"
#include "policies/model/model.hpp"

namespace spillway::cli {

namespace {

using nlohmann::ordered_json;

void list_policies(bool json) {
  ordered_json all = ordered_json::array();
  for (const PolicyInfo& info : known_policies()) {
    ordered_json options = ordered_json::array();
    for (const PolicyOption& option : info.options) {
      options.push_back({{"name", option.name},
                         {"default", option.default_value},
                         {"values", option.domain.values},
                         {"help", option.help}});
    }
    all.push_back({{"name", info.name},
                   {"paper", info.paper},
                   {"idea", info.idea},
                   {"for_several_ranks", info.for_several_ranks},
                   {"options", options}});
    const std::optional<PolicyOrigin> origin = origin_of_policy(info.name);
    if (origin) all.back()["origin"] = {{"kind", origin->kind}, {"from", origin->from}};
    if (json) continue;
    fmt::print("{}\n    {}\n    {}\n", info.name, info.idea, info.paper);
    if (origin) fmt::print("    from {}\n", origin->from);
    std::size_t names = 0, defaults = 0;
    for (const PolicyOption& option : info.options) {
      names = std::max(names, option.name.size());
      defaults = std::max(defaults, option.default_value.size());
    }
    for (const PolicyOption& option : info.options) {
      fmt::print("      {:<{}}  default {:<{}}  {}\n", option.name, names, option.default_value,
                 defaults, option.help);
    }
  }
  if (json) fmt::print("{}\n", to_text(ordered_json{{"policies", all}}));
}

void list_models(bool json) {
  ordered_json all = ordered_json::array();
  if (!json)
    fmt::print("{:<14} {:>10} {:>7} {:>7} {:>6} {:>8}  {}\n", "model", "parameters", "layers",
               "hidden", "heads", "vocab", "source");
  for (const ModelSpec& model : builtin_models()) {
    all.push_back({{"name", model.name},
                   {"parameters", model.parameters()},
                   {"layers", model.layers},
                   {"hidden", model.hidden},
                   {"heads", model.heads},
                   {"vocabulary", model.vocabulary},
                   {"positions", model.positions},
                   {"architecture", model.architecture == Architecture::gpt ? "gpt" : "llama"},
                   {"source", model.source}});
    if (json) continue;
    const double parameters = static_cast<double>(model.parameters());
    fmt::print("{:<14} {:>10} {:>7} {:>7} {:>6} {:>8}  {}\n", model.name,
               parameters >= 1e9 ? fmt::format("{:.2f}B", parameters / 1e9)
                                 : fmt::format("{:.2f}M", parameters / 1e6),
               model.layers, model.hidden, model.heads, model.vocabulary, model.source);
  }
  if (json) fmt::print("{}\n", to_text(ordered_json{{"models", all}}));
}

// The parts that machines are made of, below the machines.
ordered_json list_parts(bool json) {
  ordered_json all = ordered_json::array();
  std::size_t names = 0;
  for (const MachinePart& part : machine_parts()) names = std::max(names, part.name.size());
  if (!json)
    fmt::print("\nby parts: CARD+HOST+NxDRIVE, for example rtx4090+desktop-ddr5+2x990pro\n");
  for (const MachinePart& part : machine_parts()) {
    all.push_back({{"kind", part.kind}, {"name", part.name}, {"description", part.description}});
    if (!json) fmt::print("{:<5}  {:<{}}  {}\n", part.kind, part.name, names, part.description);
  }
  return all;
}

void list_machines(bool json) {
  ordered_json all = ordered_json::array();
  const std::vector<Machine>& machines = builtin_machines();
  std::size_t names = 7;
  for (const Machine& machine : machines) names = std::max(names, machine.name.size());
  if (!json)
    fmt::print("{:<{}} {:>10} {:>13} {:>10} {:>9} {:>6} {:>9} {:>10} {:>10}  description\n",
               "machine", names, "GPU memory", "GPU", "host", "PCIe", "drives", "space", "read",
               "write");
  for (const Machine& machine : machines) {
    all.push_back({{"name", machine.name},
                   {"description", machine.description},
                   {"gpu_memory", machine.gpu.memory},
                   {"gpu_flops", machine.gpu.flops},
                   {"host_memory", machine.host.memory},
                   {"ssd_count", machine.ssd.count},
                   {"ssd_capacity", machine.ssd.capacity}});
    if (json) continue;
    const auto bytes = [](std::uint64_t count) { return format_bytes(static_cast<double>(count)); };
    fmt::print("{:<{}} {:>10} {:>13} {:>10} {:>9} {:>6} {:>9} {:>10} {:>10}  {}\n", machine.name,
               names, bytes(machine.gpu.memory), format_flops_per_second(machine.gpu.flops),
               bytes(machine.host.memory), format_bytes_per_second(machine.pcie.h2d),
               machine.ssd.count, bytes(machine.ssd.capacity),
               format_bytes_per_second(machine.ssd.read),
               format_bytes_per_second(machine.ssd.write), machine.description);
  }
  const ordered_json parts = list_parts(json);
  if (json) fmt::print("{}\n", to_text(ordered_json{{"machines", all}, {"parts", parts}}));
}

void list_frameworks(bool json) {
  ordered_json all = ordered_json::array();
  for (const Framework& framework : builtin_frameworks()) {
    ordered_json sources = ordered_json::object();
    for (const auto& [key, source] : framework.sources) sources[key] = source;
    all.push_back({{"name", framework.name},
                   {"description", framework.description},
                   {"waits", framework.waits.size()},
                   {"sources", sources}});
    if (json) continue;
    fmt::print("{}\n    {}\n", framework.name, framework.description);
    for (const auto& [key, source] : framework.sources)
      fmt::print("      {:<32} {}\n", key, source);
    if (!framework.waits.empty())
      fmt::print("      {} points at which the host thread waits\n", framework.waits.size());
  }
  if (json) fmt::print("{}\n", to_text(ordered_json{{"frameworks", all}}));
}

}  // namespace

void add_lists(CLI::App& app, int&) {
  const auto add = [&](const char* name, const char* help, void (*list)(bool)) {
    CLI::App* command = app.add_subcommand(name, help);
    auto json = std::make_shared<bool>(false);
    command->add_flag("--json", *json, "print one JSON object");
    command->callback([json, list] { list(*json); });
  };
  add("policies", "list the built-in policies and their options", list_policies);
  add("models", "list the built-in models", list_models);
  add("machines", "list the built-in machines, and the parts to make others of", list_machines);
  add("frameworks", "list the programs whose habits can be laid over a schedule", list_frameworks);
}

}  // namespace spillway::cli
