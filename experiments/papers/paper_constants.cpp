#include "experiments/papers/paper_constants.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <sstream>

#include "base/errors.hpp"
#include "base/suggest.hpp"
#include "experiments/papers/paper_points.hpp"
#include "policies/common/policy.hpp"
#include "policies/framework/framework.hpp"
#include "policies/machine/field_reader.hpp"

namespace spillway {

namespace embedded {
const std::vector<std::pair<std::string, std::string>>& framework_files();
}

namespace {

// A key in its parts: "machine", "", "host.adam_rate"; "framework", "ratel", "host.launch".
struct KeyParts {
  std::string of, name, rest;
};

KeyParts parts_of(const std::string& key) {
  const std::size_t first = key.find('.');
  KeyParts parts;
  parts.of = key.substr(0, first);
  if (first == std::string::npos) return parts;
  parts.rest = key.substr(first + 1);
  if (parts.of != "framework" && parts.of != "policy") return parts;
  // A name may have dots in it, and framework keys have one: the longest name that there is.
  std::vector<std::string> names;
  if (parts.of == "framework") {
    for (const Framework& one : builtin_frameworks()) names.push_back(one.name);
  } else {
    for (const PolicyInfo& one : builtin_policies()) names.push_back(one.name);
  }
  for (const std::string& name : names) {
    if (name.size() <= parts.name.size() || parts.rest.rfind(name + ".", 0) != 0) continue;
    parts.name = name;
  }
  if (parts.name.empty())
    throw InputError(fmt::format("constant {}: there is no such {}", key, parts.of),
                     unknown_name_hint(parts.rest.substr(0, parts.rest.find('.')), names));
  parts.rest = parts.rest.substr(parts.name.size() + 1);
  return parts;
}

// The number at the beginning of a quantity, and its unit.
struct NumberAndUnit {
  double number = 0;
  std::string unit;
};

NumberAndUnit read_quantity(const std::string& text) {
  std::size_t used = 0;
  NumberAndUnit all;
  try {
    all.number = std::stod(text, &used);
  } catch (const std::exception&) {
    throw InputError(fmt::format("'{}' is not a number with a unit", text));
  }
  all.unit = text.substr(used);
  return all;
}

// "21GB/s", or the same in { value = ..., source = ... }, or a number; empty: none of these.
std::string text_of_node(const toml::node* node) {
  if (!node) return "";
  if (const toml::table* table = node->as_table()) return text_of_node(table->get("value"));
  if (const auto* text = node->as_string()) return text->get();
  if (const auto* flag = node->as_boolean()) return flag->get() ? "true" : "false";
  if (const auto number = node->value<double>()) return fmt::format("{}", *number);
  return "";
}

// The table that has the value of "ssd.read", or the row of "ssd.by_count.12".
toml::table* holder_of(toml::table& document, const std::string& key) {
  const std::size_t dot = key.find('.');
  if (dot == std::string::npos) return nullptr;
  toml::table* section = document[key.substr(0, dot)].as_table();
  static const std::string rows = "ssd.by_count.";
  if (!section || key.rfind(rows, 0) != 0) return section;
  toml::array* list = (*section)["by_count"].as_array();
  if (!list) return nullptr;
  for (toml::node& row : *list) {
    toml::table* table = row.as_table();
    if (table && text_of_node(table->get("count")) == key.substr(rows.size())) return table;
  }
  return nullptr;
}

// Of a row of the table of drives all rates, one constant together; else the one key.
std::vector<std::string> keys_in_holder(const toml::table& holder, const std::string& key) {
  if (!holder.contains("count") || key.rfind("ssd.by_count.", 0) != 0)
    return {key.substr(key.find('.') + 1)};
  std::vector<std::string> keys;
  for (const char* one : {"read", "write", "total"}) {
    if (holder.contains(one)) keys.emplace_back(one);
  }
  return keys;
}

std::string text_in(toml::table& document, const std::string& key) {
  toml::table* holder = holder_of(document, key);
  if (!holder) return "";
  const std::vector<std::string> keys = keys_in_holder(*holder, key);
  return keys.empty() ? "" : text_of_node(holder->get(keys.front()));
}

void scale_in(toml::table& document, const std::string& key, double factor) {
  toml::table* holder = holder_of(document, key);
  SPILLWAY_ASSERT(holder, key);
  for (const std::string& one : keys_in_holder(*holder, key)) {
    toml::node* node = holder->get(one);
    SPILLWAY_ASSERT(node, key);
    const bool is_text = node->is_string() || (node->is_table() && node->as_table()->get("value") &&
                                               node->as_table()->get("value")->is_string());
    const std::string scaled = scaled_quantity(text_of_node(node), factor);
    if (is_text)
      holder->insert_or_assign(one, scaled);
    else
      holder->insert_or_assign(one, std::stod(scaled));
  }
}

// The settings after the colon of "NAME:a=b,c=d".
std::vector<std::string> items_of(const std::string& text) {
  std::vector<std::string> items;
  const std::size_t colon = text.find(':');
  if (colon == std::string::npos) return items;
  std::istringstream list(text.substr(colon + 1));
  for (std::string item; std::getline(list, item, ',');) items.push_back(item);
  return items;
}

toml::table framework_document(const std::string& name) {
  for (const auto& [file, text] : embedded::framework_files()) {
    if (file == name + ".toml") return parse_toml(text, file);
  }
  SPILLWAY_ASSERT(false, name);
}

bool contains(const std::vector<std::string>& all, const std::string& one) {
  return std::find(all.begin(), all.end(), one) != all.end();
}

// The constant that a setting of an experiment is an instance of.
std::optional<std::size_t> constant_of_setting(const Paper& paper, const std::string& experiment,
                                               const std::string& key) {
  std::optional<std::size_t> found;
  for (std::size_t c = 0; c < paper.constants_chosen.size(); ++c) {
    const PaperConstant& constant = paper.constants_chosen[c];
    if (constant.key != "machine." + key && !contains(constant.with, "machine." + key)) continue;
    if (contains(constant.in, experiment)) return c;
    if (constant.in.empty()) found = c;
  }
  return found;
}

std::string setting_value(const Paper& paper, const std::string& experiment,
                          const std::string& key) {
  for (const PaperExperiment& e : paper.experiments) {
    if (e.name != experiment) continue;
    std::vector<std::string> all = e.settings;
    for (const PaperSystem& system : e.systems)
      all.insert(all.end(), system.settings.begin(), system.settings.end());
    for (const std::string& setting : all) {
      if (setting.rfind(key + "=", 0) == 0) return setting.substr(key.size() + 1);
    }
    return "";
  }
  return "";
}

std::string machine_value(const Paper& paper, const PaperConstant& constant,
                          const std::string& key) {
  if (!constant.in.empty()) return setting_value(paper, constant.in.front(), key);
  const std::optional<PaperText> file = paper_machine_text(paper);
  if (!file) return "";
  toml::table document = parse_toml(file->text, file->origin);
  return text_in(document, key);
}

std::string workload_value(const Paper& paper, const std::string& key) {
  static const std::vector<std::string> known = {"batch", "micro_batch", "sequence", "model",
                                                 "gradient_bits"};
  if (!contains(known, key))
    throw InputError(fmt::format("constant workload.{}: there is no such key", key),
                     unknown_name_hint(key, known));
  if (key == "sequence" && !paper.ratios.empty())
    return std::to_string(paper.ratios.front().sequence);
  if (key == "micro_batch" && !paper.ratios.empty())
    return std::to_string(paper.ratios.front().micro_batch);
  return "as each experiment says";
}

// What the paper's systems say of an option or a key, after their name's colon: each value once,
// the default where one says nothing.
std::string values_in_use(const Paper& paper, const KeyParts& parts, const std::string& otherwise) {
  std::vector<std::string> texts, values;
  for (const PaperExperiment& experiment : paper.experiments) {
    for (const PaperSystem& system : experiment.systems) {
      if (parts.of == "policy") {
        texts.push_back(system.policy);
        continue;
      }
      for (std::size_t value = 0; value < experiment.values.size(); ++value)
        texts.push_back(framework_at(system, value));
    }
  }
  for (const PaperRatio& ratio : paper.ratios) {
    const bool policy = parts.of == "policy";
    texts.push_back(policy ? ratio.faster : ratio.faster_framework);
    texts.push_back(policy ? ratio.slower : ratio.slower_framework);
  }
  for (const std::string& text : texts) {
    if (text.substr(0, text.find(':')) != parts.name) continue;
    std::string value = otherwise;
    for (const std::string& item : items_of(text)) {
      if (item.rfind(parts.rest + "=", 0) == 0) value = item.substr(parts.rest.size() + 1);
    }
    if (!contains(values, value)) values.push_back(value);
  }
  if (values.empty()) return otherwise;
  std::string all = values.front();
  for (std::size_t i = 1; i < values.size(); ++i) all += " or " + values[i];
  return all;
}

std::string policy_default(const KeyParts& parts) {
  for (const PolicyInfo& info : builtin_policies()) {
    if (info.name != parts.name) continue;
    std::vector<std::string> known;
    for (const PolicyOption& option : info.options) {
      if (option.name == parts.rest) return option.default_value;
      known.push_back(option.name);
    }
    throw InputError(
        fmt::format("constant policy.{}.{}: the policy has no such option", parts.name, parts.rest),
        unknown_name_hint(parts.rest, known));
  }
  SPILLWAY_ASSERT(false, parts.name);
}

void check_constant(const Paper& paper, const PaperConstant& constant) {
  const std::string value = constant_value(paper, constant);
  const bool continuous = constant.kind == ConstantKind::continuous;
  if (value.empty() && (continuous || !constant.in.empty()))
    throw InputError(
        fmt::format("constant {}: {} does not give it", constant.key,
                    constant.in.empty() ? "its file" : "experiment " + constant.in.front()),
        "name a key that the file or the settings give a value");
  for (const std::string& key : constant.with) {
    PaperConstant other = constant;
    other.key = key;
    other.with.clear();
    const std::string of = parts_of(key).of;
    if (of != parts_of(constant.key).of || (of != "machine" && of != "framework") ||
        constant_value(paper, other).empty())
      throw InputError(
          fmt::format("constant {}: {} beside it has no value, or is of something else",
                      constant.key, key),
          "name keys with values, of the same file: machine.KEY beside machine.KEY, "
          "framework.NAME.KEY beside "
          "framework.NAME.KEY");
  }
  for (const auto& [from, to] : {std::pair(constant.least, constant.most),
                                 std::pair(constant.range_least, constant.range_most)}) {
    if (from.empty()) continue;
    const double least = quantity_ratio(from, value), most = quantity_ratio(to, value);
    if (!(least > 0 && least <= 1 && most >= 1))
      throw InputError(
          fmt::format("constant {}: its value, {}, is not between its bounds", constant.key, value),
          "give bounds, or a range, on both sides of the value");
  }
  points_seen(paper, constant);
}

}  // namespace

std::string constant_value(const Paper& paper, const PaperConstant& constant) {
  const KeyParts parts = parts_of(constant.key);
  if (parts.of == "machine") {
    const std::string value = machine_value(paper, constant, parts.rest);
    const std::vector<std::string> known = machine_keys();
    if (value.empty() && !contains(known, parts.rest))
      throw InputError(
          fmt::format("constant {}: there is no such key in {}", constant.key, paper.machine),
          unknown_name_hint(parts.rest, known));
    return value;
  }
  if (parts.of == "framework") {
    toml::table document = framework_document(parts.name);
    const std::string given = text_in(document, parts.rest);
    const bool continuous = constant.kind == ConstantKind::continuous;
    const std::string value = continuous ? given : values_in_use(paper, parts, given);
    if (value.empty())
      throw InputError(fmt::format("constant {}: the framework does not give it", constant.key),
                       "name a key of frameworks/" + parts.name + ".toml, or of a system's own");
    return value;
  }
  if (parts.of == "policy") return values_in_use(paper, parts, policy_default(parts));
  if (parts.of == "workload") return workload_value(paper, parts.rest);
  if (parts.of == "stage")
    return setting_value(paper,
                         constant.in.empty() ? paper.experiments.front().name : constant.in.front(),
                         parts.rest);
  throw InputError(fmt::format("constant {}: it is of nothing that there is", constant.key),
                   "write machine.KEY, framework.NAME.KEY, policy.NAME.OPTION, workload.KEY or "
                   "stage.KEY");
}

void check_constants(const Paper& paper) {
  for (const PaperConstant& constant : paper.constants_chosen)
    naming(constant.place, [&] { check_constant(paper, constant); });
}

std::string scaled_quantity(const std::string& text, double factor, int digits) {
  const NumberAndUnit all = read_quantity(text);
  return fmt::format("{:.{}g}{}", all.number * factor, digits, all.unit);
}

double quantity_ratio(const std::string& text, const std::string& over) {
  const NumberAndUnit above = read_quantity(text), below = read_quantity(over);
  if (above.unit != below.unit)
    throw InputError(fmt::format("{} and {} have different units", text, over),
                     "write both in the unit of the file");
  return above.number / below.number;
}

Machine tuned_machine(const Paper& paper, const Tuning& tuning,
                      const std::vector<std::string>& settings) {
  std::optional<toml::table> document;
  std::string origin;
  for (const auto& [c, factor] : tuning) {
    const PaperConstant& constant = paper.constants_chosen[c];
    const KeyParts parts = parts_of(constant.key);
    if (parts.of != "machine" || !constant.in.empty()) continue;
    if (!document) {
      const std::optional<PaperText> file = paper_machine_text(paper);
      SPILLWAY_ASSERT(file, paper.machine);
      document = parse_toml(file->text, file->origin);
      document->erase("variants");
      origin = file->origin;
    }
    scale_in(*document, parts.rest, factor);
    for (const std::string& key : constant.with)
      scale_in(*document, key.substr(std::string("machine.").size()), factor);
  }
  if (!document) return paper_machine(paper, settings);
  std::ostringstream text;
  text << *document;
  return parse_machine(text.str(), origin, settings);
}

std::string tuned_framework(const Paper& paper, const Tuning& tuning,
                            const std::string& framework) {
  const std::string name = framework.substr(0, framework.find(':'));
  std::vector<std::string> overrides = items_of(framework);
  const auto scale = [&](const std::string& key, double factor) {
    const KeyParts parts = parts_of(key);
    if (parts.of != "framework" || parts.name != name) return;
    const auto given =
        std::find_if(overrides.begin(), overrides.end(),
                     [&](const std::string& one) { return one.rfind(parts.rest + "=", 0) == 0; });
    if (given != overrides.end()) {
      *given = parts.rest + "=" + scaled_quantity(given->substr(parts.rest.size() + 1), factor);
      return;
    }
    toml::table document = framework_document(name);
    overrides.push_back(parts.rest + "=" + scaled_quantity(text_in(document, parts.rest), factor));
  };
  for (const auto& [c, factor] : tuning) {
    const PaperConstant& constant = paper.constants_chosen[c];
    scale(constant.key, factor);
    for (const std::string& key : constant.with) scale(key, factor);
  }
  std::string text = name;
  for (std::size_t i = 0; i < overrides.size(); ++i) text += (i == 0 ? ":" : ",") + overrides[i];
  return text;
}

std::string without_defaults(const std::string& framework) {
  std::string text = framework.substr(0, framework.find(':'));
  std::vector<std::string> items = items_of(framework);
  if (items.empty()) return text;
  toml::table document = framework_document(text);
  std::sort(items.begin(), items.end());
  for (const std::string& item : items) {
    const std::size_t equals = item.find('=');
    if (equals != std::string::npos &&
        text_in(document, item.substr(0, equals)) == item.substr(equals + 1))
      continue;
    text += (text.find(':') == std::string::npos ? ":" : ",") + item;
  }
  return text;
}

std::vector<std::string> tuned_settings(const Paper& paper, const Tuning& tuning,
                                        const std::string& experiment,
                                        std::vector<std::string> settings) {
  if (tuning.empty()) return settings;
  for (std::string& setting : settings) {
    const std::string key = setting.substr(0, setting.find('='));
    const std::optional<std::size_t> constant = constant_of_setting(paper, experiment, key);
    if (!constant || !tuning.count(*constant)) continue;
    setting = key + "=" + scaled_quantity(setting.substr(key.size() + 1), tuning.at(*constant));
  }
  return settings;
}

std::vector<std::string> tuned_stage_settings(const Paper& paper, const Tuning& tuning,
                                              std::vector<std::string> settings) {
  for (const auto& [constant, factor] : tuning) {
    for (std::string& setting : settings) {
      const std::string key = setting.substr(0, setting.find('='));
      if (paper.constants_chosen[constant].key == "stage." + key)
        setting = key + "=" + scaled_quantity(setting.substr(key.size() + 1), factor);
    }
  }
  return settings;
}

}  // namespace spillway
