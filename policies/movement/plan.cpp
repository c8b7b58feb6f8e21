// The fields of a plan by name, once: text, domains and hash come from this list.
#include "policies/movement/plan.hpp"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <sstream>

#include "base/errors.hpp"
#include "policies/movement/meshes.hpp"

namespace spillway {

Share Share::host_and_ssd(double on_ssd) {
  constexpr double grid = 1e12;
  return {.host = std::round((1 - on_ssd) * grid) / grid, .ssd = on_ssd};
}

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

// A mask of saved_tensors() in hexadecimal.
struct Mask {
  using Value = SavedMask;
  std::string write(SavedMask mask) const { return fmt::format("{:02x}", mask); }
  bool read(const std::string& text, SavedMask& mask) const {
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), mask, 16);
    return error == std::errc() && end == text.data() + text.size();
  }
  bool holds(SavedMask) const { return true; }
  std::string describe() const {
    return "a mask of tensors, in hexadecimal: 00 to ff, with qk_norm to 1ff";
  }
  std::vector<std::string> samples(int) const { return {"00", "10", "ff"}; }
};

constexpr Elements any_elements{};
constexpr Numbers<int> ahead = count(0, 1'000'000);

// Calls `field(name, value, domain, help)` for every field. PlanType: Plan or const Plan.
template <class PlanType, class Field>
void for_fields(PlanType& plan, const Field& field) {
  field("order.row", plan.order.row, ahead, "micro-batches of a layer in a row; 0: all");
  field("order.snake", plan.order.snake, on_off(), "micro-batches descend in odd layers");
  field("order.updates", plan.order.updates,
        Choice<UpdateOrder>{{"within", UpdateOrder::within},
                            {"ascending", UpdateOrder::ascending},
                            {"descending", UpdateOrder::descending}},
        "a layer is updated within backward, or all after it, from the lowest or the highest on");
  field("order.delayed", plan.order.delayed, LayersOf<Numbers<double>>{fraction},
        "fraction of a layer's update that waits for the next step's forward");
  field("order.waits", plan.order.waits, on_off(),
        "updates after backward have the machine to themselves");
  field("parameters.rest", plan.parameters.rest, LayersOf<Shares>{},
        "where 16-bit parameters rest; on the GPU whole layers");
  field("parameters.host_ahead", plan.parameters.host_ahead, ahead,
        "turns from the read from the SSD to the copy to the GPU");
  field("parameters.gpu_ahead", plan.parameters.gpu_ahead, ahead,
        "turns from the copy to the GPU to the use");
  field("parameters.backward_gpu_ahead", plan.parameters.backward_gpu_ahead,
        WordOr<Numbers<int>>{"gpu_ahead", ahead}, "the same of uses in backward");
  field("parameters.by_tensor", plan.parameters.by_tensor, on_off(),
        "fetched tensor by tensor, as far ahead as these say");
  field("parameters.tensors.bucket", plan.parameters.tensors.bucket, any_elements,
        "elements copied to the GPU ahead of use");
  field("parameters.tensors.most_on_gpu", plan.parameters.tensors.most_on_gpu, any_elements,
        "elements on the GPU beyond which none is copied ahead");
  field("parameters.tensors.reuse_distance", plan.parameters.tensors.reuse_distance, any_elements,
        "a tensor that is used again within so many elements stays on the GPU");
  field("parameters.tensors.most_in_host", plan.parameters.tensors.most_in_host, ahead,
        "tensors read from the SSD that host memory holds at once");
  field("parameters.first_in_host", plan.parameters.first_in_host, any_elements,
        "the first so many elements rest in host memory instead of the SSD");
  field("gradients.on_gpu", plan.gradients.on_gpu, on_off(),
        "sums stay on the GPU between two micro-batches of a layer, else in host memory");
  field("gradients.gpu_ahead", plan.gradients.gpu_ahead, ahead,
        "visits from the copy of a sum to the GPU to its use");
  field("gradients.bucket", plan.gradients.bucket, any_elements,
        "elements of complete gradients that leave the GPU together; 0: a layer's by itself");
  field("gradients.on_ssd", plan.gradients.on_ssd, on_off(),
        "complete gradients rest on the SSD until they are applied");
  field("gradients.head_waits", plan.gradients.head_waits,
        Choice<Tier>{{"gpu", Tier::gpu}, {"host", Tier::host}},
        "where the gradient of the head waits: a part of the embedding's, or its own");
  field("optimizer_state.rest", plan.optimizer_state.rest, LayersOf<Shares>{},
        "where master weights and moments rest; on the GPU whole layers, which are updated there");
  field("optimizer_state.embedding", plan.optimizer_state.embedding, WordOr<Shares>{"rest", {}},
        "the same of the embedding, and of a head of its own");
  field("optimizer_state.ahead", plan.optimizer_state.ahead, ahead,
        "updates from the read from the SSD to the use");
  field("optimizer_state.slots", plan.optimizer_state.slots, ahead,
        "buffers in host memory that updates take in turns; 0: one for each");
  field("optimizer_state.writes_at_once", plan.optimizer_state.writes_at_once, on_off(),
        "the result of an update is written right after it");
  field("optimizer_state.writes_behind", plan.optimizer_state.writes_behind, on_off(),
        "the result of an update is written under the next one");
  field("optimizer_state.gpu_slots", plan.optimizer_state.gpu_slots, count(1, 2),
        "buffers on the GPU for the state of updates there");
  field("checkpoints.rest", plan.checkpoints.rest, LayersOf<Shares>{},
        "where inputs of layers wait for backward; on the GPU those of whole layers");
  field("checkpoints.host_ahead", plan.checkpoints.host_ahead, ahead,
        "visits from the read from the SSD to the copy to the GPU");
  field("checkpoints.gpu_ahead", plan.checkpoints.gpu_ahead, ahead,
        "visits from the copy to the GPU to the use");
  field("checkpoints.margin", plan.checkpoints.margin, ahead,
        "micro-batches at each end of a row whose inputs are never on the SSD");
  field("activation_gradients.on_gpu", plan.activation_gradients.on_gpu, fraction,
        "fraction of the micro-batches whose gradient stays on the GPU between layers");
  field("saved.rest", plan.saved.rest, WordOr<LayersOf<Shares>>{"checkpoints", {}},
        "where what forward saves waits for backward; checkpoints: with them");
  field("saved.saves", plan.saved.saves, LayersOf<Mask>{},
        "tensors inside layers that forward saves for backward");
  field("saved.slots", plan.saved.slots, ahead,
        "GPU buffers that layers take in turns for what they save; 0: one for each");
  field("saved.recomputes_output", plan.saved.recomputes_output, on_off(),
        "where nothing is saved, the whole layer runs again in backward");
  field("shards.parameters", plan.shards.parameters, Meshes{},
        "ranks with a shard each of parameters that rest on the GPU; open: whole on each");
  field("shards.second_parameters", plan.shards.second_parameters, Meshes{},
        "of parameters from forward to backward, a second time; open: none");
  field("shards.gradients", plan.shards.gradients, Meshes{},
        "of gradients, reduced after every micro-batch; open: of whole layers, once complete");
  field("shards.optimizer_state", plan.shards.optimizer_state, Meshes{},
        "of optimizer state; open: all ranks");
  field("shards.all_reduce", plan.shards.all_reduce, on_off(),
        "complete gradients are added up on all ranks, not only where they are applied");
  field("shards.broadcasts", plan.shards.broadcasts, on_off(),
        "updated parameters are spread by a broadcast of each rank's part, not by one gather");
  field("shards.gather_overlaps", plan.shards.gather_overlaps, on_off(),
        "parameters are gathered while layers before compute");
  field("shards.reduce_overlaps", plan.shards.reduce_overlaps, on_off(),
        "gradients are reduced while backward goes on");
  field("shards.spread_overlaps", plan.shards.spread_overlaps, on_off(),
        "updated parameters are spread while the next forward goes on");
  field("optimizer.gpu_stride", plan.optimizer.gpu_stride, ahead,
        "of state in host memory, one update in so many runs on the GPU; 0: none");
  field("optimizer.blocking", plan.optimizer.blocking, on_off(),
        "the GPU waits for the optimizer, and the optimizer for the GPU");
  field("optimizer.early", plan.optimizer.early, on_off(),
        "an update may run before its place in the order, instead of a read of its parameters");
  field("optimizer.own_phase", plan.optimizer.own_phase, on_off(),
        "updates and reads of their state come after backward");
  field("optimizer.group", plan.optimizer.group,
        Choice<UpdateGroup>{{"calls", UpdateGroup::calls},
                            {"shares", UpdateGroup::shares},
                            {"at_most", UpdateGroup::at_most},
                            {"tensors", UpdateGroup::tensors}},
        "what one update covers: a layer's part, shares of it, or so many elements");
  field("optimizer.elements", plan.optimizer.elements, any_elements,
        "elements of one update, with at_most and tensors");
  for_kinds(plan.retention, [&](const std::string& kind, auto& retention) {
    field(("retention." + kind).c_str(), retention, RetentionDomain{},
          "how many stay in memory that is left over");
  });
  const auto any_bytes = Numbers<std::uint64_t>{0, std::numeric_limits<std::uint64_t>::max()};
  field("spare_gpu_bytes", plan.spare_gpu_bytes, any_bytes,
        "GPU memory for what retention keeps; both 0: what is left over");
  field("spare_host_bytes", plan.spare_host_bytes, any_bytes,
        "host memory for what retention keeps");
}

}  // namespace

