#include "experiments/train/train_config.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <limits>
#include <map>
#include <sstream>

#include "base/errors.hpp"
#include "base/suggest.hpp"
#include "experiments/train/kept_settings.hpp"
#include "policies/machine/field_reader.hpp"
#include "policies/machine/machine.hpp"
#include "text/chat/chat_template.hpp"

namespace spillway {

namespace {

// What keys of other programs' configs are called here; empty: none that is known.
std::string name_elsewhere(const std::string& name) {
  static const std::map<std::string, std::string> names = {
      {"base_model", "model"},
      {"model_name_or_path", "model"},
      {"datasets", "data"},
      {"dataset", "data"},
      {"train_file", "data"},
      {"num_epochs", "epochs"},
      {"num_train_epochs", "epochs"},
      {"max_steps", "steps"},
      {"micro_batch_size", "micro_batch"},
      {"per_device_train_batch_size", "micro_batch"},
      {"gradient_accumulation_steps",
       "batch, the sequences of a step; micro_batch is a part of it"},
      {"lr", "learning_rate"},
      {"lr_scheduler", "learning_rate_schedule"},
      {"lr_scheduler_type", "learning_rate_schedule"},
      {"warmup_steps", "warmup"},
      {"warmup_ratio", "warmup, \"3%\" say"},
      {"sequence_len", "sequence"},
      {"max_seq_length", "sequence"},
      {"sample_packing", "pack"},
      {"train_on_inputs", "train_on, \"assistant\" or \"all\""},
      {"val_set_size", "validation, \"1%\" say"},
      {"eval_steps", "evaluate_every"},
      {"save_steps", "keep_every, with keep"},
      {"save_total_limit", "keep"},
      {"load_best_model_at_end", "keep_best"},
      {"early_stopping_patience", "early_stop"},
      {"max_grad_norm", "gradient_clip, \"global=1\" say"},
      {"output_dir", "run"},
      {"bf16", "precision, \"bf16\" or \"fp32\""},
      {"fp16", "precision, \"bf16\" or \"fp32\""},
      {"lora_r", "lora, \"rank=16,alpha=32\" say"},
      {"lora_alpha", "lora, \"rank=16,alpha=32\" say"},
      {"lora_dropout", "lora, \"rank=16,dropout=0.05\" say"},
      {"lora_target_modules", "lora, \"rank=16,targets=q_proj+v_proj\" say"},
      {"special_tokens", "tokenizer, whose special tokens are taken"}};
  const auto found = names.find(name);
  return found == names.end() ? "" : "it is called " + found->second + " here";
}

namespace fs = std::filesystem;
using Texts = std::vector<std::string>;

constexpr const char* described_in = "docs/config.md describes config files";
constexpr const char* overrides_key = "set";

// What one start is asked to do: no settings.
constexpr std::array<const char*, 8> acts = {"resume", "take_over", "overwrite", "retune_matmul",
                                             "json",   "quiet",     "config",    "dry_run"};
// What decides which tokens a training sees.
constexpr std::array<const char*, 13> of_data = {
    "data",          "data_format", "binary_data",    "skip_malformed", "tokenizer",
    "chat_template", "train_on",    "template_date",  "parse_special",  "pack",
    "validation",    "sequence",    "long_documents",
};

const char* example_of(SettingForm form) {
  switch (form) {
    case SettingForm::text:
    case SettingForm::parts:
      return "\"TEXT\"";
    case SettingForm::mixed:
      return "100, or a text in quotes";
    case SettingForm::number:
      return "0.1";
    case SettingForm::whole:
    case SettingForm::large:
      return "100";
    case SettingForm::flag:
      return "true";
    case SettingForm::list:
      return "[\"ONE\", \"ANOTHER\"]";
  }
  SPILLWAY_ASSERT(false);
}

// Paths end there, for the system.
void require_no_zero(const std::string& text) {
  if (text.find('\0') != std::string::npos)
    throw InputError("the text holds a zero byte", "write it without");
}

bool is_there(const fs::path& path) {
  std::error_code error;
  return fs::exists(path, error);
}

bool is_one_of(const std::string& name, const auto& names) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

// Paths of a file, which are below its folder.
class Paths {
 public:
  explicit Paths(const fs::path& folder) : folder_(folder) {}

