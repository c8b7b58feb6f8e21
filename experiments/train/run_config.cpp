#include "experiments/train/run_config.hpp"

#include <fmt/format.h>

#include <filesystem>

#include "base/text.hpp"
#include "exec/run/run_folder.hpp"
#include "experiments/train/train_config.hpp"
#include "policies/common/registry.hpp"

namespace spillway {

namespace {

// Of KEY=VALUE of the machine and of the model, those that are of neither file in the folder.
std::vector<std::string> overrides_left(const std::vector<std::string>& all, bool has_machine,
                                        bool has_model) {
  std::vector<std::string> left;
  for (const std::string& one : all) {
    const bool of_model = one.starts_with("model.");
    if (of_model ? !has_model : !has_machine) left.push_back(one);
  }
  return left;
}

GivenSettings all_settings_of(const RunConfig& run) {
  GivenSettings all = run.given;
  for (const char* length : {"epochs", "tokens"}) all.erase(length);
  all["steps"] = {std::to_string(run.settings.steps)};
  for (const auto& [key, text] : workload_texts(run.problem.workload)) all[key] = {text};
  all["policy"] = {run.policy};
  all["device"] = {run.problem.backend() == Backend::cuda ? "cuda" : "cpu"};
  all["data_hash"] = {run.data_hash};
  const OptimizerSettings& optimizer = run.settings.optimizer;
  all["learning_rate_schedule"] = {to_string(optimizer.shape)};
  // Decides the numbers: another version may have other defaults.
  for (const char* key : {"learning_rate", "weight_decay", "beta1", "beta2", "seed", "threads"})
    if (!all.contains(key)) all[key] = {find_train_setting(key)->usual};
  // A model that a file describes is in the run's folder, as it is trained; one that has weights is
  // where it was.
  std::error_code error;
  const bool has_model = std::filesystem::is_regular_file(all["model"].back(), error);
  if (has_model) {
    all["model"] = {RunFolder::model};
    for (const char* part : {"lora", "train_layers"}) all.erase(part);
  }
  if (run.has_machine) all["machine"] = {RunFolder::machine};
  if (const auto set = all.find("set"); set != all.end()) {
    set->second = overrides_left(set->second, run.has_machine, has_model);
    if (set->second.empty()) all.erase(set);
  }
  return all;
}

// A config names no library to load: whoever repeats the run does.
std::string origin_note(const std::string& policy) {
  const std::optional<PolicyOrigin> origin = origin_of_policy(policy);
  if (!origin) return "";
  return fmt::format("# a policy that is not built in: of the {} {}, which has to be known first\n",
                     origin->kind == "plugin" ? "plugin" : "Python class", printable(origin->from));
}

}  // namespace

std::string run_config_text(const RunConfig& run) {
  const GivenSettings all = all_settings_of(run);
  std::string text =
      "# What this run is trained with, as `spillway train` takes it for its config: with another\n"
      "# folder for the run it comes to the same losses and weights, bit for bit, wherever this\n"
      "# folder is by then. Written by Spillway " SPILLWAY_VERSION ".\n";
  std::string group;
  for (const TrainSetting& setting : train_settings()) {
    const auto given = all.find(setting.key);
    if (given == all.end() || given->second.empty() || setting.key == "set") continue;
    if (title_of(setting.group) != group) {
      group = title_of(setting.group);
      text += "\n# " + group + "\n";
    }
    // The directories hold this run's own state.
    if (std::find(drive_set_names.begin(), drive_set_names.end(), setting.key) !=
        drive_set_names.end())
      text += "# another run needs directories of its own: ";
    for (const char* length : {"epochs", "tokens"}) {
      const auto asked = run.given.find(length);
      if (setting.key == "steps" && asked != run.given.end())
        text += fmt::format("# {} = {} come to\n", length, asked->second.back());
    }
    if (setting.key == "policy") text += origin_note(run.policy);
    text += config_line(setting, given->second);
  }
  if (const auto set = all.find("set"); set != all.end()) {
    text += "\n[set]\n";
    for (const std::string& one : set->second) text += override_line(one);
  }
  return text;
}

}  // namespace spillway
