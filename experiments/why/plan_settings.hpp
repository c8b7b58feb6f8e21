// The settings in which two plans differ, and the plans that lie between the two.
//
// Plans of one policy differ in its options. Plans of two policies differ in the fields of a plan
// (policies/movement/plan.hpp), which are the options of the policy `spillway`: every built-in
// policy whose order of work a plan says is a special case of it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "policies/movement/plan.hpp"

namespace spillway {

// One way to train.
struct PlanState {
  std::string policy;
  std::int64_t micro_batch = 1;
  bool operator==(const PlanState&) const = default;
  auto operator<=>(const PlanState&) const = default;
};

// One of the two plans.
struct PlanEnd {
  std::string policy;   // as asked for; options may be left open
  std::string settled;  // with its options settled: Schedule::policy()
  Problem problem;      // of its schedule, micro-batch included
};

struct PlanSetting {
  std::string name;  // "order.row", "alpha", "micro_batch"
  std::string from, to;
  std::string help;  // what it is
};

class PlanSettings {
 public:
  PlanSettings(const PlanEnd& a, const PlanEnd& b);

  // The policy whose options they are.
  const std::string& policy() const { return policy_; }
  // Those that differ: the micro-batch first, then in the order in which the policy declares them.
  const std::vector<PlanSetting>& all() const { return all_; }

  // By index of all().
  using Changed = std::vector<bool>;
  // The plan whose settings are as in b where they are changed, and else as in a. Throws InputError
  // where a value of the one is none beside the values of the other.
  PlanState with(const Changed& changed) const;

  // Indexes of the settings with these names, in this order. Throws InputError, with the names
  // there are, for a name that is none of them or is there twice.
  std::vector<std::size_t> find(const std::vector<std::string>& names) const;

 private:
  void add_fields(const Plan& to);
  void add_options(const std::string& a, const std::string& b);

  std::string policy_;
  bool by_fields_ = false;
  Plan from_;          // by fields
  std::string asked_;  // by options: the policy of a
  std::int64_t micro_batch_ = 1;
  std::vector<PlanSetting> all_;
};

}  // namespace spillway
