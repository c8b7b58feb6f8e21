// The fields of a plan by name, once: text, domains and hash come from this list.
#include "policies/movement/plan.hpp"

#include <fmt/format.h>
#include <xxhash.h>

#include <charconv>
#include <cmath>
#include <limits>
#include <sstream>

#include "base/errors.hpp"

namespace spillway {

namespace {

[[noreturn]] void reject(const std::string& name, const std::string& value,
                         const std::string& domain) {
  throw InputError(fmt::format("plan: {}={}", name, value), fmt::format("{} is {}", name, domain));
}

template <class Number>
bool read_number(const std::string& text, Number& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size();
}

std::vector<std::string> split(const std::string& text, char at) {
  std::vector<std::string> parts;
  std::istringstream list(text);
  for (std::string part; std::getline(list, part, at);) parts.push_back(part);
  return parts;
}

// Each domain: how a value is written, read and described. `read` returns whether the text is one.
template <class Number>
struct Range {
  Number least, most;
  std::string write(Number value) const { return fmt::format("{}", value); }
  bool read(const std::string& text, Number& value) const {
    return read_number(text, value) && holds(value);
  }
  bool holds(Number value) const { return value >= least && value <= most; }
  std::string describe() const { return fmt::format("a number from {} to {}", least, most); }
};

template <class Number>
struct OptionalRange {
  Range<Number> range;
  const char* empty;  // how no value is written
  std::string write(const std::optional<Number>& value) const {
    return value ? range.write(*value) : empty;
  }
  bool read(const std::string& text, std::optional<Number>& value) const {
    if (text == empty) {
      value.reset();
      return true;
    }
    Number number{};
    if (!range.read(text, number)) return false;
    value = number;
    return true;
  }
  bool holds(const std::optional<Number>& value) const { return !value || range.holds(*value); }
  std::string describe() const { return fmt::format("{} or {}", empty, range.describe()); }
};

struct OnOff {
  std::string write(bool value) const { return value ? "on" : "off"; }
  bool read(const std::string& text, bool& value) const {
    value = text == "on";
    return value || text == "off";
  }
  bool holds(bool) const { return true; }
  std::string describe() const { return "on or off"; }
};

template <class Enum>
struct Choice {
  std::vector<std::pair<Enum, std::string>> values;
  std::string write(Enum value) const {
    for (const auto& [one, name] : values) {
      if (one == value) return name;
    }
    return "?";
  }
  bool read(const std::string& text, Enum& value) const {
    for (const auto& [one, name] : values) {
      if (name == text) {
        value = one;
        return true;
      }
    }
    return false;
  }
  bool holds(Enum value) const { return write(value) != "?"; }
  std::string describe() const {
    std::string names;
    for (const auto& [one, name] : values)
      names += fmt::format("{}{}", names.empty() ? "" : ", ", name);
    return "one of " + names;
  }
};

struct Shares {
  std::string write(const Share& share) const {
    std::string text;
    const auto add = [&](const char* memory, double fraction) {
      if (fraction > 0) text += fmt::format("{}{}:{}", text.empty() ? "" : "+", memory, fraction);
    };
    add("gpu", share.gpu);
    add("host", share.host);
    add("ssd", share.ssd);
    return text;
  }
  bool read(const std::string& text, Share& share) const {
    share = {};
    for (const std::string& part : split(text, '+')) {
      const std::size_t colon = part.find(':');
      if (colon == std::string::npos) return false;
      const std::string memory = part.substr(0, colon);
      double* fraction = memory == "gpu"    ? &share.gpu
                         : memory == "host" ? &share.host
                         : memory == "ssd"  ? &share.ssd
                                            : nullptr;
      if (!fraction || !read_number(part.substr(colon + 1), *fraction)) return false;
    }
    return holds(share);
  }
  bool holds(const Share& share) const {
    return share.gpu >= 0 && share.host >= 0 && share.ssd >= 0 &&
           std::abs(share.gpu + share.host + share.ssd - 1) < 1e-9;
  }
  std::string describe() const {
    return "fractions by memory that add up to 1, as in host:0.5+ssd:0.5";
  }
};

struct OptionalShares {
  std::string write(const std::optional<Share>& share) const {
    return share ? Shares{}.write(*share) : "rest";
  }
  bool read(const std::string& text, std::optional<Share>& share) const {
    if (text == "rest") {
      share.reset();
      return true;
    }
    share.emplace();
    return Shares{}.read(text, *share);
  }
  bool holds(const std::optional<Share>& share) const { return !share || Shares{}.holds(*share); }
  std::string describe() const { return "rest, or " + Shares{}.describe(); }
};

// By layer, in hexadecimal: "00x39,ff" is 39 layers that save nothing and one that saves
// everything.
struct Masks {
  std::string write(const std::vector<std::uint8_t>& masks) const {
    std::string text;
    for (std::size_t k = 0; k < masks.size();) {
      std::size_t end = k;
      while (end < masks.size() && masks[end] == masks[k]) ++end;
      text += fmt::format("{}{:02x}", text.empty() ? "" : ",", masks[k]);
      if (end - k > 1) text += fmt::format("x{}", end - k);
      k = end;
    }
    return text.empty() ? "none" : text;
  }
  bool read(const std::string& text, std::vector<std::uint8_t>& masks) const {
    masks.clear();
    if (text == "none") return true;
    for (const std::string& part : split(text, ',')) {
      const std::size_t times = part.find('x');
      const std::string mask = part.substr(0, times);
      std::uint8_t value = 0;
      const auto [end, error] = std::from_chars(mask.data(), mask.data() + mask.size(), value, 16);
      std::size_t count = 1;
      constexpr std::size_t most_layers = 1'000'000;
      if (error != std::errc() || end != mask.data() + mask.size()) return false;
      if (times != std::string::npos && !read_number(part.substr(times + 1), count)) return false;
      if (count > most_layers || masks.size() + count > most_layers) return false;
      masks.insert(masks.end(), count, value);
    }
    return !masks.empty();
  }
  bool holds(const std::vector<std::uint8_t>&) const { return true; }
  std::string describe() const {
    return "none, or masks of what layers save, in hexadecimal: 00x39,ff";
  }
};

struct Retentions {
  std::string write(Retention retention) const { return to_text(retention); }
  bool read(const std::string& text, Retention& retention) const {
    const std::optional<Retention> found = parse_retention(text);
    if (found) retention = *found;
    return found.has_value();
  }
  bool holds(Retention) const { return true; }
  std::string describe() const {
    return "never, nearest, or slots(N): at most N tensors stay beyond their use";
  }
};

constexpr auto any_elements = Range<std::uint64_t>{0, 1'000'000'000'000'000};
constexpr auto ahead = Range<int>{0, 1'000'000};
constexpr auto fraction = Range<double>{0, 1};

// Calls `field(name, value, domain)` for every field. PlanType: Plan or const Plan.
template <class PlanType, class Field>
void for_fields(PlanType& plan, const Field& field) {
  field("order.row", plan.order.row, ahead);
  field("order.snake", plan.order.snake, OnOff{});
  field("order.updates_within", plan.order.updates_within, OnOff{});
  field("order.delayed", plan.order.delayed, fraction);
  field("parameters.rest", plan.parameters.rest, Shares{});
  field("parameters.host_ahead", plan.parameters.host_ahead, ahead);
  field("parameters.gpu_ahead", plan.parameters.gpu_ahead, ahead);
  field("parameters.backward_gpu_ahead", plan.parameters.backward_gpu_ahead,
        OptionalRange<int>{ahead, "gpu_ahead"});
  field("parameters.by_tensor", plan.parameters.by_tensor, OnOff{});
  field("parameters.tensors.bucket", plan.parameters.tensors.bucket, any_elements);
  field("parameters.tensors.most_on_gpu", plan.parameters.tensors.most_on_gpu, any_elements);
  field("parameters.tensors.reuse_distance", plan.parameters.tensors.reuse_distance, any_elements);
  field("parameters.tensors.most_in_host", plan.parameters.tensors.most_in_host, ahead);
  field("parameters.first_in_host", plan.parameters.first_in_host, any_elements);
  field("gradients.on_gpu", plan.gradients.on_gpu, OnOff{});
  field("gradients.gpu_ahead", plan.gradients.gpu_ahead, ahead);
  field("gradients.bucket", plan.gradients.bucket, any_elements);
  field("gradients.on_ssd", plan.gradients.on_ssd, OnOff{});
  field("gradients.head_waits", plan.gradients.head_waits,
        Choice<Tier>{{{Tier::gpu, "gpu"}, {Tier::host, "host"}}});
  field("optimizer_state.rest", plan.optimizer_state.rest, Shares{});
  field("optimizer_state.embedding", plan.optimizer_state.embedding, OptionalShares{});
  field("optimizer_state.ahead", plan.optimizer_state.ahead, ahead);
  field("optimizer_state.slots", plan.optimizer_state.slots, ahead);
  field("optimizer_state.writes_at_once", plan.optimizer_state.writes_at_once, OnOff{});
  field("optimizer_state.writes_behind", plan.optimizer_state.writes_behind, OnOff{});
  field("optimizer_state.gpu_slots", plan.optimizer_state.gpu_slots, Range<int>{1, 2});
  field("checkpoints.rest", plan.checkpoints.rest, Shares{});
  field("checkpoints.host_ahead", plan.checkpoints.host_ahead, ahead);
  field("checkpoints.gpu_ahead", plan.checkpoints.gpu_ahead, ahead);
  field("checkpoints.margin", plan.checkpoints.margin, ahead);
  field("activation_gradients.on_gpu", plan.activation_gradients.on_gpu, fraction);
  field("saved.saves", plan.saved.saves, Masks{});
  field("saved.slots", plan.saved.slots, ahead);
  field("saved.recomputes_output", plan.saved.recomputes_output, OnOff{});
  field("optimizer.gpu_stride", plan.optimizer.gpu_stride, ahead);
  field("optimizer.blocking", plan.optimizer.blocking, OnOff{});
  field("optimizer.early", plan.optimizer.early, OnOff{});
  field("optimizer.own_phase", plan.optimizer.own_phase, OnOff{});
  field("optimizer.group", plan.optimizer.group,
        Choice<UpdateGroup>{{{UpdateGroup::calls, "calls"},
                             {UpdateGroup::at_most, "at_most"},
                             {UpdateGroup::tensors, "tensors"}}});
  field("optimizer.elements", plan.optimizer.elements, any_elements);
  for_kinds(plan.retention, [&](const std::string& kind, auto& retention) {
    field(("retention." + kind).c_str(), retention, Retentions{});
  });
  const auto any_bytes = Range<std::uint64_t>{0, std::numeric_limits<std::uint64_t>::max()};
  field("spare_gpu_bytes", plan.spare_gpu_bytes, any_bytes);
  field("spare_host_bytes", plan.spare_host_bytes, any_bytes);
}

}  // namespace

std::string to_text(const Plan& plan) {
  std::string text;
  std::vector<std::string> standard;
  const Plan own;
  for_fields(own, [&](const char*, const auto& value, const auto& domain) {
    standard.push_back(domain.write(value));
  });
  std::size_t k = 0;
  for_fields(plan, [&](const char* name, const auto& value, const auto& domain) {
    const std::string written = domain.write(value);
    if (written != standard[k++])
      text += fmt::format("{}{}={}", text.empty() ? "" : " ", name, written);
  });
  return text;
}

Plan parse_plan(const std::string& text) {
  Plan plan;
  for (const std::string& item : split(text, ' ')) {
    if (item.empty()) continue;
    const std::size_t equals = item.find('=');
    const std::string name = item.substr(0, equals);
    const std::string value = equals == std::string::npos ? "" : item.substr(equals + 1);
    bool found = false;
    std::string names;
    for_fields(plan, [&](const char* known, auto& field, const auto& domain) {
      names += fmt::format("{}{}", names.empty() ? "" : ", ", known);
      if (name != known) return;
      found = true;
      if (!domain.read(value, field)) reject(name, value, domain.describe());
    });
    if (!found)
      throw InputError(fmt::format("plan: there is no field '{}'", name), "fields: " + names);
  }
  return plan;
}

std::uint64_t hash_of(const Plan& plan) {
  const std::string text = to_text(plan);
  return XXH3_64bits(text.data(), text.size());
}

std::vector<std::pair<std::string, std::string>> plan_fields() {
  std::vector<std::pair<std::string, std::string>> all;
  const Plan plan;
  for_fields(plan, [&](const char* name, const auto&, const auto& domain) {
    all.emplace_back(name, domain.describe());
  });
  return all;
}

void check_plan(const Problem& problem, const Plan& plan) {
  for_fields(plan, [&](const char* name, const auto& value, const auto& domain) {
    if (!domain.holds(value)) reject(name, domain.write(value), domain.describe());
  });
  const auto layers = static_cast<std::size_t>(problem.model.layers);
  if (!plan.saved.saves.empty() && plan.saved.saves.size() != layers)
    reject("saved.saves", Masks{}.write(plan.saved.saves),
           fmt::format("none, or a mask for each of {} layers", layers));
  // A layer's parameters are one buffer on the GPU: whole there, or elsewhere.
  for (const double gpu : {plan.parameters.rest.gpu, plan.checkpoints.rest.gpu}) {
    if (gpu != 0 && gpu != 1)
      reject("rest", fmt::format("gpu:{}", gpu), "all on the GPU or nothing, for this tensor");
  }
  if (plan.gradients.on_ssd && (plan.gradients.bucket == 0 || plan.optimizer_state.slots == 0))
    reject("gradients.on_ssd", "on", "off without gradients.bucket and optimizer_state.slots");
  if (plan.parameters.by_tensor && plan.parameters.rest.ssd > 0 &&
      plan.parameters.tensors.most_in_host == 0)
    reject("parameters.tensors.most_in_host", "0", "at least 1 where parameters rest on the SSD");
  // An update runs where its state and its parameters are, or can be brought.
  const double state_on_gpu = plan.optimizer_state.rest.gpu;
  const bool all_on_gpu = plan.optimizer.gpu_stride == 1;
  if (state_on_gpu != (all_on_gpu ? 1 : 0))
    reject("optimizer_state.rest", Shares{}.write(plan.optimizer_state.rest),
           "gpu:1 where optimizer.gpu_stride is 1, else nothing of it on the GPU");
  if (plan.optimizer.gpu_stride > 0 && plan.parameters.rest.gpu != 1)
    reject("parameters.rest", Shares{}.write(plan.parameters.rest),
           "gpu:1 where some updates run on the GPU");
  if (plan.optimizer.group != UpdateGroup::calls && plan.optimizer.elements == 0)
    reject("optimizer.elements", "0", "at least 1 where updates are grouped");
}

}  // namespace spillway
