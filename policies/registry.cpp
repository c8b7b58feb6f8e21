// The built-in policies: one line each.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <sstream>

#include "base/errors.hpp"
#include "policies/builtin.hpp"
#include "policies/policy.hpp"

namespace spillway {

namespace {

using Factory = std::unique_ptr<Policy> (*)(const PolicyOptions&);

constexpr std::array<Factory, 5> factories = {make_resident, make_zero_offload, make_zero_infinity, make_fuyou,
                                              make_greedysnake};

struct Parsed {
  Factory factory = nullptr;
  PolicyInfo info;
  PolicyOptions options;
};

std::string names_of(const std::vector<PolicyOption>& options) {
  std::string names;
  for (const PolicyOption& option : options) names += fmt::format("{}{}", names.empty() ? "" : ", ", option.name);
  return names.empty() ? "it has none" : names;
}

Parsed parse(const std::string& text) {
  const std::size_t colon = text.find(':');
  const std::string name = text.substr(0, colon);
  Parsed parsed;
  std::string known;
  for (const Factory factory : factories) {
    PolicyInfo info = factory({})->info();
    known += fmt::format("{}{}", known.empty() ? "" : ", ", info.name);
    if (info.name == name) {
      parsed.factory = factory;
      parsed.info = std::move(info);
    }
  }
  if (!parsed.factory) throw InputError(fmt::format("unknown policy '{}'", name), "policies: " + known);
  if (colon == std::string::npos) return parsed;
  std::istringstream list(text.substr(colon + 1));
  for (std::string item; std::getline(list, item, ',');) {
    const std::size_t equals = item.find('=');
    if (equals == std::string::npos || equals == 0) {
      throw InputError(fmt::format("policy {}: '{}' is not OPTION=VALUE", name, item),
                       "example: greedysnake:alpha=0.2,snake=off");
    }
    const std::string key = item.substr(0, equals);
    const auto is_key = [&](const PolicyOption& option) { return option.name == key; };
    if (std::none_of(parsed.info.options.begin(), parsed.info.options.end(), is_key)) {
      throw InputError(fmt::format("policy {} has no option '{}'", name, key),
                       "its options: " + names_of(parsed.info.options));
    }
    if (!parsed.options.emplace(key, item.substr(equals + 1)).second) {
      throw InputError(fmt::format("policy {}: option '{}' is given twice", name, key), "give it once");
    }
  }
  return parsed;
}

std::string to_text(const PolicyInfo& info, const PolicyOptions& options) {
  std::string text;
  for (const PolicyOption& option : info.options) {
    const auto it = options.find(option.name);
    if (it == options.end() || it->second == option.default_value) continue;
    text += fmt::format("{}{}={}", text.empty() ? ":" : ",", option.name, it->second);
  }
  return info.name + text;
}

Schedule build(const Problem& problem, const Parsed& parsed, int steps) {
  const std::unique_ptr<Policy> policy = parsed.factory(parsed.options);
  policy->check(problem);
  Program program(problem);
  policy->setup(program);
  for (int step = 0; step < steps; ++step) policy->emit_step(program, step);
  program.at(steps, Phase::epilogue);
  policy->emit_epilogue(program);
  return std::move(program).finish(to_text(parsed.info, parsed.options), steps);
}

}  // namespace

std::vector<PolicyInfo> builtin_policies() {
  std::vector<PolicyInfo> all;
  for (const Factory factory : factories) all.push_back(factory({})->info());
  return all;
}

std::unique_ptr<Policy> make_policy(const std::string& text) {
  const Parsed parsed = parse(text);
  return parsed.factory(parsed.options);
}

std::string canonical_policy(const std::string& text) {
  const Parsed parsed = parse(text);
  parsed.factory(parsed.options);  // rejects bad values
  return to_text(parsed.info, parsed.options);
}

Schedule build_schedule(const Problem& problem, const std::string& policy, int steps) {
  const Parsed parsed = parse(policy);
  const std::vector<PolicyOptions> alternatives = parsed.factory(parsed.options)->placements();
  const auto with = [&](std::size_t k) {
    Parsed one = parsed;
    for (const auto& [key, value] : alternatives[k]) one.options[key] = value;
    return one;
  };
  // Alternatives use less and less of the scarce tiers: the first that fits is found by bisection. Two steps
  // and the epilogue reach every tier's peak.
  const int trial_steps = std::min(steps, 2);
  std::size_t from = 0, to = alternatives.size() - 1;
  while (from < to) {
    const std::size_t middle = (from + to) / 2;
    if (build(problem, with(middle), trial_steps).fits()) {
      to = middle;
    } else {
      from = middle + 1;
    }
  }
  Schedule schedule = build(problem, with(from), steps);
  // Later steps may be laid out a little differently; go on only if some alternative is known to fit.
  if (!schedule.fits() && from < alternatives.size() - 1 &&
      build(problem, with(alternatives.size() - 1), trial_steps).fits()) {
    while (!schedule.fits() && from + 1 < alternatives.size()) schedule = build(problem, with(++from), steps);
  }
  return schedule;
}

}  // namespace spillway
