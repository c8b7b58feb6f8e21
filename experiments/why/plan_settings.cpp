#include "experiments/why/plan_settings.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "base/errors.hpp"
#include "base/suggest.hpp"
#include "experiments/tune/plan_space.hpp"
#include "policies/common/parsed_policy.hpp"
#include "policies/spillway/spillway.hpp"

namespace spillway {

namespace {

constexpr const char* micro_batch_name = "micro_batch";

std::string name_of(const std::string& policy) { return policy.substr(0, policy.find(':')); }

const std::string& value_of(const ParsedPolicy& parsed, const PolicyOption& option) {
  const auto given = parsed.options.find(option.name);
  return given == parsed.options.end() ? option.default_value : given->second;
}

}  // namespace

PlanSettings::PlanSettings(const PlanEnd& a, const PlanEnd& b)
    : asked_(a.policy), micro_batch_(a.problem.workload.micro_batch) {
  const std::int64_t to = b.problem.workload.micro_batch;
  if (micro_batch_ != to)
    all_.push_back({micro_batch_name, std::to_string(micro_batch_), std::to_string(to),
                    "sequences per forward and backward pass"});
  policy_ = name_of(a.policy);
  if (policy_ == name_of(b.policy)) {
    add_options(a.policy, b.policy);
  } else {
    policy_ = "spillway";
    by_fields_ = true;
    from_ = plan_of(a.problem, a.settled);
    add_fields(plan_of(b.problem, b.settled));
  }
}

void PlanSettings::add_fields(const Plan& to) {
  const std::vector<PlanField> before = plan_fields(from_), after = plan_fields(to);
  for (std::size_t k = 0; k < before.size(); ++k) {
    if (before[k].value != after[k].value)
      all_.push_back({before[k].name, before[k].value, after[k].value, before[k].help});
  }
}

void PlanSettings::add_options(const std::string& a, const std::string& b) {
  const ParsedPolicy from = parse_policy(a), to = parse_policy(b);
  for (const PolicyOption& option : from.info.options) {
    const std::string &before = value_of(from, option), &after = value_of(to, option);
    if (before != after) all_.push_back({option.name, before, after, option.help});
  }
}

PlanState PlanSettings::with(const Changed& changed) const {
  PlanState state{asked_, micro_batch_};
  Plan plan = from_;
  for (std::size_t k = 0; k < all_.size(); ++k) {
    if (!changed[k]) continue;
    const PlanSetting& one = all_[k];
    if (one.name == micro_batch_name) {
      std::from_chars(one.to.data(), one.to.data() + one.to.size(), state.micro_batch);
    } else if (by_fields_) {
      SPILLWAY_ASSERT(set_plan_field(plan, one.name, one.to), one.name);
    } else {
      state.policy = with_policy_option(state.policy, one.name, one.to);
    }
  }
  if (by_fields_) state.policy = spillway_policy(plan);
  return state;
}

std::vector<std::size_t> PlanSettings::find(const std::vector<std::string>& names) const {
  std::vector<std::string> known;
  for (const PlanSetting& one : all_) known.push_back(one.name);
  std::vector<std::size_t> found;
  for (const std::string& name : names) {
    const auto at =
        static_cast<std::size_t>(std::find(known.begin(), known.end(), name) - known.begin());
    if (at == known.size())
      throw InputError(
          fmt::format("the two plans do not differ in a setting {}", name),
          known.empty() ? std::string("they differ in none") : unknown_name_hint(name, known));
    if (std::find(found.begin(), found.end(), at) != found.end())
      throw InputError(fmt::format("the setting {} is named twice", name), "name it once");
    found.push_back(at);
  }
  return found;
}

}  // namespace spillway
