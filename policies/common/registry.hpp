// Policies by name: those that are built in, and those that a program adds while it runs, of a
// plugin (plugin_loader.hpp) or of another language. Wherever a policy is named in a text, both are
// known.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "policies/common/policy.hpp"

namespace spillway {

// Makes a policy with its options at their defaults. Called by any thread, by several at once.
using PolicyFactory = std::function<std::unique_ptr<Policy>()>;

// Where a policy comes from that is not built in.
struct PolicyOrigin {
  std::string kind;  // "plugin" or "python"
  std::string from;  // the absolute path of the library; the class with its module: "mine.Eager"
  std::string hash;  // of the library's bytes, or of the class's source: 16 digits; may be empty
  bool operator==(const PolicyOrigin&) const = default;
};

// Adds policies of one origin; those of an origin of that kind and place which have the name of one
// of them are replaced. Throws InputError, and adds none, where a name is taken, is no name
// ("auto", "a:b"), or where an option has a name that is none or is every policy's.
void add_policies(const std::vector<PolicyFactory>& factories, const PolicyOrigin& origin);

// All policies: those that are built in, then those that were added, in the order of addition.
std::vector<PolicyInfo> known_policies();

// Of a policy's name or text: where it comes from. Nothing where it is built in, or not known.
std::optional<PolicyOrigin> origin_of_policy(const std::string& text);

// Throws InputError where `text` names a policy that is not known, or one of another kind of
// origin, although `place` ("run DIR", a trace's file) has recorded where it came from. `recorded`:
// what was recorded; nothing where the policy was built in.
void require_policy(const std::string& text, const std::optional<PolicyOrigin>& recorded,
                    const std::string& place);

}  // namespace spillway
