#include "experiments/sweep/sweep_settings.hpp"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <charconv>

#include "base/errors.hpp"
#include "base/suggest.hpp"
#include "experiments/plan/evaluate.hpp"
#include "experiments/plan/wear.hpp"
#include "policies/common/registry.hpp"
#include "policies/framework/framework.hpp"
#include "policies/workload/workload_fields.hpp"

namespace spillway {

namespace {

constexpr int most_steps = 1000;
const std::string model_prefix = "model.";

// Names and texts are not settings: they change no result.
bool is_setting(const std::string& key) {
  return key != "name" && key != "description" && key != "source";
}

const std::vector<std::string>& names_of_machine() {
  static const std::vector<std::string> keys = machine_keys();
  return keys;
}

bool is_machine_key(const std::string& key) {
  const auto& keys = names_of_machine();
  return is_setting(key) && std::find(keys.begin(), keys.end(), key) != keys.end();
}

bool is_model_key(const std::string& key) {
  return key.rfind(model_prefix, 0) == 0 && is_setting(key.substr(model_prefix.size()));
}

// Asked for every setting of every point.
bool is_policy(const std::string& name) {
  static const std::vector<PolicyInfo> builtin = builtin_policies();
  return std::any_of(builtin.begin(), builtin.end(),
                     [&](const PolicyInfo& info) { return info.name == name; }) ||
         origin_of_policy(name);
}

int steps_of(const std::string& text) {
  int steps = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, steps);
  if (error == std::errc() && stop == end && steps >= 1 && steps <= most_steps) return steps;
  throw InputError(Setting{"steps", text} +
                       Message(fmt::format(" is not a whole number from 1 to {}", most_steps)),
                   "write for example " + Setting{"steps", "6"});
}

// A micro-batch that is to be chosen is none that is given.
bool is_choice(const std::string& key, const std::string& text) {
  return key == "micro_batch" && text == "best";
}

const std::string& required(const SweepSettings& settings, const std::string& key,
                            const char* example) {
  const auto it = settings.find(key);
  if (it != settings.end()) return it->second;
  throw InputError(
      fmt::format("{} is not set", key),
      fmt::format("add {} = \"{}\" under [fixed], or an [[axis]] of it", key, example));
}

// The policy with its option settings added: "greedysnake" and greedysnake.alpha = 0.25 make
// "greedysnake:alpha=0.25".
std::string written_policy(const SweepSettings& settings) {
  std::string text = required(settings, "policy", "greedysnake");
  const std::string name = text.substr(0, text.find(':'));
  for (const auto& [key, value] : settings) {
    if (policy_of_key(key) != name) continue;
    text += fmt::format("{}{}={}", text.find(':') == std::string::npos ? ":" : ",",
                        key.substr(name.size() + 1), value);
  }
  return text;
}

// With the code of a policy that is not built in: another build of it may compute another result.
std::string policy_identity(const std::string& policy) {
  const std::optional<PolicyOrigin> origin = origin_of_policy(policy);
  return origin ? fmt::format("{}\n{} {}", policy, origin->kind, origin->hash) : policy;
}

}  // namespace

std::string hash_of(const std::string& text) {
  const XXH128_hash_t hash = XXH3_128bits(text.data(), text.size());
  return fmt::format("{:016x}{:016x}", hash.high64, hash.low64);
}

std::vector<std::string> sweep_keys() {
  std::vector<std::string> keys = {"model", "machine", "policy"};
  for (const WorkloadField& field : workload_fields()) keys.push_back(field.key);
  keys.emplace_back("steps");
  keys.emplace_back("framework");
  keys.emplace_back("durability");
  for (const std::string& key : names_of_machine()) {
    if (is_setting(key)) keys.push_back(key);
  }
  for (const std::string& key : model_keys()) {
    if (is_setting(key)) keys.push_back(model_prefix + key);
  }
  for (const PolicyInfo& info : known_policies()) {
    for (const PolicyOption& option : info.options) keys.push_back(info.name + "." + option.name);
  }
  return keys;
}

std::optional<std::string> policy_of_key(const std::string& key) {
  const std::string name = key.substr(0, key.find('.'));
  if (name.size() == key.size()) return std::nullopt;
  return is_policy(name) ? std::optional(name) : std::nullopt;
}

