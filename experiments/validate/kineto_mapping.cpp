#include "experiments/validate/kineto_mapping.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "base/errors.hpp"
#include "base/suggest.hpp"
#include "policies/machine/field_reader.hpp"
#include "policies/schedule/task.hpp"

namespace spillway {

namespace {

constexpr const char* about = "docs/traces.md describes mapping files";
constexpr int most_left_out = 1000;

template <class Enum>
std::vector<std::string> names(int count) {
  std::vector<std::string> all;
  for (int i = 0; i < count; ++i) all.emplace_back(to_string(static_cast<Enum>(i)));
  return all;
}

class MappingReader {
 public:
  explicit MappingReader(const std::string& origin) {
    mapping_.origin = origin;
    mapping_.steps.name.emplace("ProfilerStep#[0-9]+");
    mapping_.steps.category.emplace("user_annotation");
  }

  KinetoMapping read(const std::string& text) {
    for (const auto& [key, node] : parse_toml(text, mapping_.origin, about)) {
      const std::string name(key.str());
      if (name == "steps") {
        const toml::table* table = node.as_table();
        if (table == nullptr) fail(node, "steps is not a table", "write [steps], and keys below");
        read_steps(*table);
      } else if (name == "rule") {
        const toml::array* array = node.as_array();
        if (array == nullptr || !array->is_homogeneous(toml::node_type::table))
          fail(node, "rule is not a list of tables", "write [[rule]], and its keys below");
        for (const toml::node& element : *array) read_rule(*element.as_table());
      } else {
        fail_key(key, {"steps", "rule"});
      }
    }
    if (mapping_.rules.empty())
      throw InputError(mapping_.origin, 0, "it holds no rule",
                       std::string("add [[rule]] with a lane, a kind and a condition; ") + about);
    require_kinds_apart();
    return std::move(mapping_);
  }

 private:
  [[noreturn]] void fail(const toml::node& node, const Message& what, const Message& hint) const {
    throw InputError(place_of(node.source(), mapping_.origin), 0, what, hint);
  }
  [[noreturn]] void fail_key(const toml::key& key, const std::vector<std::string>& known) const {
    throw InputError(place_of(key.source(), mapping_.origin), 0,
                     fmt::format("unknown key {}", key.str()), unknown_name_hint(key.str(), known));
  }

  std::string text(const toml::node& node, const std::string& key) const {
    if (const auto* value = node.as_string()) {
      require_shown(node, value->get());
      return value->get();
    }
    if (const auto* whole = node.as_integer()) return std::to_string(whole->get());
    fail(node, key + " is neither a text nor a whole number",
         "write an expression in single quotes: " + key + " = 'aten::.*'");
  }
  void require_shown(const toml::node& node, const std::string& value) const {
    try {
      require_printable(value);
    } catch (const InputError& error) {
      fail(node, error.message(), error.advice());
    }
  }

  NamePattern pattern(const toml::node& node, const std::string& key) const {
    try {
      return NamePattern(text(node, key));
    } catch (const InputError& error) {
      const std::string what = error.what();
      if (what.starts_with(mapping_.origin)) throw;
      fail(node, key + ": " + what, error.advice());
    }
  }

  // Reads a key if it is a condition.
  bool read_condition(EventConditions& conditions, const std::string& key,
                      const toml::node& node) const {
    if (key == "name") {
      conditions.name = pattern(node, key);
    } else if (key == "category") {
      conditions.category = pattern(node, key);
    } else if (key == "thread") {
      conditions.thread = pattern(node, key);
    } else if (key == "stream") {
      conditions.args.emplace_back("stream", pattern(node, key));
    } else if (key == "args") {
      const toml::table* table = node.as_table();
      if (table == nullptr) fail(node, "args is not a table", "write args = { \"stream\" = '7' }");
      for (const auto& [name, value] : *table)
        conditions.args.emplace_back(std::string(name.str()),
                                     pattern(value, std::string(name.str())));
    } else {
      return false;
    }
    return true;
  }

  void read_steps(const toml::table& table) {
    for (const auto& [key, node] : table) {
      const std::string name(key.str());
      if (name == "leave_out") {
        const auto* count = node.as_integer();
        if (count == nullptr || count->get() < 0 || count->get() > most_left_out)
          fail(node, fmt::format("leave_out is not a whole number from 0 to {}", most_left_out),
               "write leave_out = 1 where the first step warms up");
        mapping_.left_out = static_cast<int>(count->get());
      } else if (!read_condition(mapping_.steps, name, node)) {
        fail_key(key, {"name", "category", "thread", "stream", "args", "leave_out"});
      }
    }
  }

