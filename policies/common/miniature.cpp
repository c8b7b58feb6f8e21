#include "policies/common/miniature.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "policies/framework/framework.hpp"

namespace spillway {

namespace {

constexpr int most_period = 12;
// Layers that every miniature has.
constexpr std::int64_t fewest = 6;
constexpr int most_alike = 4;

// Whether a plan for a few layers has the same value in all but a few at the ends.
template <class T>
bool repeats(const ByLayer<T>& value) {
  return value.suits(most_alike);
}

// Whether visits to a layer follow each other.
bool has_rows(const OrderOfWork& work) {
  for (std::size_t v = 1; v < work.visits.size(); ++v) {
    const Visit &one = work.visits[v - 1], &next = work.visits[v];
    if (one.layer == next.layer && one.kind == next.kind && one.step == next.step) return true;
  }
  return false;
}

}  // namespace

std::optional<int> layer_period(const Plan& plan, const OrderOfWork& work) {
  const auto is_shared = [](const Share& share) { return share.ssd > 0 && share.ssd < 1; };
  const bool shares_layers =
      plan.checkpoints.rest.any(is_shared) || (plan.saved.rest && plan.saved.rest->any(is_shared));
  const bool by_elements =
      plan.optimizer.group == UpdateGroup::at_most || plan.optimizer.group == UpdateGroup::tensors;
  if (plan.retention.keeps_any() || plan.spare_gpu_bytes > 0 || plan.spare_host_bytes > 0 ||
      plan.parameters.by_tensor || plan.parameters.first_in_host > 0 || plan.gradients.bucket > 0 ||
      by_elements || !repeats(plan.saved.saves) || !repeats(plan.order.delayed) ||
      !repeats(plan.parameters.rest) || !repeats(plan.optimizer_state.rest) ||
      !repeats(plan.checkpoints.rest) || (plan.saved.rest && !repeats(*plan.saved.rest)) ||
      (shares_layers && !has_rows(work)))
    return std::nullopt;
  int period = 2;  // orders that turn at every layer
  const auto repeats_after = [&](int layers) { period = std::lcm(period, std::max(1, layers)); };
  repeats_after(plan.optimizer_state.slots);
  repeats_after(plan.saved.slots);
  repeats_after(plan.optimizer.gpu_stride);
  if (plan.optimizer.gpu_stride > 0) repeats_after(plan.optimizer_state.gpu_slots);
  if (period > most_period) return std::nullopt;
  return period;
}

std::int64_t miniature_layers(std::int64_t layers, int period, std::int64_t at_least) {
  return at_least + (layers - at_least) % period;
}

namespace {

Problem of_layers(Problem problem, std::int64_t layers) {
  problem.model.layers = layers;
  return problem;
}

// What the layers beyond the first `few` take of memory, where each takes as much as those between
// `one` and `two` layers, whose schedules have these live bytes.
struct LiveLine {
  std::int64_t one = 0, two = 0;
  TierBytes of_one{}, of_two{};
  TierBytes beyond(std::int64_t few, std::int64_t layers) const {
    TierBytes bytes{};
    for (std::size_t tier = 0; tier < bytes.size(); ++tier)
      bytes[tier] = (std::max(of_one[tier], of_two[tier]) - of_one[tier]) /
                    static_cast<std::uint64_t>(two - one) *
                    static_cast<std::uint64_t>(layers - few);
    return bytes;
  }
  TierBytes of_whole(std::int64_t layers) const {
    TierBytes bytes = beyond(two, layers);
    for (std::size_t tier = 0; tier < bytes.size(); ++tier) bytes[tier] += of_two[tier];
    return bytes;
  }
};

// By what miniatures say of the memory that an alternative takes.
class SettlerByMiniatures : public Settler {
 public:
  SettlerByMiniatures(const Problem& problem, const ParsedPolicy& parsed, int steps, int period)
      : Settler(problem, parsed, steps), period_(period) {}

  // Whether something was so close to a limit of memory that miniatures do not tell.
  bool is_close() const { return is_close_; }
  const LiveLine& line(std::size_t k) {
    const std::int64_t layers = problem_.model.layers;
    const auto [entry, is_new] = lines_.try_emplace(k);
    LiveLine& line = entry->second;
    if (!is_new) return line;
    line.one = miniature_layers(layers, period_, fewest);
    line.two = line.one + period_;
    line.of_one = live_of(k, line.one);
    line.of_two = live_of(k, line.two);
    return line;
  }