void check_sweep_value(const std::string& key, const std::string& value) {
  const std::vector<std::string> keys = sweep_keys();
  if (std::find(keys.begin(), keys.end(), key) == keys.end()) {
    throw InputError(fmt::format("unknown key {}", key), unknown_name_hint(key, keys));
  }
  if (const WorkloadField* field = find_workload_field(key)) {
    Workload scratch;
    if (!is_choice(key, value)) field->read(scratch, value);
  } else if (key == "steps") {
    steps_of(value);
  } else if (key == "durability") {
    parse_durability(value);
  } else if (key == "model") {
    load_model(value);
  } else if (key == "machine") {
    load_machine(value);
  } else if (key == "framework") {
    load_framework(value);
  } else if (key == "policy") {
    std::vector<std::string> names;
    for (const PolicyInfo& info : known_policies()) names.push_back(info.name);
    const std::string name = value.substr(0, value.find(':'));
    if (std::find(names.begin(), names.end(), name) == names.end()) {
      throw InputError(fmt::format("unknown policy {}", name), unknown_name_hint(name, names));
    }
    canonical_policy(value);
  } else if (const auto policy = policy_of_key(key)) {
    canonical_policy(fmt::format("{}:{}={}", *policy, key.substr(policy->size() + 1), value));
  } else if (is_model_key(key)) {
    check_model_setting(key.substr(model_prefix.size()), value);
  } else {
    check_machine_setting(key, value);
  }
}

std::function<void(Problem&)> ResolvedSettings::settle() const {
  if (!chooses_sequences_at_once || !is_measured_gpu(*machine)) return {};
  return [](Problem& problem) { problem.use_gpu_sequences_at_once(); };
}

const SettingsResolver::Known<ModelSpec>& SettingsResolver::model(const SweepSettings& settings) {
  const std::string& name = required(settings, "model", "gpt-13b");
  std::vector<std::string> overrides;
  std::string all = name;
  for (const auto& [key, value] : settings) {
    if (!is_model_key(key)) continue;
    overrides.push_back(key.substr(model_prefix.size()) + "=" + value);
    all += "\n" + overrides.back();
  }
  const auto known = models_.find(all);
  if (known != models_.end()) return known->second;
  auto model = std::make_shared<const ModelSpec>(load_model(name, overrides));
  std::string text = model_to_toml(*model);
  return models_[all] = {std::move(model), std::move(text)};
}

const SettingsResolver::Known<Machine>& SettingsResolver::machine(const SweepSettings& settings) {
  const std::string& name = required(settings, "machine", "rtx4090-12ssd");
  std::vector<std::string> overrides;
  std::string all = name;
  for (const auto& [key, value] : settings) {
    if (!is_machine_key(key)) continue;
    overrides.push_back(key + "=" + value);
    all += "\n" + overrides.back();
  }
  const auto known = machines_.find(all);
  if (known != machines_.end()) return known->second;
  auto machine = std::make_shared<const Machine>(load_machine(name, overrides));
  Machine numbers = *machine;
  numbers.sources.clear();
  std::string text = machine_to_toml(numbers);
  return machines_[all] = {std::move(machine), std::move(text)};
}

const std::string& SettingsResolver::policy(const SweepSettings& settings) {
  const std::string text = written_policy(settings);
  const auto known = policies_.find(text);
  if (known != policies_.end()) return known->second;
  return policies_[text] = canonical_policy(text);
}

ResolvedSettings SettingsResolver::resolve(const SweepSettings& settings) {
  ResolvedSettings resolved;
  const Known<ModelSpec>& known_model = model(settings);
  const Known<Machine>& known_machine = machine(settings);
  resolved.model = known_model.part;
  resolved.machine = known_machine.part;
  resolved.steps = default_steps;
  WorkloadTexts given;
  std::string durability;
  for (const auto& [key, value] : settings) {
    if (key == "durability") durability = value;
    if (key == "steps") resolved.steps = steps_of(value);
    if (key == "framework") {
      load_framework(value);
      resolved.framework = value;
    }
    if (find_workload_field(key) != nullptr && !is_choice(key, value)) given[key] = value;
    if (is_machine_key(key) || is_model_key(key)) resolved.overrides.push_back(key + "=" + value);
  }
  // As `train` commits where nobody says otherwise; other programs do not.
  resolved.durability = durability.empty() && resolved.framework == own_framework
                            ? WholeRun().durability
                            : durability_of(durability, resolved.framework);
  use_all_gpus(*resolved.machine, given);
  resolved.best_micro_batch = !given.contains("micro_batch");
  resolved.chooses_sequences_at_once = !given.contains("sequences_at_once");
  resolved.workload =
      read_workload(given, *resolved.model, usual_precision(resolved.machine->backend()));
  resolved.policy = policy(settings);
  (void)resolved.problem();  // which validates it
  WorkloadTexts texts = workload_texts(resolved.workload);
  if (resolved.best_micro_batch) texts["micro_batch"] = "best";
  if (resolved.chooses_sequences_at_once) texts["sequences_at_once"] = "chosen";
  texts["framework"] = resolved.framework + " " + framework_hash(resolved.framework);
  texts["durability"] =
      resolved.durability.on() ? std::to_string(resolved.durability.interval) : "off";
  std::string all;
  for (const auto& [key, text] : texts) all += key + " " + text + "\n";
  resolved.identity =
      hash_of(fmt::format("{}\n{}\n{}steps {}\n{}", known_model.text, known_machine.text, all,
                          resolved.steps, policy_identity(resolved.policy)));
  return resolved;
}

}  // namespace spillway
