#include "experiments/sweep/sweep_settings.hpp"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <charconv>

#include "base/errors.hpp"
#include "base/suggest.hpp"
#include "experiments/plan/evaluate.hpp"
#include "policies/common/policy.hpp"
#include "policies/framework/framework.hpp"

namespace spillway {

namespace {

constexpr std::int64_t default_batch = 8, default_longest_sequence = 1024, most_steps = 1000;
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

const std::vector<PolicyInfo>& policies() {
  static const std::vector<PolicyInfo> all = builtin_policies();
  return all;
}

std::optional<std::int64_t> whole(const std::string& text) {
  std::int64_t number = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, number);
  if (error != std::errc() || stop != end) return std::nullopt;
  return number;
}

std::int64_t count_of(const std::string& key, const std::string& text, std::int64_t most) {
  const std::optional<std::int64_t> number = whole(text);
  if (number && *number >= 1 && *number <= most) return *number;
  throw InputError(fmt::format("{} = {} is not a whole number from 1 to {}", key, text, most),
                   fmt::format("write for example {} = 8", key));
}

void require_one_of(const std::string& key, const std::string& text,
                    const std::vector<std::string>& names) {
  if (std::find(names.begin(), names.end(), text) != names.end()) return;
  throw InputError(fmt::format("{} = {} is not one of its values", key, text),
                   unknown_name_hint(text, names));
}

constexpr std::int64_t most_sequences = 100'000'000;

// The settings of the workload and how long it is simulated; true where `key` is one.
bool read_workload(const std::string& key, const std::string& text, ResolvedSettings& into) {
  Workload& workload = into.workload;
  if (key == "batch") {
    workload.batch = count_of(key, text, most_sequences);
  } else if (key == "micro_batch") {
    into.best_micro_batch = text == "best";
    if (!into.best_micro_batch) workload.micro_batch = count_of(key, text, most_sequences);
  } else if (key == "sequence") {
    workload.sequence = count_of(key, text, most_sequences);
  } else if (key == "steps") {
    into.steps = static_cast<int>(count_of(key, text, most_steps));
  } else if (key == "precision") {
    require_one_of(key, text, {"bf16", "fp32"});
    workload.precision = text == "fp32" ? Precision::fp32 : Precision::bf16;
  } else if (key == "gradient_bits") {
    require_one_of(key, text, {"16", "32", "auto"});
    workload.gradient = text == "16"   ? GradientWidth::bits16
                        : text == "32" ? GradientWidth::bits32
                                       : GradientWidth::automatic;
  } else if (key == "moments") {
    workload.moments = parse_moments(key, text);
  } else if (key == "gradient_clip") {
    workload.clip = parse_gradient_clip(key, text);
  } else if (key == "framework") {
    load_framework(text);
    into.framework = text;
  } else if (key == "on_nonfinite") {
    workload.on_nonfinite = parse_on_nonfinite(key, text);
  } else {
    return false;
  }
  return true;
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
std::string policy_text(const SweepSettings& settings) {
  std::string text = required(settings, "policy", "greedysnake");
  const std::string name = text.substr(0, text.find(':'));
  for (const auto& [key, value] : settings) {
    if (policy_of_key(key) != name) continue;
    text += fmt::format("{}{}={}", text.find(':') == std::string::npos ? ":" : ",",
                        key.substr(name.size() + 1), value);
  }
  return canonical_policy(text);
}

}  // namespace

std::string hash_of(const std::string& text) {
  const XXH128_hash_t hash = XXH3_128bits(text.data(), text.size());
  return fmt::format("{:016x}{:016x}", hash.high64, hash.low64);
}

std::vector<std::string> sweep_keys() {
  std::vector<std::string> keys = {"model",       "machine",       "policy",       "batch",
                                   "micro_batch", "sequence",      "precision",    "gradient_bits",
                                   "moments",     "gradient_clip", "on_nonfinite", "steps",
                                   "framework"};
  for (const std::string& key : names_of_machine()) {
    if (is_setting(key)) keys.push_back(key);
  }
  for (const std::string& key : model_keys()) {
    if (is_setting(key)) keys.push_back(model_prefix + key);
  }
  for (const PolicyInfo& info : policies()) {
    for (const PolicyOption& option : info.options) keys.push_back(info.name + "." + option.name);
  }
  return keys;
}

std::optional<std::string> policy_of_key(const std::string& key) {
  const std::string name = key.substr(0, key.find('.'));
  if (name.size() == key.size()) return std::nullopt;
  for (const PolicyInfo& info : policies()) {
    if (info.name == name) return name;
  }
  return std::nullopt;
}

void check_sweep_value(const std::string& key, const std::string& value) {
  const std::vector<std::string> keys = sweep_keys();
  if (std::find(keys.begin(), keys.end(), key) == keys.end()) {
    throw InputError(fmt::format("unknown key {}", key), unknown_name_hint(key, keys));
  }
  ResolvedSettings scratch;
  if (read_workload(key, value, scratch)) return;
  if (key == "model") {
    load_model(value);
  } else if (key == "machine") {
    load_machine(value);
  } else if (key == "policy") {
    std::vector<std::string> names;
    for (const PolicyInfo& info : policies()) names.push_back(info.name);
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

ResolvedSettings SettingsResolver::resolve(const SweepSettings& settings) {
  ResolvedSettings resolved;
  const Known<ModelSpec>& known_model = model(settings);
  const Known<Machine>& known_machine = machine(settings);
  resolved.model = known_model.part;
  resolved.machine = known_machine.part;
  resolved.steps = default_steps;
  resolved.best_micro_batch = true;
  Workload& workload = resolved.workload;
  workload.batch = default_batch;
  workload.sequence = std::min(resolved.model->positions, default_longest_sequence);
  workload.precision = usual_precision(resolved.machine->backend());
  for (const auto& [key, value] : settings) {
    read_workload(key, value, resolved);
    if (is_machine_key(key) || is_model_key(key)) resolved.overrides.push_back(key + "=" + value);
  }
  if (resolved.best_micro_batch) workload.micro_batch = workload.batch;
  resolved.policy = policy_text(settings);
  resolved.problem().validate();
  // Settings at their defaults leave no mark, so that results of before there was a choice stay
  // valid.
  std::string choices;
  if (workload.moments != MomentWidth::fp32)
    choices = fmt::format("moments {}\n", to_string(workload.moments));
  if (workload.needs_norms())
    choices += fmt::format("clip {} nonfinite {}\n", to_string(workload.clip),
                           to_string(workload.on_nonfinite));
  if (resolved.framework != own_framework)
    choices += fmt::format("framework {}\n", resolved.framework);
  resolved.identity = hash_of(fmt::format(
      "{}\n{}\nbatch {} micro-batch {} sequence {} precision {} gradient {} steps {}\n{}\n{}",
      known_model.text, known_machine.text, workload.batch,
      resolved.best_micro_batch ? "best" : std::to_string(workload.micro_batch), workload.sequence,
      static_cast<int>(workload.precision), static_cast<int>(workload.gradient), resolved.steps,
      resolved.policy, choices));
  return resolved;
}

}  // namespace spillway
