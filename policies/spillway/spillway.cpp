// spillway: any plan. Its options are the fields of a plan (movement/plan.hpp), so that what a
// search over plans finds has a name that every command takes.
//
// By itself, without a search, it is vertical scheduling with as little on the SSD as fits and,
// where all of it there is not enough, what takes less host memory.
#include "policies/spillway/spillway.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <set>

#include "policies/common/least_on_ssd.hpp"
#include "policies/common/policy.hpp"

namespace spillway {

namespace {

// Retention is an option of every policy.
constexpr const char* retention_of = "retention.";
bool is_option(const PlanField& field) { return field.name.rfind(retention_of, 0) != 0; }

constexpr const char* automatic = "auto";
constexpr OpenShare open_shares[] = {
    {"optimizer_state.rest", 100}, {"checkpoints.rest", 20}, {"parameters.rest", 50}};
bool is_open(const std::string& name) {
  for (const OpenShare& share : open_shares) {
    if (name == share.option) return true;
  }
  return false;
}

// What options are that are not given.
Plan standard_plan() {
  Plan plan;
  plan.order.row = 0;
  plan.order.updates = UpdateOrder::within;
  plan.order.delayed = 0.25;
  plan.optimizer_state.slots = 2;
  plan.checkpoints.host_ahead = 8;
  plan.saved.saves = ByLayer<SavedMask>::but_last(saved_none, saved_of_every_model);
  return plan;
}

class Spillway : public Policy {
 public:
  Spillway()
      : Policy("spillway", "Spillway",
               "any plan, field by field, with what is left open as little on the SSD as fits; "
               "where all "
               "three places are, in still less host memory if that does not do") {
    for (const PlanField& field : plan_fields(plan_)) {
      if (is_option(field)) add(field);
    }
  }

  std::vector<PolicyOptions> placements(const Problem& problem) const override {
    const std::string state = "optimizer_state.rest", parameters = "parameters.rest";
    PolicyOptions fixed;
    // Updates on the GPU, and those that write under the next one, take state from host memory.
    const auto& how = plan_.optimizer_state;
    const bool in_host =
        plan_.optimizer.gpu_stride > 0 || (how.writes_behind && !how.writes_at_once);
    if (in_host && open_.at(state)) fixed[state] = "host:1";
    // Tensors are read from the SSD into host memory, if there is any for them.
    if (plan_.parameters.by_tensor && plan_.parameters.tensors.most_in_host == 0 &&
        open_.at(parameters))
      fixed[parameters] = "host:1";
    std::vector<OpenShare> open;
    for (const OpenShare& share : open_shares) {
      if (open_.at(share.option) && fixed.count(share.option) == 0) open.push_back(share);
    }
    // What is most and is only read goes to the SSD first, what is written goes there last.
    if (problem.model.has_adapters()) std::reverse(open.begin(), open.end());
    std::vector<PolicyOptions> all = rising_on_ssd(open, [](double on_ssd) {
      if (on_ssd == 0) return std::string("host:1");
      if (on_ssd == 1) return std::string("ssd:1");
      return fmt::format("host:{:g}+ssd:{:g}", 1 - on_ssd, on_ssd);
    });
    // A plan whose places are given is that plan.
    const bool all_open = std::all_of(std::begin(open_shares), std::end(open_shares),
                                      [&](const OpenShare& one) { return open_.at(one.option); });
    if (all_open) add_frugal(all, problem);
    for (PolicyOptions& one : all) one.insert(fixed.begin(), fixed.end());
    return all;
  }

  Plan plan(const Problem&, const Costs&) const override { return plan_; }

 private:
  // Where not even all of it on the SSD leaves room: gradients do not wait in host memory for the
  // next step, then little is fetched ahead and updates are in small parts. What is given stays,
  // unless that is the default, which no policy's text tells from what is not given.
  void add_frugal(std::vector<PolicyOptions>& all, const Problem& problem) const {
    if (problem.machine.ssd.capacity == 0) all.resize(1);  // the others cannot be
    PolicyOptions last = all.back();
    const auto add = [&](const PolicyOptions& options) {
      const std::size_t before = last.size();
      for (const auto& [name, value] : options) {
        if (given_.count(name) == 0) last[name] = value;
      }
      if (last.size() > before) all.push_back(last);
    };
    add({{"order.delayed", "0"}});
    if (plan_.optimizer.gpu_stride > 0) return;
    const std::int64_t parts = 16;
    PolicyOptions options = {{"parameters.host_ahead", "0"},
                             {"checkpoints.host_ahead", "1"},
                             {"checkpoints.margin", "0"}};
    if (given_.count("optimizer.group") == 0 && given_.count("optimizer.elements") == 0) {
      options["optimizer.group"] = "at_most";
      options["optimizer.elements"] =
          std::to_string(std::max<std::int64_t>(1, unit_elements(problem.model, 0) / parts));
    }
    add(options);
  }

  void add(const PlanField& field) {
    const std::string name = field.name;
    PolicyOption about{name, field.value, field.help, {}, field.domain};
    const bool may_be_open = is_open(name);
    if (may_be_open) {
      about.default_value = automatic;
      about.domain.values += fmt::format(", or {}: as little on the SSD as fits", automatic);
      about.domain.holds = [holds = field.domain.holds](const std::string& text) {
        return text == automatic || holds(text);
      };
      open_[name] = true;
    }
    declare(std::move(about), [this, name, may_be_open](const std::string& text) {
      given_.insert(name);
      const bool opens = may_be_open && text == automatic;
      if (may_be_open) open_[name] = opens;
      return opens || set_plan_field(plan_, name, text);
    });
  }

  Plan plan_ = standard_plan();
  std::map<std::string, bool> open_;  // shares: whether they are left open
  std::set<std::string> given_;
};

}  // namespace

std::string spillway_policy(const Plan& plan) {
  std::string text = "spillway:";
  const RetentionByKind& retention = plan.retention;
  for (const PlanField& field : plan_fields(plan)) {
    if (is_option(field)) text += fmt::format("{}={},", field.name, field.value);
  }
  std::string kept;
  bool alike = true;
  for_kinds(retention, [&](const char* kind, Retention one) {
    alike = alike && one == retention.parameters;
    if (one != Retention::never())
      kept += fmt::format("{}{}:{}", kept.empty() ? "" : "+", kind, to_text(one));
  });
  if (alike) kept = to_text(retention.parameters);
  return canonical_policy(text + "retention=" + kept);
}

std::unique_ptr<Policy> make_spillway() { return std::make_unique<Spillway>(); }

}  // namespace spillway
