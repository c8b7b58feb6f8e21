// Which events of a PyTorch trace are a step, and which belong to which lane and kind of task: a
// mapping file, in TOML (docs/traces.md).
#pragma once

#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "experiments/validate/name_pattern.hpp"

namespace spillway {

// Which events: those that meet every condition that is given. Each is an expression that the whole
// text has to match.
struct EventConditions {
  std::optional<NamePattern> name, category;
  std::optional<NamePattern> thread;  // the thread's number or its name
  std::vector<std::pair<std::string, NamePattern>> args;
};

struct MappingRule {
  EventConditions conditions;
  bool ignored = false;            // its events are neither mapped nor missed
  std::string lane;                // "gpu.compute"
  std::vector<std::string> kinds;  // what its events do, together: {"embed_forward", "forward"}
  std::string place;               // file:line:column

  std::string kind() const;  // "embed_forward+forward"
};

struct KinetoMapping {
  std::string origin;
  EventConditions steps;           // events whose time is one step
  int left_out = 1;                // of the first steps
  std::vector<MappingRule> rules;  // where several match, the first holds

  std::set<std::string> args() const;  // that conditions look at
};

// Throws InputError with file:line:column: syntax, unknown keys (with near names), a lane or a kind
// of task that there is none of, a kind in two different sets, an expression that is wrong, a rule
// without a condition.
KinetoMapping parse_kineto_mapping(const std::string& toml_text, const std::string& origin);
KinetoMapping load_kineto_mapping(const std::string& path);

}  // namespace spillway
