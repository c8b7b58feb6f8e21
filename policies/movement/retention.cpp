#include "policies/movement/retention.hpp"

#include <algorithm>
#include <queue>
#include <tuple>

namespace spillway {

Retained::Retained(const Problem& problem, const Plan& plan, const OrderOfWork& work,
                   const Uses& uses)
    : problem_(problem),
      plan_(plan),
      work_(work),
      uses_(uses),
      layers_(static_cast<int>(problem.model.layers)),
      rests_(plan.checkpoints.rest.gpu > 0),
      stays_(work.visits.size(), 0),
      next_turn_(uses.turns().size(), no_visit),
      checkpoint_bytes_(checkpoint_bytes(problem)) {
  const auto elements = static_cast<std::uint64_t>(unit_elements(problem.model, 0));
  parameter_bytes_ = elements * problem.parameter_bytes();
  gradient_bytes_ = elements * problem.gradient_bytes();
  for (int layer = 0; layer < layers_; ++layer) {
    const auto& saves = plan.saved.saves;
    saved_bytes_.push_back(
        saves.empty() ? 0 : saved_bytes(problem, saves[static_cast<std::size_t>(layer)]));
  }
  std::vector<std::uint32_t> last(static_cast<std::size_t>(layers_), 0xffffffffu);  // turn
  for (std::uint32_t t = 0; t < uses.turns().size(); ++t) {
    const Turn& turn = uses.turns()[t];
    std::uint32_t& before = last[static_cast<std::size_t>(turn.layer)];
    if (before != 0xffffffffu && uses.turns()[before].step == turn.step)
      next_turn_[before] = turn.begin;
    before = t;
  }
  for (VisitId v = 0; v < work.visits.size(); ++v) {
    for_gaps(v, [&](const Gap& gap) {
      if (gap.to <= gap.from + 1) stays_[v] = static_cast<std::uint8_t>(stays_[v] | gap.what);
    });
  }
  if (plan.retention == Retention::nearest) keep_nearest();
}

// What visit v uses or makes, and when it is used again. What rests on the GPU has no gaps.
template <class Act>
void Retained::for_gaps(VisitId v, const Act& act) const {
  const Visit& visit = work_.visits[v];
  const int step = visit.step, l = visit.layer, m = visit.micro_batch;
  const Turn& turn = uses_.turns()[uses_.turn_of(v)];
  if (v + 1 == turn.end && plan_.parameters.rest.gpu == 0) {
    if (const VisitId next = next_turn_[uses_.turn_of(v)]; next != no_visit)
      act(Gap{v, next, parameters_bit, parameter_bytes_});
  }
  if (visit.kind == VisitKind::forward) {
    const VisitId back = uses_.backward(step, l, m), above = uses_.forward(step, l + 1, m);
    if (!rests_) act(Gap{v, back, input_bit, checkpoint_bytes_});
    if (!rests_) act(Gap{v, above, output_bit, checkpoint_bytes_});
    const std::uint64_t saved = saved_bytes_[static_cast<std::size_t>(l)];
    if (!rests_ && saved > 0) act(Gap{v, back, saved_bit, saved});
    return;
  }
  if (l > 0)
    act(Gap{v, uses_.backward(step, l - 1, m), activation_gradient_bit, checkpoint_bytes_});
  if (!plan_.gradients.on_gpu && !visit.completes_sum && next_sum(v) != no_visit)
    act(Gap{v, next_sum(v), gradient_bit, gradient_bytes_});
}

// The next visit that adds to the gradient that visit v adds to.
VisitId Retained::next_sum(VisitId v) const {
  const Turn& turn = uses_.turns()[uses_.turn_of(v)];
  VisitId next = v + 1 < turn.end ? v + 1 : next_turn_[uses_.turn_of(v)];
  const auto adds = [&](VisitId visit) { return work_.visits[visit].kind != VisitKind::forward; };
  while (next != no_visit && !adds(next)) {
    const std::uint32_t t = uses_.turn_of(next);
    next = next + 1 < uses_.turns()[t].end ? next + 1 : next_turn_[t];
  }
  return next;
}

void Retained::keep_nearest() {
  // Ties are broken the same way on every machine.
  const auto further = [](const Gap& a, const Gap& b) {
    return std::tuple(a.to, a.from, a.what) < std::tuple(b.to, b.from, b.what);
  };
  std::priority_queue<Gap, std::vector<Gap>, decltype(further)> held(further);  // furthest first
  const auto soonest = [](const Gap& a, const Gap& b) {
    return std::tuple(a.to, a.from, a.what) > std::tuple(b.to, b.from, b.what);
  };
  std::priority_queue<Gap, std::vector<Gap>, decltype(soonest)> ending(soonest);
  std::uint64_t bytes = 0;
  const auto stays = [&](const Gap& gap) { return has(gap.from, gap.what); };
  for (VisitId v = 0; v < work_.visits.size(); ++v) {
    for (; !ending.empty() && ending.top().to <= v; ending.pop()) {
      if (stays(ending.top())) bytes -= ending.top().bytes;
    }
    for_gaps(v, [&](const Gap& gap) {
      if (stays(gap)) return;
      stays_[v] = static_cast<std::uint8_t>(stays_[v] | gap.what);
      bytes += gap.bytes;
      held.push(gap);
      ending.push(gap);
    });
    while (bytes > plan_.spare_gpu_bytes) {
      const Gap gap = held.top();
      held.pop();
      if (gap.to <= v || !stays(gap)) continue;
      std::uint8_t& bits = stays_[gap.from];
      bits = static_cast<std::uint8_t>(bits & ~gap.what);
      bytes -= gap.bytes;
    }
    kept_ = std::max(kept_, bytes);
  }
}

}  // namespace spillway