  std::string resolve(const std::string& key, const std::string& text) const {
    if (text.empty()) return text;
    if (key == "run" || key == "trace" || key == "adapter") return below(text);
    if (key == "model") return is_model_name(text) ? text : name_or_path(text);
    if (key == "machine") return is_machine_name(text) ? text : name_or_path(text);
    if (key == "tokenizer" || key == "chat_template")
      return is_other_name(text) ? text : name_or_path(text);
    if (key == "validation") return is_amount(text) ? text : below(text);
    if (key == "data") return source(text);
    if (std::find(drive_set_names.begin(), drive_set_names.end(), key) == drive_set_names.end())
      return text;
    std::string all;
    std::istringstream parts(text);
    for (std::string part; std::getline(parts, part, ',');)
      if (!part.empty()) all += (all.empty() ? "" : ",") + below(part);
    return all.empty() ? text : all;  // refused as it is
  }

 private:
  std::string below(const std::string& text) const {
    if (text.empty() || fs::path(text).is_absolute()) return text;
    return (folder_ / text).lexically_normal().string();
  }
  // What is not there may be a name: a path has a slash in front, or says that it is TOML.
  std::string name_or_path(const std::string& text) const {
    const bool is_path = text.starts_with("./") || text.starts_with("../") ||
                         text.ends_with(".toml") || is_there(folder_ / text);
    return is_path ? below(text) : text;
  }
  std::string source(const std::string& text) const {
    const std::size_t sign = text.rfind('=');
    if (sign == std::string::npos || sign == 0 || is_there(folder_ / text)) return below(text);
    return below(text.substr(0, sign)) + text.substr(sign);
  }
  static bool is_model_name(const std::string& text) {
    const auto& all = builtin_models();
    return std::any_of(all.begin(), all.end(), [&](const auto& one) { return one.name == text; });
  }
  static bool is_machine_name(const std::string& text) {
    const auto& all = builtin_machines();
    return std::any_of(all.begin(), all.end(), [&](const auto& one) { return one.name == text; });
  }
  static bool is_other_name(const std::string& text) {
    return text == "auto" || text == "bytes" || is_one_of(text, built_in_templates());
  }
  // "1%", "200".
  static bool is_amount(const std::string& text) {
    return text.find_first_not_of("0123456789.+eE%") == std::string::npos;
  }

  fs::path folder_;
};

class Reader {
 public:
  Reader(std::string origin, const fs::path& folder) : origin_(std::move(origin)), paths_(folder) {}

  GivenSettings read(const std::string& text) {
    const toml::table document = parse_toml(text, origin_, described_in);
    for (const auto& [key, node] : document) {
      if (key.str() == overrides_key)
        read_overrides(key, node);
      else
        read_setting(key, node);
    }
    // Without this, what is given last depends on the order of the keys.
    require_one_length(given_);
    return std::move(given_);
  }

 private:
  [[noreturn]] void fail(const toml::source_region& at, const std::string& what,
                         const std::string& hint) const {
    throw InputError(place_of(at, origin_), 0, what, hint);
  }

  void read_setting(const toml::key& key, const toml::node& node) {
    const std::string name(key.str());
    const TrainSetting* const setting = find_train_setting(name);
    if (setting == nullptr) fail_unknown(key, name);
    if (node.is_table())
      fail(key.source(), name + " is a table",
           fmt::format("write for example {} = {}; keys of the machine and the model belong under "
                       "[set]",
                       name, example_of(setting->form)));
    Texts texts = texts_of(*setting, node);
    check(node.source(), name, [&] {
      for (const std::string& one : texts) require_no_zero(one);
      TrainSettings scratch;
      setting->read(scratch, texts);
    });
    for (std::string& one : texts) one = paths_.resolve(name, one);
    given_[name] = std::move(texts);
  }

  [[noreturn]] void fail_unknown(const toml::key& key, const std::string& name) const {
    if (is_one_of(name, acts))
      fail(key.source(), name + " is no setting of a training",
           "it is asked for on the command line alone: leave it out here");
    Texts known = {overrides_key};
    for (const TrainSetting& one : train_settings())
      if (one.key != overrides_key) known.push_back(one.key);
    const std::string other = name_elsewhere(name);
    const bool near = !near_names(name, known).empty();
    fail(key.source(), "unknown key " + name,
         !other.empty() ? other
         : near         ? unknown_name_hint(name, known)
                        : described_in);
  }

