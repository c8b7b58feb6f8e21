// The built-in policies, and their texts.
#include <fmt/format.h>

#include <algorithm>
#include <sstream>

#include "base/errors.hpp"
#include "policies/common/parsed_policy.hpp"
#include "policies/movement/step.hpp"

namespace spillway {

using Factory = std::unique_ptr<Policy> (*)();

#define SPILLWAY_POLICY(make)              \
  [] {                                     \
    extern std::unique_ptr<Policy> make(); \
    return make();                         \
  }

// One line for each policy: the function that its file defines.
constexpr Factory factories[] = {
    SPILLWAY_POLICY(make_resident),               // common/resident.cpp
    SPILLWAY_POLICY(make_zero_offload),           // zero/zero_offload.cpp
    SPILLWAY_POLICY(make_zero_infinity),          // zero/zero_infinity.cpp
    SPILLWAY_POLICY(make_deep_optimizer_states),  // deep_optimizer_states/deep_optimizer_states.cpp
    SPILLWAY_POLICY(make_fuyou),                  // fuyou/fuyou.cpp
    SPILLWAY_POLICY(make_greedysnake),            // greedysnake/greedysnake.cpp
    SPILLWAY_POLICY(make_zero),                   // sharded/zero.cpp
    SPILLWAY_POLICY(make_zero_plus_plus),         // sharded/zero_plus_plus.cpp
    SPILLWAY_POLICY(make_mics),                   // sharded/mics.cpp
    SPILLWAY_POLICY(make_fsdp),                   // sharded/fsdp.cpp
    SPILLWAY_POLICY(make_amsp),                   // sharded/amsp.cpp
    SPILLWAY_POLICY(make_spillway),               // spillway/spillway.cpp
};

namespace {

// Every policy's.
const PolicyOption retention_option = {
    "retention",
    "never",
    "what memory that is left over keeps beyond its use, on the GPU and in host memory. never: "
    "nothing, as in the papers' programs | nearest: what is used soonest | slots(N): that, at most "
    "N tensors of a kind",
    {"never"},
    of_texts(RetentionByKindDomain{})};

PolicyInfo info_of(const Policy& policy) {
  PolicyInfo info = policy.info();
  info.options.push_back(retention_option);
  return info;
}

std::string names_of(const std::vector<PolicyOption>& options) {
  std::string names;
  for (const PolicyOption& option : options)
    names += fmt::format("{}{}", names.empty() ? "" : ", ", option.name);
  return names.empty() ? "it has none" : names;
}

void require_value(const PolicyInfo& info, const PolicyOption& option, const std::string& value) {
  if (option.domain.holds(value)) return;
  throw InputError(fmt::format("policy {}: option {}={} is not {}", info.name, option.name, value,
                               option.domain.values),
                   fmt::format("{}: {}", option.name, option.help));
}

}  // namespace

std::optional<RetentionByKind> retention_of(const ParsedPolicy& parsed) {
  const auto given = parsed.options.find(retention_option.name);
  if (given == parsed.options.end()) return std::nullopt;
  return parse_retention_by_kind(given->second);
}

ParsedPolicy parse_policy(const std::string& text) {
  const std::size_t colon = text.find(':');
  const std::string name = text.substr(0, colon);
  ParsedPolicy parsed;
  std::string known;
  for (const Factory factory : factories) {
    PolicyInfo info = info_of(*factory());
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
    const auto option =
        std::find_if(parsed.info.options.begin(), parsed.info.options.end(), is_key);
    if (option == parsed.info.options.end()) {
      throw InputError(fmt::format("policy {} has no option '{}'", name, key),
                       "its options: " + names_of(parsed.info.options));
    }
    const std::string value = item.substr(equals + 1);
    require_value(parsed.info, *option, value);
    if (!parsed.options.emplace(key, value).second) {
      throw InputError(fmt::format("policy {}: option '{}' is given twice", name, key),
                       "give it once");
    }
  }
  return parsed;
}

std::unique_ptr<Policy> policy_of(const ParsedPolicy& parsed) {
  std::unique_ptr<Policy> policy = parsed.factory();
  for (const auto& [option, value] : parsed.options) policy->set(option, value);
  return policy;
}

std::string policy_text(const PolicyInfo& info, const PolicyOptions& options) {
  std::string text;
  for (const PolicyOption& option : info.options) {
    const auto it = options.find(option.name);
    if (it == options.end() || it->second == option.default_value) continue;
    text += fmt::format("{}{}={}", text.empty() ? ":" : ",", option.name, it->second);
  }
  return info.name + text;
}

void Policy::step(Step& step) const { step.in_order_of_plan(); }

void Policy::declare(PolicyOption about, std::function<bool(const std::string&)> read) {
  info_.options.push_back(std::move(about));
  read_.push_back(std::move(read));
}

void Policy::set(const std::string& option, const std::string& value) {
  for (std::size_t k = 0; k < info_.options.size(); ++k) {
    if (info_.options[k].name != option) continue;
    require_value(info_, info_.options[k], value);
    read_[k](value);
  }
}

std::vector<PolicyInfo> builtin_policies() {
  std::vector<PolicyInfo> all;
  for (const Factory factory : factories) all.push_back(info_of(*factory()));
  return all;
}

std::unique_ptr<Policy> make_policy(const std::string& text) {
  return policy_of(parse_policy(text));
}

bool is_for_several_ranks(const std::string& text) {
  return parse_policy(text).info.for_several_ranks;
}

std::string canonical_policy(const std::string& text) {
  const ParsedPolicy parsed = parse_policy(text);
  return policy_text(parsed.info, parsed.options);
}

std::string with_policy_option(const std::string& text, const std::string& option,
                               const std::string& value) {
  ParsedPolicy parsed = parse_policy(text);
  parsed.options[option] = value;
  policy_of(parsed);  // rejects bad values
  return policy_text(parsed.info, parsed.options);
}

}  // namespace spillway
