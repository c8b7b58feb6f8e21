// spillway policies | models | machines | frameworks: what is built in; with a name, one of them in
// full.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/errors.hpp"
#include "base/suggest.hpp"
#include "base/units.hpp"
#include "cli/commands.hpp"
#include "cli/text/description_text.hpp"
#include "cli/text/output.hpp"
#include "policies/common/registry.hpp"
#include "policies/framework/framework.hpp"
#include "policies/machine/machine.hpp"
#include "policies/machine/machine_account.hpp"
#include "policies/machine/machine_parts.hpp"
#include "policies/model/model.hpp"
#include "policies/pipeline/orders.hpp"

namespace spillway::cli {

namespace {

using nlohmann::ordered_json;

ordered_json to_json(const std::vector<PolicyOption>& options) {
  ordered_json all = ordered_json::array();
  for (const PolicyOption& option : options) {
    all.push_back({{"name", option.name},
                   {"default", option.default_value},
                   {"values", option.domain.values},
                   {"help", option.help}});
  }
  return all;
}

void print_options(const std::vector<PolicyOption>& options) {
  std::size_t names = 0, defaults = 0;
  for (const PolicyOption& option : options) {
    names = std::max(names, option.name.size());
    defaults = std::max(defaults, option.default_value.size());
  }
  for (const PolicyOption& option : options) {
    fmt::print("      {:<{}}  default {:<{}}  {}\n", option.name, names, option.default_value,
               defaults, option.help);
  }
}

// The orders of `spillway pipeline`, below the policies.
ordered_json list_pipeline_orders(bool json) {
  ordered_json all = ordered_json::array();
  if (!json) fmt::print("\norders of pipelines (`spillway pipeline`):\n");
  for (const PipelineOrderInfo& info : pipeline_orders()) {
    all.push_back({{"name", info.name},
                   {"paper", info.paper},
                   {"idea", info.idea},
                   {"options", to_json(info.options)}});
    if (json) continue;
    fmt::print("{}\n    {}\n    {}\n", info.name, info.idea, info.paper);
    print_options(info.options);
  }
  return all;
}

void list_policies(bool json) {
  ordered_json all = ordered_json::array();
  for (const PolicyInfo& info : known_policies()) {
    all.push_back({{"name", info.name},
                   {"paper", info.paper},
                   {"idea", info.idea},
                   {"for_several_ranks", info.for_several_ranks},
                   {"for_pipelines", info.for_pipelines},
                   {"options", to_json(info.options)}});
    const std::optional<PolicyOrigin> origin = origin_of_policy(info.name);
    if (origin) all.back()["origin"] = {{"kind", origin->kind}, {"from", origin->from}};
    if (json) continue;
    fmt::print("{}\n    {}\n    {}\n", info.name, info.idea, info.paper);
    if (origin) fmt::print("    from {}\n", origin->from);
    print_options(info.options);
  }
  const ordered_json orders = list_pipeline_orders(json);
  if (json)
    fmt::print("{}\n", to_text(ordered_json{{"policies", all}, {"pipeline_orders", orders}}));
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

// What one of these commands is asked.
struct Question {
  std::string name;  // of the one that is shown in full; empty: all are listed
  std::vector<std::string> overrides;
  std::int64_t sequence = 0;  // 0: the model's positions, at most 1024
  bool json = false;
};

void show(const Question& question, const std::string& text, const ordered_json& json) {
  fmt::print("{}", question.json ? to_text(json) + "\n" : text);
}

void show_policy(const Question& question) {
  std::vector<std::string> names;
  for (const PolicyInfo& info : known_policies()) {
    if (info.name == question.name) return show(question, policy_text(info), policy_json(info));
    names.push_back(info.name);
  }
  const bool with_settings = question.name.find(':') != std::string::npos;
  throw InputError(fmt::format("unknown policy '{}'", question.name),
                   with_settings ? "give its name alone, without settings"
                                 : unknown_name_hint(question.name, names));
}

void show_machine(const Question& question) {
  const MachineAccount account = account_of_machine(question.name, question.overrides);
  show(question, machine_text(account), machine_json(account));
}

// As for other commands, keys of a model are "model.KEY".
std::vector<std::string> model_overrides(const std::vector<std::string>& overrides) {
  constexpr std::string_view prefix = "model.";
  std::vector<std::string> keys;
  for (const std::string& one : overrides) {
    if (one.rfind(prefix, 0) != 0)
      throw InputError(
          Setting{"set", one} + ": no key of a model",
          "keys of a model begin with model., for example " + Setting{"set", "model.layers=48"});
    keys.push_back(one.substr(prefix.size()));
  }
  return keys;
}

void show_model(const Question& question) {
  const ModelSpec model = load_model(question.name, model_overrides(question.overrides));
  if (question.sequence < 0 || question.sequence > model.positions)
    throw InputError(
        Setting{"sequence", std::to_string(question.sequence)} +
            fmt::format(": {} has positions for 1 to {} tokens", model.name, model.positions),
        "leave it out for the usual length");
  const std::int64_t usual = std::min<std::int64_t>(model.positions, 1024);
  const std::int64_t sequence = question.sequence > 0 ? question.sequence : usual;
  show(question, model_text(model, sequence), model_json(model, sequence));
}

// Overrides are as many as follow --set, and the name may follow them: it is what sets nothing.
void take_name_from_overrides(Question& question) {
  const auto name =
      std::find_if(question.overrides.begin(), question.overrides.end(),
                   [](const std::string& text) { return text.find('=') == std::string::npos; });
  if (!question.name.empty() || name == question.overrides.end()) return;
  question.name = *name;
  question.overrides.erase(name);
}

// A command that lists all, or with a name shows one. Returns it, and what it fills in.
std::pair<CLI::App*, std::shared_ptr<Question>> add_list(CLI::App& app, const char* name,
                                                         const char* help, const char* name_help,
                                                         void (*list)(bool),
                                                         void (*show_one)(const Question&)) {
  CLI::App* command = app.add_subcommand(name, help);
  auto question = std::make_shared<Question>();
  command->add_flag("--json", question->json, "print one JSON object (docs/metrics.md)");
  if (show_one != nullptr) command->add_option("name", question->name, name_help);
  command->callback([question, list, show_one] {
    take_name_from_overrides(*question);
    if (!question->name.empty()) return show_one(*question);
    if (!question->overrides.empty() || question->sequence != 0)
      throw InputError(Setting{question->overrides.empty() ? "sequence" : "set"} +
                           " needs the name of one, which is then shown",
                       "without a name all are listed");
    list(question->json);
  });
  return {command, question};
}

}  // namespace

void add_lists(CLI::App& app, int&) {
  const auto can_set = [](const auto& added, const char* example) {
    const auto& [command, question] = added;
    command->add_option("--set", question->overrides,
                        fmt::format("override keys of the one that is shown, e.g. {}", example));
  };
  add_list(app, "policies", "list the built-in policies, or show one with all of its settings",
           "show this one: settings with type, domain, default and meaning", list_policies,
           show_policy);
  const auto models =
      add_list(app, "models", "list the built-in models, or show one in full",
               "show this one, or a TOML file's: shape, parameters by unit, FLOPs, tensors",
               list_models, show_model);
  can_set(models, "--set model.layers=48");
  models.first->add_option("--sequence", models.second->sequence,
                           "tokens of a sequence, of which FLOPs depend");
  can_set(
      add_list(app, "machines",
               "list the built-in machines and the parts to make others of, or show one in full",
               "show this one, a TOML file's or one by parts: every value, and whether it is "
               "given, derived or assumed",
               list_machines, show_machine),
      "--set ssd.count=6");
  add_list(app, "frameworks", "list the programs whose habits can be laid over a schedule", "",
           list_frameworks, nullptr);
}

}  // namespace spillway::cli