  // Errors of values, which know no place and may name settings as flags.
  template <class Body>
  void check(const toml::source_region& at, const std::string& key, const Body& body) const {
    try {
      body();
    } catch (const InputError& error) {
      const std::string what = error.message().text();
      const bool names_it = what.starts_with(key);
      fail(at, names_it ? what : key + ": " + what, error.advice().text());
    }
  }

  Texts texts_of(const TrainSetting& setting, const toml::node& node) const {
    const SettingForm form = setting.form;
    const bool several = form == SettingForm::list || form == SettingForm::parts;
    if (const toml::array* const array = node.as_array(); array && several) {
      Texts texts;
      for (const toml::node& one : *array) texts.push_back(text_of(setting, one));
      if (texts.empty()) fail(node.source(), setting.key + " is empty", "leave it out");
      if (form == SettingForm::list) return texts;
      return {fmt::format("{}", fmt::join(texts, ","))};
    }
    return {text_of(setting, node)};
  }

  std::string text_of(const TrainSetting& setting, const toml::node& node) const {
    const SettingForm form = setting.form;
    const auto is = [&](auto... forms) { return ((form == forms) || ...); };
    using F = SettingForm;
    if (const auto* text = node.as_string();
        text && is(F::text, F::mixed, F::parts, F::list, F::large))
      return text->get();
    if (const auto* whole = node.as_integer();
        whole && is(F::mixed, F::number, F::whole, F::large, F::list))
      return std::to_string(whole->get());
    if (const auto* real = node.as_floating_point(); real && is(F::number))
      return fmt::format("{}", real->get());
    if (const auto* flag = node.as_boolean(); flag && is(F::flag))
      return flag->get() ? "true" : "false";
    fail(node.source(), fmt::format("{} is {}", setting.key, name_of(node.type())),
         fmt::format("write for example {} = {}", setting.key, example_of(form)));
  }

  void read_overrides(const toml::key& key, const toml::node& node) {
    const toml::table* const table = node.as_table();
    if (table == nullptr)
      fail(key.source(), fmt::format("set is {}", name_of(node.type())),
           "write a table: [set], and below it for example ssd.count = 6");
    Texts assignments;
    add_overrides("", *table, assignments);
    if (!assignments.empty()) given_[overrides_key] = std::move(assignments);
  }

  void add_overrides(const std::string& prefix, const toml::table& table, Texts& assignments) {
    for (const auto& [key, node] : table) {
      const std::string name = prefix + std::string(key.str());
      if (const toml::table* const inner = node.as_table()) {
        add_overrides(name + ".", *inner, assignments);
        continue;
      }
      const std::string value = override_text(name, node);
      check(node.source(), name, [&] { require_no_zero(name + value); });
      require_known_override(key, name);
      check(node.source(), name, [&] {
        if (name.starts_with("model."))
          check_model_setting(name.substr(name.find('.') + 1), value);
        else
          check_machine_setting(name, value);
      });
      assignments.push_back(name + "=" + value);
    }
  }

  std::string override_text(const std::string& name, const toml::node& node) const {
    if (const auto* text = node.as_string()) return text->get();
    if (const auto* whole = node.as_integer()) return std::to_string(whole->get());
    if (const auto* real = node.as_floating_point()) return fmt::format("{}", real->get());
    if (const auto* flag = node.as_boolean()) return flag->get() ? "true" : "false";
    fail(node.source(), fmt::format("{} is {}", name, name_of(node.type())),
         "give a text, a number, true or false");
  }

  void require_known_override(const toml::key& key, const std::string& name) const {
    Texts known = machine_keys();
    for (const std::string& one : model_keys()) known.push_back("model." + one);
    if (is_one_of(name, known) && name.find('.') != std::string::npos) return;
    const std::string hint = find_train_setting(name) != nullptr
                                 ? name + " is a setting of the training: write it above [set]"
                             : near_names(name, known).empty()
                                 ? "known are the keys of machine files (docs/machine-files.md) "
                                   "and, with model. in front, of model files"
                                 : unknown_name_hint(name, known);
    fail(key.source(), "unknown key " + name + " in [set]", hint);
  }

