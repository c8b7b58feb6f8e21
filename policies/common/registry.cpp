// The policies that are known, and their texts.
#include "policies/common/registry.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <mutex>
#include <sstream>

#include "base/errors.hpp"
#include "policies/common/parsed_policy.hpp"
#include "policies/movement/step.hpp"

namespace spillway {

using BuiltinFactory = std::unique_ptr<Policy> (*)();

#define SPILLWAY_POLICY(make)              \
  [] {                                     \
    extern std::unique_ptr<Policy> make(); \
    return make();                         \
  }

// One line for each policy: the function that its file defines.
constexpr BuiltinFactory factories[] = {
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
    SPILLWAY_POLICY(make_gpipe),                  // pipeline/pipeline_policies.cpp
    SPILLWAY_POLICY(make_1f1b),                   // pipeline/pipeline_policies.cpp
    SPILLWAY_POLICY(make_interleaved),            // pipeline/pipeline_policies.cpp
    SPILLWAY_POLICY(make_zb_h1),                  // pipeline/pipeline_policies.cpp
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

struct AddedPolicy {
  PolicyFactory factory;
  PolicyInfo info;  // with every policy's options
  PolicyOrigin origin;
};
using AddedPolicies = std::vector<std::shared_ptr<const AddedPolicy>>;

// What was added is never taken away while somebody uses it: the list is copied, and its entries
// are shared.
class Additions {
 public:
  AddedPolicies all() const {
    const std::lock_guard lock(mutex_);
    return all_;
  }
  // `change` works on a copy, which takes the place of the list unless it throws.
  template <class Change>
  void change(const Change& change) {
    const std::lock_guard lock(mutex_);
    AddedPolicies copy = all_;
    change(copy);
    all_ = std::move(copy);
  }

 private:
  mutable std::mutex mutex_;
  AddedPolicies all_;
};

Additions& additions() {
  static Additions all;
  return all;
}

std::string name_in(const std::string& text) { return text.substr(0, text.find(':')); }

bool is_name(const std::string& name) {
  const auto fits = [](unsigned char sign) {
    return std::isalnum(sign) != 0 || sign == '-' || sign == '_';
  };
  return !name.empty() && std::isalpha(static_cast<unsigned char>(name.front())) != 0 &&
         std::all_of(name.begin(), name.end(), fits);
}

// Of a policy that is to be added.
void require_names(const PolicyInfo& info, const std::string& from) {
  const char* const form = "letters, digits, - and _, and a letter first";
  if (!is_name(info.name) || info.name == "auto")
    throw InputError(fmt::format("{}: '{}' is no name for a policy", from, info.name),
                     info.name == "auto" ? "auto is the fastest of all policies" : form);
  for (auto option = info.options.begin(); option != info.options.end(); ++option) {
    const std::string place = fmt::format("{}: policy {}: option ", from, info.name);
    if (!is_name(option->name))
      throw InputError(fmt::format("{}'{}' is no name for an option", place, option->name), form);
    if (option->name == retention_option.name)
      throw InputError(place + option->name + " is one that every policy has",
                       "give it another name; a plan sets Plan::retention without an option");
    const auto same = [&](const PolicyOption& other) { return other.name == option->name; };
    if (std::any_of(info.options.begin(), option, same))
      throw InputError(fmt::format("{}{} is declared twice", place, option->name),
                       "declare it once");
    if (!option->domain.holds(option->default_value))
      throw InputError(fmt::format("{}{}: its default {} is not {}", place, option->name,
                                   option->default_value, option->domain.values),
                       "give a default that the domain holds");
  }
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

namespace {

// The policy of that name, with its options at their defaults. Throws InputError.
ParsedPolicy find_policy(const std::string& name) {
  std::string known;
  const auto note = [&](const std::string& one) {
    known += fmt::format("{}{}", known.empty() ? "" : ", ", one);
  };
  for (const BuiltinFactory factory : factories) {
    PolicyInfo info = factory()->info();
    if (info.name == name) {
      info.options.push_back(retention_option);
      return {factory, std::move(info), {}};
    }
    note(info.name);
  }
  for (const auto& added : additions().all()) {
    if (added->info.name == name) return {added->factory, added->info, {}};
    note(added->info.name);
  }
  throw InputError(fmt::format("unknown policy '{}'", name),
                   "policies: " + known + "; those of a library: " + Setting{"plugin", "FILE"});
}

}  // namespace

ParsedPolicy parse_policy(const std::string& text) {
  const std::size_t colon = text.find(':');
  const std::string name = name_in(text);
  ParsedPolicy parsed = find_policy(name);
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
  for (const BuiltinFactory factory : factories) all.push_back(info_of(*factory()));
  return all;
}

void add_policies(const std::vector<PolicyFactory>& added, const PolicyOrigin& origin) {
  const std::vector<PolicyInfo> builtin = builtin_policies();
  AddedPolicies fresh;
  for (const PolicyFactory& factory : added) {
    const PolicyInfo declared = factory()->info();
    require_names(declared, origin.from);
    PolicyInfo info = declared;
    info.options.push_back(retention_option);
    fresh.push_back(
        std::make_shared<const AddedPolicy>(AddedPolicy{factory, std::move(info), origin}));
  }
  additions().change([&](AddedPolicies& all) {
    const AddedPolicies before = all;
    for (const auto& one : fresh) {
      const std::string& name = one->info.name;
      const auto has_name = [&](const auto& other) { return other->info.name == name; };
      const auto known = std::find_if(all.begin(), all.end(), has_name);
      const bool is_builtin = std::any_of(builtin.begin(), builtin.end(),
                                          [&](const PolicyInfo& i) { return i.name == name; });
      const bool replaces =
          known != all.end() && std::find(before.begin(), before.end(), *known) != before.end() &&
          (*known)->origin.kind == origin.kind && (*known)->origin.from == origin.from;
      if (is_builtin || (known != all.end() && !replaces))
        throw InputError(
            fmt::format("{}: there is a policy {} already, {}", origin.from, name,
                        is_builtin ? "which is built in" : "from " + (*known)->origin.from),
            "give the policy another name");
      if (replaces)
        *known = one;
      else
        all.push_back(one);
    }
  });
}

std::vector<PolicyInfo> known_policies() {
  std::vector<PolicyInfo> all = builtin_policies();
  for (const auto& added : additions().all()) all.push_back(added->info);
  return all;
}

std::optional<PolicyOrigin> origin_of_policy(const std::string& text) {
  for (const auto& added : additions().all())
    if (added->info.name == name_in(text)) return added->origin;
  return std::nullopt;
}

void require_policy(const std::string& text, const std::optional<PolicyOrigin>& recorded,
                    const std::string& place) {
  if (!recorded) return;
  const std::string name = name_in(text);
  const std::vector<PolicyInfo> known = known_policies();
  if (std::any_of(known.begin(), known.end(),
                  [&](const PolicyInfo& info) { return info.name == name; }))
    return;
  if (recorded->kind == "plugin")
    throw InputError(fmt::format("{}: its policy {} comes from the plugin {}, which is not loaded",
                                 place, name, recorded->from),
                     "load it: " + Setting{"plugin", recorded->from});
  throw InputError(
      fmt::format("{}: its policy {} is the Python class {}, which this program does not know",
                  place, name, recorded->from),
      "Python knows it after spillway.register() of that class: spillway.simulate() predicts it "
      "there, and a result's trace().write() leaves a trace to compare with");
}

std::unique_ptr<Policy> make_policy(const std::string& text) {
  return policy_of(parse_policy(text));
}

bool is_for_several_ranks(const std::string& text) {
  return parse_policy(text).info.for_several_ranks;
}

bool is_candidate(const std::string& text, const Workload& workload) {
  const PolicyInfo info = parse_policy(text).info;
  if (info.for_pipelines) return workload.pipeline > 1;
  return !info.for_several_ranks || workload.ranks > 1;
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
