#include "experiments/tune/seeds.hpp"

#include <algorithm>
#include <cmath>

#include "experiments/tune/plan_space.hpp"
#include "policies/common/registry.hpp"

namespace spillway {

namespace {

// Rounded to the SSD, so that working memory has room.
Share off_gpu(const Share& share) {
  const double host = std::floor(std::clamp(share.host + share.gpu, 0.0, 1.0) * 1000) / 1000;
  return host_and_ssd(1 - host);
}

bool is_on_gpu(const Share& share) { return share.gpu > 0.999; }

// The GPU's fraction as whole layers.
ByLayer<Share> layers_of(const PlanSpace& space, const Share& share) {
  const int on_gpu = static_cast<int>(share.gpu * space.layers + 1e-6);
  const double others = 1 - share.gpu;
  const Share low = others < 1e-6
                        ? Share{.host = 1}
                        : off_gpu({.host = share.host / others, .ssd = share.ssd / others});
  return with_layers_on_gpu(low, space.layers, on_gpu);
}

ByLayer<SavedMask> masks_of(const PlanSpace& space, const PlanShares& shares) {
  double bytes = 0, all = 0;
  for (const auto& [mask, part] : shares.saves) {
    bytes += part * space.saved.bytes(ByLayer<SavedMask>(mask));
    all += part;
  }
  if (all == 0) return space.saved.at(0);
  double low = 0, high = space.saved.most();
  for (int round = 0; round < 20; ++round) {
    const double middle = (low + high) / 2;
    (space.saved.bytes(space.saved.at(middle)) <= bytes / all ? low : high) = middle;
  }
  return space.saved.at(low);
}

Plan places_of(const PlanSpace& space, const BoundCase& one) {
  const PlanShares& shares = one.shares;
  Plan plan;
  const bool is_one_row = one.row >= space.micro_batches;
  plan.order.row = is_one_row ? 0 : one.row;
  plan.order.snake = space.micro_batches > 1 && one.row > 1;
  plan.order.updates = UpdateOrder::within;
  plan.order.delayed = std::round(std::clamp(shares.delayed, 0.0, 1.0) * 1000) / 1000;
  plan.parameters.rest =
      is_on_gpu(shares.parameters) ? Share{.gpu = 1} : off_gpu(shares.parameters);
  plan.optimizer_state.rest = off_gpu(shares.optimizer_state);
  plan.optimizer_state.slots = 2;
  plan.checkpoints.rest = layers_of(space, shares.checkpoints);
  plan.saved.rest = layers_of(space, shares.saved);
  plan.checkpoints.host_ahead = std::max(2, one.row);
  plan.saved.saves = masks_of(space, shares);
  plan.saved.recomputes_output = false;
  if (one.row == 1) plan.saved.slots = 2;
  plan.gradients.on_gpu = true;
  return plan;
}

// The GPU updates what rests there; of the rest one update in so many, if all parameters are there.
void use_gpu_for_updates(const PlanSpace& space, Plan& plan, const PlanShares& shares) {
  const int on_gpu = static_cast<int>(shares.optimizer_state.gpu * space.layers + 1e-6);
  if (on_gpu > 0) {
    const int parameters = std::max(on_gpu, layers_on_gpu(plan.parameters.rest, space.layers));
    plan.parameters.rest = with_layers_on_gpu(plan.parameters.rest, space.layers, parameters);
    plan.optimizer_state.rest = with_layers_on_gpu(plan.optimizer_state.rest, space.layers, on_gpu);
    if (on_gpu == space.layers) plan.optimizer_state.slots = 0;
  } else {
    plan.parameters.rest = Share{.gpu = 1};
    plan.optimizer_state.rest = Share{.host = 1};
    plan.optimizer_state.slots = 0;
    plan.order.updates = UpdateOrder::ascending;
    plan.order.delayed = 0;
    plan.optimizer.own_phase = true;
    plan.gradients.head_waits = Tier::gpu;
    plan.optimizer.gpu_stride = std::max(2, static_cast<int>(std::lround(1 / shares.gpu_updates)));
  }
}

}  // namespace

std::vector<std::string> published_policies() {
  std::vector<std::string> all;
  for (const PolicyInfo& info : known_policies()) {
    if (info.name != "spillway" && !info.for_several_ranks) all.push_back(info.name);
  }
  return all;
}

std::vector<std::string> policy_variants() {
  std::vector<std::string> all;
  for (const char* options :
       {"resident:recompute=needed", "zero-offload:recompute=needed,retention=nearest",
        "zero-infinity:gradients=host,pipeline_read=on,pipeline_write=on,recompute=needed,"
        "retention=nearest",
        "zero-infinity:parameters=host,gradients=host,pipeline_read=on,pipeline_write=on,"
        "recompute=needed",
        "zero-infinity:parameters=gpu,gradients=host,pipeline_read=on,pipeline_write=on,"
        "recompute=needed",
        "deep-optimizer-states:recompute=needed", "deep-optimizer-states:checkpoints=host",
        "fuyou:recompute=needed,retention=nearest", "fuyou:swap=auto",
        "fuyou:swap=auto,retention=nearest",
        "greedysnake:alpha=0,recompute=needed,retention=nearest",
        "greedysnake:alpha=auto,placement=lp,recompute=needed,retention=nearest",
        "greedysnake:recompute=needed,retention=nearest"})
    all.push_back(canonical_policy(options));
  return all;
}

std::vector<Plan> seeds_of(const Problem& problem, const BoundCase& one) {
  const PlanSpace space(problem);
  const auto keeping = [](Plan plan) {
    for_kinds(plan.retention,
              [](const std::string&, Retention& kind) { kind = Retention::nearest(); });
    return plan;
  };
  const Plan plan = places_of(space, one);
  std::vector<Plan> all;
  if (one.shares.gpu_updates > 0.01) {
    Plan on_gpu = plan;
    use_gpu_for_updates(space, on_gpu, one.shares);
    all.push_back(keeping(on_gpu));
    all.push_back(on_gpu);
  }
  all.push_back(keeping(plan));
  all.push_back(plan);
  // The program lets an update cross the drives at any time; a plan's order has it in backward, or
  // in the next forward.
  Plan delaying = keeping(plan);
  delaying.order.delayed = one.shares.delayed > 0.2 ? 0 : 0.3;
  all.push_back(delaying);
  Plan saving_less = keeping(plan);
  saving_less.saved.saves = space.saved.at(0.5 * space.saved.level_of(plan.saved.saves));
  all.push_back(saving_less);
  saving_less.saved.saves = space.saved.at(0);
  all.push_back(saving_less);
  return all;
}

}  // namespace spillway