 protected:
  TierBytes live_in_trial(std::size_t k) override {
    const TierBytes bytes = line(k).of_whole(problem_.model.layers);
    note_close(bytes);
    return bytes;
  }
  TierBytes trial_extent(std::size_t k) override { return extent(k, std::min(steps_, 2)); }
  TierBytes whole_extent(std::size_t k) override { return extent(k, std::min(steps_, 3)); }

 private:
  TierBytes live_of(std::size_t k, std::int64_t few) {
    note_tried(k);
    return emit(of_layers(problem_, few), with(k),
                {.steps = std::min(steps_, 2),
                 .recording = Recording::lifetimes,
                 .plan_of = &problem_})
        .live_peaks();
  }
  TierBytes extent(std::size_t k, int steps) {
    const LiveLine& of = line(k);
    Program program = emit(
        of_layers(problem_, of.two), with(k),
        {.steps = steps, .plan_of = &problem_, .others = of.beyond(of.two, problem_.model.layers)});
    const TierBytes bytes = extent_of(program);
    note_close(bytes);
    return bytes;
  }
  void note_close(const TierBytes& bytes) {
    constexpr double close = 5e-4;
    const TierBytes capacity = capacities(problem_.machine);
    for (std::size_t tier = 0; tier < 2; ++tier) {
      const auto most = static_cast<double>(capacity[tier]);
      if (std::abs(static_cast<double>(bytes[tier]) - most) < close * most) is_close_ = true;
    }
  }
  int period_;
  std::map<std::size_t, LiveLine> lines_;  // by alternative
  bool is_close_ = false;
};

}  // namespace

std::optional<Miniatures> find_miniatures(const Problem& problem, const ParsedPolicy& parsed,
                                          int steps, std::optional<Settler::Grounds>* grounds) {
  problem.validate();
  // The first layers are not like the others where they are frozen.
  if (problem.framework != own_framework || problem.model.frozen_layers > 0 ||
      problem.workload.processes() > 1 || problem.machine.drive_sets() > 1 ||
      retention_of(parsed).value_or(RetentionByKind{}).keeps_any())
    return std::nullopt;
  Miniatures found;
  // Whether layers repeat; sets what is found of it.
  const auto repeats = [&](const ParsedPolicy& with) {
    const std::unique_ptr<Policy> object = policy_of(with);
    object->check(problem);
    const Plan plan = object->plan(problem, Costs(problem));
    check_plan(problem, plan);
    constexpr std::int64_t few = 4;
    const OrderOfWork work = order_of_work(of_layers(problem, few), *object, plan, 1);
    const std::optional<int> period = layer_period(plan, work);
    found.period = period.value_or(1);
    return period.has_value();
  };
  if (!repeats(parsed)) return std::nullopt;
  SettlerByMiniatures settler(problem, parsed, steps, found.period);
  const std::size_t chosen = settler.alternatives() > 1 ? settler.choose() : 0;
  ParsedPolicy settled = settler.with(chosen);
  const LiveLine& line = settler.line(chosen);
  if (grounds != nullptr) *grounds = settler.grounds();
  if (settler.is_close() || (settler.alternatives() > 1 && !repeats(settled))) return std::nullopt;
  const std::int64_t layers = problem.model.layers;
  found.per_layer = line.beyond(layers - 1, layers);
  found.live = line.of_whole(layers);
  found.policy = std::move(settled);
  return found;
}

Schedule build_miniature(const Problem& problem, const Miniatures& miniatures, std::int64_t layers,
                         int steps) {
  TierBytes others = miniatures.per_layer;
  for (std::uint64_t& bytes : others)
    bytes *= static_cast<std::uint64_t>(problem.model.layers - layers);
  const ParsedPolicy& policy = miniatures.policy;
  return emit(of_layers(problem, layers), policy,
              {.steps = steps, .plan_of = &problem, .others = others})
      .finish(policy_text(policy.info, policy.options), steps);
}

}  // namespace spillway
