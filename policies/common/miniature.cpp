#include "policies/common/miniature.hpp"

#include <algorithm>
#include <numeric>

#include "policies/model/gpt_layout.hpp"

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

}  // namespace

bool has_rows(const OrderOfWork& work) {
  for (std::size_t v = 1; v < work.visits.size(); ++v) {
    const Visit &one = work.visits[v - 1], &next = work.visits[v];
    if (one.layer == next.layer && one.kind == next.kind && one.step == next.step) return true;
  }
  return false;
}

std::optional<int> layer_period(const Problem& problem, const Plan& plan, const OrderOfWork& work) {
  const auto is_shared = [](const Share& share) { return share.ssd > 0 && share.ssd < 1; };
  const bool shares_layers =
      plan.checkpoints.rest.any(is_shared) || (plan.saved.rest && plan.saved.rest->any(is_shared));
  if (plan.retention.keeps_any() || plan.spare_gpu_bytes > 0 || plan.spare_host_bytes > 0 ||
      plan.parameters.by_tensor || plan.parameters.first_in_host > 0 || plan.gradients.bucket > 0 ||
      plan.optimizer.group == UpdateGroup::tensors || !repeats(plan.saved.saves) ||
      !repeats(plan.order.delayed) || !repeats(plan.parameters.rest) ||
      !repeats(plan.optimizer_state.rest) || !repeats(plan.checkpoints.rest) ||
      (plan.saved.rest && !repeats(*plan.saved.rest)) || (shares_layers && !has_rows(work)))
    return std::nullopt;
  int period = 2;  // orders that turn at every layer
  const auto repeats_after = [&](int layers) { period = std::lcm(period, std::max(1, layers)); };
  repeats_after(plan.optimizer_state.slots);
  repeats_after(plan.saved.slots);
  repeats_after(plan.optimizer.gpu_stride);
  if (plan.optimizer.gpu_stride > 0) repeats_after(plan.optimizer_state.gpu_slots);
  if (plan.optimizer.group == UpdateGroup::at_most) {
    const auto layer = static_cast<std::uint64_t>(unit_elements(problem.model, 0));
    const std::uint64_t layers = plan.optimizer.elements / layer;
    if (layers > most_period) return std::nullopt;
    repeats_after(static_cast<int>(layers));
  }
  if (period > most_period) return std::nullopt;
  return period;
}

std::int64_t miniature_layers(std::int64_t layers, int period, int nth) {
  return fewest + (layers - fewest) % period + std::int64_t{period} * nth;
}

}  // namespace spillway
