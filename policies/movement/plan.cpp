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

std::vector<std::string> split(const std::string& text, char at) {
  std::vector<std::string> parts;
  std::istringstream list(text);
  for (std::string part; std::getline(list, part, at);) parts.push_back(part);
  return parts;
}

struct Shares {
  using Value = Share;
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
  std::vector<std::string> samples(int) const {
    return {"gpu:1", "host:1", "ssd:1", "host:0.25+ssd:0.75"};
  }
};

// By layer, in hexadecimal: "00x39,ff" is 39 layers that save nothing and one that saves
// everything.
struct Masks {
  using Value = std::vector<std::uint8_t>;
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
  std::vector<std::string> samples(int) const { return {"none", "ff", "00x39,ff"}; }
};

constexpr Elements any_elements{};
constexpr Numbers<int> ahead = count(0, 1'000'000);

// Calls `field(name, value, domain)` for every field. PlanType: Plan or const Plan.
template <class PlanType, class Field>
void for_fields(PlanType& plan, const Field& field) {
  field("order.row", plan.order.row, ahead);
  field("order.snake", plan.order.snake, on_off());
  field("order.updates_within", plan.order.updates_within, on_off());
  field("order.delayed", plan.order.delayed, fraction);
  field("parameters.rest", plan.parameters.rest, Shares{});
  field("parameters.host_ahead", plan.parameters.host_ahead, ahead);
  field("parameters.gpu_ahead", plan.parameters.gpu_ahead, ahead);
  field("parameters.backward_gpu_ahead", plan.parameters.backward_gpu_ahead,
        WordOr<Numbers<int>>{"gpu_ahead", ahead});
  field("parameters.by_tensor", plan.parameters.by_tensor, on_off());
  field("parameters.tensors.bucket", plan.parameters.tensors.bucket, any_elements);
  field("parameters.tensors.most_on_gpu", plan.parameters.tensors.most_on_gpu, any_elements);
  field("parameters.tensors.reuse_distance", plan.parameters.tensors.reuse_distance, any_elements);
  field("parameters.tensors.most_in_host", plan.parameters.tensors.most_in_host, ahead);
  field("parameters.first_in_host", plan.parameters.first_in_host, any_elements);
  field("gradients.on_gpu", plan.gradients.on_gpu, on_off());
  field("gradients.gpu_ahead", plan.gradients.gpu_ahead, ahead);
  field("gradients.bucket", plan.gradients.bucket, any_elements);
  field("gradients.on_ssd", plan.gradients.on_ssd, on_off());
  field("gradients.head_waits", plan.gradients.head_waits,
        Choice<Tier>{{"gpu", Tier::gpu}, {"host", Tier::host}});
  field("optimizer_state.rest", plan.optimizer_state.rest, Shares{});
  field("optimizer_state.embedding", plan.optimizer_state.embedding, WordOr<Shares>{"rest", {}});
  field("optimizer_state.ahead", plan.optimizer_state.ahead, ahead);
  field("optimizer_state.slots", plan.optimizer_state.slots, ahead);
  field("optimizer_state.writes_at_once", plan.optimizer_state.writes_at_once, on_off());
  field("optimizer_state.writes_behind", plan.optimizer_state.writes_behind, on_off());
  field("optimizer_state.gpu_slots", plan.optimizer_state.gpu_slots, count(1, 2));
  field("checkpoints.rest", plan.checkpoints.rest, Shares{});
  field("checkpoints.host_ahead", plan.checkpoints.host_ahead, ahead);
  field("checkpoints.gpu_ahead", plan.checkpoints.gpu_ahead, ahead);
  field("checkpoints.margin", plan.checkpoints.margin, ahead);
  field("activation_gradients.on_gpu", plan.activation_gradients.on_gpu, fraction);
  field("saved.saves", plan.saved.saves, Masks{});
  field("saved.slots", plan.saved.slots, ahead);
  field("saved.recomputes_output", plan.saved.recomputes_output, on_off());
  field("optimizer.gpu_stride", plan.optimizer.gpu_stride, ahead);
  field("optimizer.blocking", plan.optimizer.blocking, on_off());
  field("optimizer.early", plan.optimizer.early, on_off());
  field("optimizer.own_phase", plan.optimizer.own_phase, on_off());
  field("optimizer.group", plan.optimizer.group,
        Choice<UpdateGroup>{{"calls", UpdateGroup::calls},
                            {"shares", UpdateGroup::shares},
                            {"at_most", UpdateGroup::at_most},
                            {"tensors", UpdateGroup::tensors}});
  field("optimizer.elements", plan.optimizer.elements, any_elements);
  for_kinds(plan.retention, [&](const std::string& kind, auto& retention) {
    field(("retention." + kind).c_str(), retention, RetentionDomain{});
  });
  const auto any_bytes = Numbers<std::uint64_t>{0, std::numeric_limits<std::uint64_t>::max()};
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

std::vector<PlanField> plan_fields() {
  std::vector<PlanField> all;
  const Plan plan;
  for_fields(plan, [&](const char* name, const auto&, const auto& domain) {
    all.push_back({name, of_texts(domain)});
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
  if (plan.gradients.bucket > 0 && all_on_gpu)
    reject("gradients.bucket", fmt::format("{}", plan.gradients.bucket),
           "0 where all updates run on the GPU");
  if (plan.parameters.by_tensor && plan.order.delayed > 0 && !plan.optimizer.early)
    reject("optimizer.early", "off", "on where tensors are fetched one by one and updates delayed");
  if (plan.optimizer.gpu_stride > 0 && plan.parameters.rest.gpu != 1)
    reject("parameters.rest", Shares{}.write(plan.parameters.rest),
           "gpu:1 where some updates run on the GPU");
  const bool by_elements =
      plan.optimizer.group == UpdateGroup::at_most || plan.optimizer.group == UpdateGroup::tensors;
  if (by_elements && plan.optimizer.elements == 0)
    reject("optimizer.elements", "0", "at least 1 where updates are grouped");
}

}  // namespace spillway