std::string to_text(const Plan& plan) {
  static const std::vector<PlanField> standard = plan_fields();
  std::string text;
  auto usual = standard.begin();
  for_fields(plan, [&](const char* name, const auto& value, const auto& domain, const char*) {
    const std::string written = domain.write(value);
    if (written != (usual++)->value)
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
    if (set_plan_field(plan, name, value)) continue;
    std::string names;
    for (const PlanField& field : plan_fields()) {
      if (field.name == name) reject(name, value, field.domain.values);
      names += fmt::format("{}{}", names.empty() ? "" : ", ", field.name);
    }
    throw InputError(fmt::format("plan: there is no field '{}'", name), "fields: " + names);
  }
  return plan;
}

bool set_plan_field(Plan& plan, const std::string& name, const std::string& text) {
  bool is_set = false;
  for_fields(plan, [&](const char* known, auto& field, const auto& domain, const char*) {
    if (name == known) is_set = domain.read(text, field);
  });
  return is_set;
}

std::uint64_t hash_of(const Plan& plan) {
  const std::string text = to_text(plan);
  return XXH3_64bits(text.data(), text.size());
}

std::vector<PlanField> plan_fields(const Plan& plan) {
  std::vector<PlanField> all;
  for_fields(plan, [&](const char* name, const auto& value, const auto& domain, const char* help) {
    all.push_back({name, domain.write(value), help, of_texts(domain)});
  });
  return all;
}

bool state_rests_on_gpu(const Plan& plan, int unit, int layers) {
  const Share& rest = plan.optimizer_state.rest.at(std::min(unit, layers - 1), layers);
  return (unit >= layers ? plan.optimizer_state.embedding.value_or(rest) : rest).gpu > 0;
}

void check_plan(const Problem& problem, const Plan& plan) {
  for_fields(plan, [&](const char* name, const auto& value, const auto& domain, const char*) {
    if (!domain.holds(value)) reject(name, domain.write(value), domain.describe());
  });
  const auto layers = static_cast<int>(problem.model.layers);
  const auto require_layers = [&](const char* name, const auto& value, const auto& domain) {
    if (!value.suits(layers))
      reject(name, domain.write(value), fmt::format("values for {} layers, in all", layers));
  };
  require_layers("saved.saves", plan.saved.saves, LayersOf<Mask>{});
  const SavedMask all = saved_all(problem.model);
  if (plan.saved.saves.any([all](SavedMask mask) { return (mask & ~all) != 0; }))
    reject("saved.saves", LayersOf<Mask>{}.write(plan.saved.saves),
           fmt::format("masks of the model's tensors, 00 to {:02x}", all));
  require_layers("order.delayed", plan.order.delayed, LayersOf<Numbers<double>>{fraction});
  require_layers("parameters.rest", plan.parameters.rest, LayersOf<Shares>{});
  require_layers("optimizer_state.rest", plan.optimizer_state.rest, LayersOf<Shares>{});
  require_layers("checkpoints.rest", plan.checkpoints.rest, LayersOf<Shares>{});
  if (plan.saved.rest) require_layers("saved.rest", *plan.saved.rest, LayersOf<Shares>{});
  // A layer's parameters are one buffer on the GPU: whole there, or elsewhere.
  const auto is_cut = [](const Share& share) { return share.gpu != 0 && share.gpu != 1; };
  const auto on_ssd = [](const Share& share) { return share.ssd > 0; };
  const auto not_on_ssd = [](const Share& share) { return share.ssd < 1; };
  const auto not_on_gpu = [](const Share& share) { return share.gpu < 1; };
  const std::optional<Share>& embedding = plan.optimizer_state.embedding;
  const auto require_whole = [&](const char* name, const ByLayer<Share>& rest) {
    if (rest.any(is_cut))
      reject(name, LayersOf<Shares>{}.write(rest), "gpu:1 or nothing on the GPU in a layer");
  };
  require_whole("parameters.rest", plan.parameters.rest);
  require_whole("optimizer_state.rest", plan.optimizer_state.rest);
  require_whole("optimizer_state.embedding", embedding.value_or(Share{.gpu = 1}));
  require_whole("checkpoints.rest", plan.checkpoints.rest);
  require_whole("saved.rest", plan.saved.rest.value_or(Share{.gpu = 1}));
  const bool delays = plan.order.delayed.any([](double delayed) { return delayed > 0; });
  if (plan.gradients.on_ssd &&
      (plan.gradients.bucket == 0 || plan.optimizer_state.slots == 0 || delays ||
       plan.optimizer_state.rest.any(not_on_ssd) || (embedding && not_on_ssd(*embedding)) ||
       !plan.optimizer.own_phase || plan.optimizer.group == UpdateGroup::shares ||
       plan.order.updates != UpdateOrder::ascending ||
       (plan.order.row != 1 && problem.workload.micro_batches() > 1)))
    reject("gradients.on_ssd", "on",
           "off without gradients.bucket, optimizer_state.slots, optimizer_state.rest=ssd:1, "
           "optimizer.own_phase, order.row=1 and order.updates=ascending, or with order.delayed or "
           "optimizer.group=shares");
  const bool state_on_ssd =
      plan.optimizer_state.rest.any(on_ssd) || (embedding && on_ssd(*embedding));
  if (plan.optimizer_state.writes_behind && !plan.optimizer_state.writes_at_once &&
      (plan.optimizer_state.slots > 0 || state_on_ssd))
    reject("optimizer_state.writes_behind", "on",
           "off with optimizer_state.slots or state on the SSD, unless "
           "optimizer_state.writes_at_once is on");
  if (plan.parameters.by_tensor && plan.parameters.rest.runs().size() > 1)
    reject("parameters.rest", LayersOf<Shares>{}.write(plan.parameters.rest),
           "the same in all layers where parameters are fetched tensor by tensor");
  if (plan.parameters.by_tensor && plan.parameters.rest.any(on_ssd) &&
      plan.parameters.tensors.most_in_host == 0)
    reject("parameters.tensors.most_in_host", "0", "at least 1 where parameters rest on the SSD");
  // An update runs where its state and its parameters are, or can be brought.
  bool state_on_gpu = false;
  for (int unit = 0; unit <= layers; ++unit) {
    if (!state_rests_on_gpu(plan, unit, layers)) continue;
    state_on_gpu = true;
    if (unit < layers && plan.parameters.rest.at(unit, layers).gpu < 1)
      reject("optimizer_state.rest", LayersOf<Shares>{}.write(plan.optimizer_state.rest),
             "on the GPU only in layers whose parameters rest there");
  }
  const int stride = plan.optimizer.gpu_stride;
  if (stride > 0 &&
      (!plan.optimizer.own_phase || delays || plan.order.updates == UpdateOrder::within))
    reject("optimizer.gpu_stride", fmt::format("{}", stride),
           "0 unless all updates come after backward, in optimizer.own_phase");
  const auto not_in_host = [](const Share& share) { return share.host < 1; };
  if (stride > 0 &&
      (plan.optimizer_state.rest.any(not_in_host) || (embedding && not_in_host(*embedding))))
    reject("optimizer_state.rest", LayersOf<Shares>{}.write(plan.optimizer_state.rest),
           "host:1 with optimizer.gpu_stride");
  if (stride > 0 && !plan.gradients.on_gpu && problem.workload.micro_batches() > 1)
    reject("gradients.on_gpu", "off", "on with optimizer.gpu_stride");
  if (stride > 0 && plan.gradients.head_waits != Tier::gpu)
    reject("gradients.head_waits", "host", "gpu with optimizer.gpu_stride");
  if (stride > 0 && plan.parameters.rest.any(not_on_gpu))
    reject("parameters.rest", LayersOf<Shares>{}.write(plan.parameters.rest),
           "gpu:1 with optimizer.gpu_stride");
  if (plan.gradients.bucket > 0 && state_on_gpu)
    reject("gradients.bucket", fmt::format("{}", plan.gradients.bucket),
           "0 where optimizer state rests on the GPU");
  if (plan.gradients.on_ssd && state_on_gpu)
    reject("gradients.on_ssd", "on", "off where optimizer state rests on the GPU");
  const int least_slots = std::max(2, plan.checkpoints.gpu_ahead + 1);
  if (plan.saved.slots > 0 && plan.saved.slots < least_slots)
    reject("saved.slots", fmt::format("{}", plan.saved.slots),
           fmt::format("0, or {} at least: what is fetched ahead has one, too", least_slots));
  if (plan.saved.slots > 0 && plan.order.row != 1 && problem.workload.micro_batches() > 1)
    reject("saved.slots", fmt::format("{}", plan.saved.slots), "0 unless order.row is 1");
  if (plan.parameters.by_tensor && !plan.optimizer.early && delays)
    reject("optimizer.early", "off", "on where tensors are fetched one by one and updates delayed");
  const bool by_elements =
      plan.optimizer.group == UpdateGroup::at_most || plan.optimizer.group == UpdateGroup::tensors;
  if (by_elements && plan.optimizer.elements == 0)
    reject("optimizer.elements", "0", "at least 1 where updates are grouped");
}

}  // namespace spillway