  void read_rule(const toml::table& table) {
    MappingRule rule;
    rule.place = place_of(table.source(), mapping_.origin);
    bool has_condition = false;
    for (const auto& [key, node] : table) {
      const std::string name(key.str());
      if (name == "lane") {
        rule.lane = one_of(node, name, names<Lane>(lane_count));
      } else if (name == "kind") {
        read_kinds(node, rule.kinds);
      } else if (name == "ignore") {
        const auto* flag = node.as_boolean();
        if (flag == nullptr) fail(node, "ignore is neither true nor false", "write ignore = true");
        rule.ignored = flag->get();
      } else if (read_condition(rule.conditions, name, node)) {
        has_condition = true;
      } else {
        fail_key(key, {"lane", "kind", "ignore", "name", "category", "thread", "stream", "args"});
      }
    }
    const auto refuse = [&](const char* what, const char* hint) {
      throw InputError(rule.place, 0, what, hint);
    };
    if (!has_condition)
      refuse("a rule without a condition would take every event",
             "say which: name, category, thread, stream or args");
    if (rule.ignored && (!rule.lane.empty() || !rule.kinds.empty()))
      refuse("a rule that ignores events has neither a lane nor a kind", "take one of them out");
    if (!rule.ignored && rule.lane.empty())
      refuse("lane is missing", "write for example lane = \"gpu.compute\", or ignore = true");
    if (!rule.ignored && rule.kinds.empty())
      refuse("kind is missing", "write for example kind = \"forward\", or ignore = true");
    mapping_.rules.push_back(std::move(rule));
  }

  std::string one_of(const toml::node& node, const std::string& key,
                     const std::vector<std::string>& known) const {
    const std::string value = text(node, key);
    if (std::find(known.begin(), known.end(), value) == known.end())
      fail(node, "unknown " + key + " " + value, unknown_name_hint(value, known));
    return value;
  }

  void read_kinds(const toml::node& node, std::vector<std::string>& kinds) const {
    const std::vector<std::string> known = names<TaskKind>(task_kind_count);
    if (const toml::array* array = node.as_array()) {
      for (const toml::node& element : *array) kinds.push_back(one_of(element, "kind", known));
      if (kinds.empty()) fail(node, "kind is an empty list", "name a kind of task");
    } else {
      kinds.push_back(one_of(node, "kind", known));
    }
    std::sort(kinds.begin(), kinds.end());
    kinds.erase(std::unique(kinds.begin(), kinds.end()), kinds.end());
  }

  // A kind that is measured by itself cannot be a part of another sum as well.
  void require_kinds_apart() const {
    std::map<std::string, const MappingRule*> owners;
    for (const MappingRule& rule : mapping_.rules) {
      for (const std::string& kind : rule.kinds) {
        const auto [owner, fresh] = owners.emplace(kind, &rule);
        if (fresh || owner->second->kinds == rule.kinds) continue;
        throw InputError(rule.place, 0,
                         fmt::format("kind {} is in {} here and in {} at {}", kind, rule.kind(),
                                     owner->second->kind(), owner->second->place),
                         "write the same list of kinds in both rules");
      }
    }
  }

  KinetoMapping mapping_;
};

}  // namespace

std::string MappingRule::kind() const { return fmt::format("{}", fmt::join(kinds, "+")); }

std::set<std::string> KinetoMapping::args() const {
  std::set<std::string> all;
  for (const auto& [name, _] : steps.args) all.insert(name);
  for (const MappingRule& rule : rules) {
    for (const auto& [name, _] : rule.conditions.args) all.insert(name);
  }
  return all;
}

KinetoMapping parse_kineto_mapping(const std::string& toml_text, const std::string& origin) {
  return MappingReader(origin).read(toml_text);
}

KinetoMapping load_kineto_mapping(const std::string& path) {
  const auto text = read_named_file(path);
  if (!text)
    throw InputError(path + ": there is no such file",
                     std::string("name a mapping file; ") + about);
  return parse_kineto_mapping(*text, path);
}

}  // namespace spillway
