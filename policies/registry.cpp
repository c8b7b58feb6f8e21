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

constexpr std::array<Factory, 5> factories = {make_resident, make_zero_offload, make_zero_infinity,
                                              make_fuyou, make_greedysnake};

struct Parsed {
  Factory factory = nullptr;
  PolicyInfo info;
  PolicyOptions options;
};

std::string names_of(const std::vector<PolicyOption>& options) {
  std::string names;
  for (const PolicyOption& option : options)
    names += fmt::format("{}{}", names.empty() ? "" : ", ", option.name);
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
  if (!parsed.factory)
    throw InputError(fmt::format("unknown policy '{}'", name), "policies: " + known);
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
      throw InputError(fmt::format("policy {}: option '{}' is given twice", name, key),
                       "give it once");
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

bool fits(const Schedule& schedule, Tier tier) {
  return schedule.use(tier).peak_bytes <= schedule.use(tier).capacity_bytes;
}

Schedule build(const Problem& problem, const Parsed& parsed, int steps) {
  problem.validate();
  // A schedule lists every task of every micro-batch: say so before it takes all memory.
  constexpr std::int64_t most_visits = 2'000'000;
  const std::int64_t visits = (problem.model.layers + 2) * problem.workload.micro_batches() * steps;
  if (visits > most_visits) {
    throw InputError(
        fmt::format("{} micro-batches of {} through {} layers in {} steps make too long a schedule",
                    problem.workload.micro_batches(), problem.workload.micro_batch,
                    problem.model.layers, steps),
        fmt::format("a larger --micro-batch: {} or more",
                    problem.workload.batch * (problem.model.layers + 2) * steps / most_visits + 1));
  }
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
  const std::size_t last = alternatives.size() - 1;
  // A trial of two steps and the epilogue is close to the peaks of longer schedules.
  const auto trial = [&](std::size_t k) { return build(problem, with(k), std::min(steps, 2)); };
  // The first alternative whose use of `tiers` fits; the last one if none does. From one to the
  // next fewer bytes are live in memory and more on the ssd, so that bisection finds the first
  // whose live bytes fit (if the ssd is too small for it, it is for all that come after). Gaps
  // between buffers come on top, more of them in one alternative than in another: go on from there
  // until all fits.
  const auto first_that_fits = [&](std::initializer_list<Tier> tiers) {
    const auto all = [&](const Schedule& one, std::uint64_t TierUse::*bytes) {
      return std::all_of(tiers.begin(), tiers.end(), [&](Tier tier) {
        return one.use(tier).*bytes <= one.use(tier).capacity_bytes;
      });
    };
    std::size_t from = 0, to = last;
    while (from < to) {
      const std::size_t middle = (from + to) / 2;
      if (all(trial(middle), &TierUse::live_peak_bytes)) {
        to = middle;
      } else {
        from = middle + 1;
      }
    }
    while (from < last && !all(trial(from), &TierUse::peak_bytes)) ++from;
    return from;
  };
  std::size_t chosen = first_that_fits({Tier::gpu, Tier::host});
  Schedule schedule = build(problem, with(chosen), steps);
  while (chosen < last && !(fits(schedule, Tier::gpu) && fits(schedule, Tier::host))) {
    schedule = build(problem, with(++chosen), steps);
  }
  if (last > 0 && !fits(schedule, Tier::gpu)) {
    // No alternative fits the GPU: no reason to use more of the ssd than host memory asks for.
    Schedule other = build(problem, with(first_that_fits({Tier::host})), steps);
    if (other.use(Tier::gpu).peak_bytes <= schedule.use(Tier::gpu).peak_bytes)
      schedule = std::move(other);
  }
  return schedule;
}

}  // namespace spillway
