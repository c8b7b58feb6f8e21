// The policy interface: one file and one registry line per policy (docs/write-a-policy.md).
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/errors.hpp"
#include "policies/movement/domains.hpp"
#include "policies/schedule/program.hpp"

namespace spillway {

class Costs;
template <class Value>
class Option;
struct Plan;
class Step;

struct PolicyOption {
  std::string name;
  std::string default_value;
  std::string help;  // values and meaning
  // Values that take less memory somewhere, the gentlest first: what is tried where a plan does not
  // fit.
  std::vector<std::string> frugal;
  TextDomain domain;
};

struct PolicyInfo {
  std::string name;
  std::string paper;
  std::string idea;  // one line
  std::vector<PolicyOption> options = {};
  // It says who of several ranks keeps what; with one rank it is policy resident, beside which
  // nobody needs it as a candidate.
  bool for_several_ranks = false;
  // It is an order of a pipeline's stages; with one stage it is another order of policy resident.
  bool for_pipelines = false;
};

using PolicyOptions = std::map<std::string, std::string>;  // name -> value

class Policy {
 public:
  Policy(const Policy&) = delete;
  Policy& operator=(const Policy&) = delete;
  virtual ~Policy() = default;
  // What it is, and its options in the order in which they are declared.
  PolicyInfo info() const { return info_; }
  // Throws InputError for a value outside of the option's domain. Options that the policy does not
  // have are passed over.
  void set(const std::string& option, const std::string& value);
  // Declares an option, as a member of the policy or of a structure that several policies have.
  template <class Domain>
  Option<typename Domain::Value> option(const char* name, const char* default_value,
                                        const Domain& domain, std::vector<std::string> frugal,
                                        const char* help);
  // Declares an option whose value the policy keeps itself: `read` takes a text, and says whether
  // it is in the domain.
  void declare(PolicyOption about, std::function<bool(const std::string&)> read);
  // Declares what PolicyInfo says of it.
  void declare_for_several_ranks() { info_.for_several_ranks = true; }
  void declare_for_pipelines() { info_.for_several_ranks = info_.for_pipelines = true; }
  // Throws InputError where the problem is not one this policy can run (e.g. several
  // micro-batches).
  virtual void check(const Problem&) const {}
  // Values for options left at `auto`, from the least use of slow tiers to the most: build_schedule
  // takes the first that fits. Policies without such options have one alternative that sets
  // nothing.
  virtual std::vector<PolicyOptions> placements(const Problem&) const { return {{}}; }
  // Of a stage of a pipeline: the runs of consecutive layers that it has
  // (policies/model/stages.hpp).
  virtual int chunks() const { return 1; }
  // Where everything rests, how far ahead it is fetched, what is kept for backward.
  virtual Plan plan(const Problem& problem, const Costs& costs) const = 0;
  // The order of work of one step; unless it is overridden, the plan's (Plan::order).
  virtual void step(Step& step) const;

 protected:
  Policy(std::string name, std::string paper, std::string idea)
      : info_{std::move(name), std::move(paper), std::move(idea)} {}

 private:
  template <class Value>
  friend class Option;
  PolicyInfo info_;
  std::vector<std::function<bool(const std::string&)>> read_;  // by option
};

// The value of an option: a member of its policy, declared there and nowhere else:
//   Option<bool> snake_ = option("snake", "on", on_off(), {}, "on: ... | off: ...");
template <class Value>
class Option {
 public:
  Option(const Option&) = delete;
  Option& operator=(const Option&) = delete;
  operator const Value&() const { return value_; }
  const Value* operator->() const { return &value_; }

 private:
  friend class Policy;
  template <class Domain>
  Option(Policy& policy, PolicyOption about, const Domain& domain) {
    SPILLWAY_ASSERT(domain.read(about.default_value, value_), about.name);
    policy.declare(std::move(about),
                   [this, domain](const std::string& text) { return domain.read(text, value_); });
  }
  Value value_{};
};

template <class Domain>
Option<typename Domain::Value> Policy::option(const char* name, const char* default_value,
                                              const Domain& domain, std::vector<std::string> frugal,
                                              const char* help) {
  return {*this, {name, default_value, help, std::move(frugal), of_texts(domain)}, domain};
}

// Policies that are built in, in a stable order.
std::vector<PolicyInfo> builtin_policies();

// Of a policy's text.
bool is_for_several_ranks(const std::string& text);
// Whether a policy is worth a try where nobody asks for it: those of several ranks say who of them
// keeps what, those of pipelines when a stage does what; each is resident, or nearly, without them.
bool is_candidate(const std::string& text, const Workload& workload);

// "greedysnake:alpha=0.2,snake=off": a fresh policy object.
// Throws InputError for an unknown policy or option, or a bad value, with those there are.
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
// Computes the losses of `batches` batches as a training by `training` reads its steps, in the same
// order of work, from its state where that rests between two runs; changes nothing of it. A batch
// is a step of the schedule.
Schedule build_evaluation(const Schedule& training, int batches);
// The same of a policy that need not be built in.
Schedule build_evaluation(const Schedule& training, const Policy& policy, int batches);

}  // namespace spillway
