// The policy interface: one file and one registry line per policy (docs/write-a-policy.md).
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "policies/schedule/program.hpp"

namespace spillway {

class Costs;
struct Plan;
class Step;

struct PolicyOption {
  std::string name;
  std::string default_value;
  std::string help;  // values and meaning
  // Values that take less memory somewhere, the gentlest first: what is tried where a plan does not
  // fit.
  std::vector<std::string> frugal = {};
};

struct PolicyInfo {
  std::string name;
  std::string paper;
  std::string idea;  // one line
  std::vector<PolicyOption> options;
};

using PolicyOptions = std::map<std::string, std::string>;  // name -> value

class Policy {
 public:
  virtual ~Policy() = default;
  virtual PolicyInfo info() const = 0;
  // Throws InputError where the problem is not one this policy can run (e.g. several
  // micro-batches).
  virtual void check(const Problem&) const {}
  // Values for options left at `auto`, from the least use of slow tiers to the most: build_schedule
  // takes the first that fits. Policies without such options have one alternative that sets
  // nothing.
  virtual std::vector<PolicyOptions> placements(const Problem&) const { return {{}}; }
  // Where everything rests, how far ahead it is fetched, what is kept for backward.
  virtual Plan plan(const Problem& problem, const Costs& costs) const = 0;
  // The order of work of one step; unless it is overridden, the plan's (Plan::order).
  virtual void step(Step& step) const;
};

// Policies that are built in, in a stable order.
std::vector<PolicyInfo> builtin_policies();

// "greedysnake:alpha=0.2,snake=off": a fresh policy object.
// Throws InputError for an unknown policy or option (with near names), or a bad value.
std::unique_ptr<Policy> make_policy(const std::string& text);

// The canonical text: defaults left out, options in the order of PolicyInfo.
std::string canonical_policy(const std::string& text);

// `text` with one of its options set anew, canonical.
std::string with_policy_option(const std::string& text, const std::string& option,
                               const std::string& value);

// The schedule of `steps` steps; options left at auto are settled so that it fits, if any
// setting does (the schedule's policy() names them). Does not throw when nothing fits: see
// Schedule::require_fit.
Schedule build_schedule(const Problem& problem, const std::string& policy, int steps);
// The same by a fresh policy object that need not be built in; its placements are not tried.
Schedule build_schedule(const Problem& problem, Policy& policy, int steps);

}  // namespace spillway
