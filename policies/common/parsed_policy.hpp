// The text of a policy, read: which policy, and its options.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "policies/common/registry.hpp"
#include "policies/movement/retention.hpp"

namespace spillway {

struct ParsedPolicy {
  PolicyFactory factory;
  PolicyInfo info;
  PolicyOptions options;
};

// Throws InputError for an unknown policy or option, or a bad value.
ParsedPolicy parse_policy(const std::string& text);
// With all options set but `retention`, which is not the policy's.
std::unique_ptr<Policy> policy_of(const ParsedPolicy& parsed);
// What the option says of retention; nothing where it is not given: the policy's plan says it.
std::optional<RetentionByKind> retention_of(const ParsedPolicy& parsed);
// Canonical.
std::string policy_text(const PolicyInfo& info, const PolicyOptions& options);

}  // namespace spillway
