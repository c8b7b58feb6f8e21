#include "experiments/plan/recomputation.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/errors.hpp"
#include "experiments/tune/plan_space.hpp"
#include "policies/common/parsed_policy.hpp"

namespace spillway {

namespace {

constexpr const char* option_name = "recompute";

}  // namespace

const char* to_string(Recomputation recomputation) {
  switch (recomputation) {
    case Recomputation::off:
      return "off";
    case Recomputation::needed:
      return "needed";
    case Recomputation::full:
      return "full";
    case Recomputation::some:
      return "some";
  }
  return "";
}

std::optional<Recomputation> parse_recomputation(const std::string& text) {
  for (const Recomputation one : {Recomputation::off, Recomputation::needed, Recomputation::full}) {
    if (text == to_string(one)) return one;
  }
  return {};
}

Recomputation recomputation_of(const Problem& problem, const std::string& policy) {
  const Plan plan = plan_of(problem, policy);
  const auto layers = static_cast<int>(problem.model.layers);
  const auto first = static_cast<int>(problem.model.frozen_layers);
  const SavedMask all = saved_all(problem.model);
  bool saves_all = true, saves_none = true;
  for (int layer = std::min(first, layers - 1); layer < std::max(first + 1, layers - 1); ++layer) {
    const SavedMask mask = plan.saved.saves.at(layer, layers);
    saves_all = saves_all && mask == all;
    saves_none = saves_none && mask == saved_none;
  }
  if (saves_all) return Recomputation::off;
  if (!saves_none) return Recomputation::some;
  return plan.saved.recomputes_output ? Recomputation::full : Recomputation::needed;
}

std::string with_recomputation(const std::string& policy, Recomputation recomputation) {
  const std::string value = to_string(recomputation);
  const ParsedPolicy parsed = parse_policy(policy);
  const std::vector<PolicyOption>& options = parsed.info.options;
  const auto option = std::find_if(options.begin(), options.end(),
                                   [](const PolicyOption& one) { return one.name == option_name; });
  if (option == options.end() || !option->domain.holds(value)) return policy;
  const auto given = parsed.options.find(option_name);
  if (given != parsed.options.end() && given->second != value)
    throw InputError(
        fmt::format("policy {}: all are to have recompute={}", policy, value),
        "leave recompute out of the policy, or ask for " + Setting{option_name, given->second});
  return with_policy_option(policy, option_name, value);
}

}  // namespace spillway