  std::string origin_;
  Paths paths_;
  GivenSettings given_;
};

std::string key_of(const std::string& assignment) {
  return assignment.substr(0, assignment.find('='));
}

}  // namespace

GivenSettings parse_train_config(const std::string& text, const std::string& origin,
                                 const fs::path& folder) {
  return Reader(origin, folder).read(text);
}

GivenSettings load_train_config(const std::string& path) {
  const std::optional<std::string> text = read_named_file(path);
  if (!text)
    throw InputError(Setting{"config", path} + ": there is no such file",
                     "`spillway init` writes one");
  std::error_code error;
  const fs::path absolute = fs::absolute(path, error);
  return parse_train_config(*text, path, absolute.lexically_normal().parent_path());
}

GivenSettings with_assignments(GivenSettings given) {
  const auto set = given.find(overrides_key);
  if (set == given.end()) return given;
  const Texts all = std::move(set->second);
  given.erase(set);
  const GivenSettings by_options = given;
  Texts overrides;
  for (const std::string& one : all) {
    const std::string key = key_of(one);
    if (one.find('=') == std::string::npos || key.find('.') != std::string::npos) {
      overrides.push_back(one);  // refused, where it is neither, with the others
      continue;
    }
    const TrainSetting* const setting = find_train_setting(key);
    if (setting == nullptr || key == overrides_key) {
      Texts known = machine_keys();
      for (const TrainSetting& other : train_settings()) known.push_back(other.key);
      throw InputError(Setting{overrides_key, one} + ": unknown setting " + key,
                       unknown_name_hint(key, known));
    }
    if (by_options.contains(key))
      throw InputError(
          Setting{key} + " and " + Setting{overrides_key, one} + " both say the same setting",
          "give one of them");
    const std::string value = one.substr(key.size() + 1);
    Texts& texts = given[key];
    if (setting->form != SettingForm::list) texts.clear();  // the last one holds
    if (!value.empty()) texts.push_back(value);
  }
  if (!overrides.empty()) given[overrides_key] = std::move(overrides);
  return given;
}

GivenSettings above_file(GivenSettings given, GivenSettings of_file) {
  const bool other_data = std::any_of(of_data.begin(), of_data.end(),
                                      [&](const char* key) { return given.contains(key); });
  if (other_data) of_file.erase("data_hash");
  if (given.contains("model")) of_file.erase("weights_hash");
  // Of overrides each key counts for itself.
  const auto now = given.find(overrides_key), before = of_file.find(overrides_key);
  if (now != given.end() && before != of_file.end()) {
    Texts all = before->second;
    std::erase_if(all, [&](const std::string& one) {
      return std::any_of(now->second.begin(), now->second.end(),
                         [&](const std::string& other) { return key_of(other) == key_of(one); });
    });
    all.insert(all.end(), now->second.begin(), now->second.end());
    now->second = std::move(all);
  }
  GivenSettings all = added_to(std::move(given), std::move(of_file));
  std::erase_if(all, [](const auto& one) { return one.second.empty(); });
  return all;
}

GivenSettings changed_since(const GivenSettings& of_file, const SavedRun& saved) {
  GivenSettings changed = kept(of_file);
  std::erase_if(changed, [&](const auto& one) {
    const auto is_kept = [&](const std::string& name) {
      const auto found = saved.options.find(name);
      return found != saved.options.end() && found->second == one.second;
    };
    return is_kept(one.first) || is_kept(one.first + as_given_suffix);
  });
  return changed;
}

std::string override_line(const std::string& assignment) {
  const std::string key = key_of(assignment);
  return fmt::format("{} = {}\n", key,
                     quoted(assignment.substr(std::min(assignment.size(), key.size() + 1))));
}

std::string config_line(const TrainSetting& setting, const Texts& texts) {
  const std::string& text = texts.back();
  std::string value;
  switch (setting.form) {
    case SettingForm::list: {
      for (const std::string& one : texts) value += (value.empty() ? "[" : ", ") + quoted(one);
      value += "]";
      break;
    }
    case SettingForm::number: {
      double number = 0;
      std::from_chars(text.data() + (text.starts_with('+') ? 1 : 0), text.data() + text.size(),
                      number);
      value = fmt::format("{}", number);
      break;
    }
    case SettingForm::whole:
    case SettingForm::large: {
      // TOML's whole numbers end at 2^63 - 1.
      std::int64_t number = 0;
      const auto [stop, error] = std::from_chars(text.data() + (text.starts_with('+') ? 1 : 0),
                                                 text.data() + text.size(), number);
      value = error == std::errc() ? std::to_string(number) : quoted(text);
      break;
    }
    case SettingForm::flag:
      value = text;
      break;
    case SettingForm::text:
    case SettingForm::mixed:
    case SettingForm::parts:
      value = quoted(text);
  }
  return fmt::format("{} = {}\n", setting.key, value);
}

}  // namespace spillway
