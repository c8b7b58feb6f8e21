#include "policies/common/miniature.hpp"

#include <algorithm>
#include <numeric>

#include "policies/model/gpt_layout.hpp"

namespace spillway {

namespace {

constexpr int most_period = 12;

bool saves_alike(const std::vector<std::uint8_t>& saves) {
  return saves.empty() || std::all_of(saves.begin(), saves.end() - 1,
                                      [&](std::uint8_t mask) { return mask == saves.front(); });
}

}  // namespace

bool has_rows(const OrderOfWork& work) {
  for (std::size_t v = 1; v < work.visits.size(); ++v) {
    const Visit &one = work.visits[v - 1], &next = work.visits[v];
    if (one.layer == next.layer && one.kind == next.kind && one.step == next.step) return true;
  }
  return false;
}

Plan with_layers(Plan plan, std::int64_t layers) {
  std::vector<std::uint8_t>& saves = plan.saved.saves;
  const auto count = static_cast<std::size_t>(layers);
  if (saves.empty() || saves.size() == count) return plan;
  const std::uint8_t last = saves.back();
  saves.resize(count, saves.front());
  saves.back() = last;
  return plan;
}

std::optional<int> layer_period(const Problem& problem, const Plan& plan, const OrderOfWork& work) {
  const double on_ssd = plan.checkpoints.rest.ssd;
  if (plan.retention.keeps_any() || plan.spare_gpu_bytes > 0 || plan.spare_host_bytes > 0 ||
      plan.parameters.by_tensor || plan.parameters.first_in_host > 0 || plan.gradients.bucket > 0 ||
      plan.optimizer.group == UpdateGroup::tensors || !saves_alike(plan.saved.saves) ||
      (on_ssd > 0 && on_ssd < 1 && !has_rows(work)))
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
  constexpr std::int64_t fewest = 6;
  return fewest + (layers - fewest) % period + std::int64_t{period} * nth;
}

}  // namespace spillway
