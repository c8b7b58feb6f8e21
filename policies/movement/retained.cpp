#include "policies/movement/retained.hpp"

#include <algorithm>
#include <array>
#include <queue>
#include <tuple>

#include "base/errors.hpp"
#include "policies/model/scratch.hpp"
#include "policies/model/stages.hpp"
#include "policies/movement/shards.hpp"

namespace spillway {

Retained::Retained(const Problem& problem, const Plan& plan, const OrderOfWork& work,
                   const Uses& uses)
    : problem_(problem),
      plan_(plan),
      work_(work),
      uses_(uses),
      layers_(static_cast<int>(problem.model.layers)),
      stays_(work.visits.size(), 0),
      next_turn_(uses.turns().size(), no_visit),
      checkpoint_bytes_(checkpoint_bytes(problem)) {
  const auto bytes = [](std::int64_t elements, std::uint64_t width) {
    return static_cast<std::uint64_t>(elements) * width;
  };
  parameter_bytes_ = bytes(unit_elements(problem.model, 0), problem.parameter_bytes());
  gradient_bytes_ = bytes(trained_elements(problem.model, layers_ - 1), problem.gradient_bytes());
  const Shards shards(problem, plan);
  for (int layer = 0; layer < layers_; ++layer) {
    saved_bytes_.push_back(saved_bytes(problem, plan.saved.saves.at(layer, layers_)));
    const auto is_on_gpu = [&](const ByLayer<Share>& rest) {
      return rest.at(layer, layers_).gpu > 0;
    };
    parameters_rest_.push_back(is_on_gpu(plan.parameters.rest) && !shards.gathers(layer));
    inputs_rest_.push_back(is_on_gpu(plan.checkpoints.rest));
    saved_rest_.push_back(is_on_gpu(plan.saved.rest.value_or(plan.checkpoints.rest)));
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
    for (const Bit what : {input_bit, output_bit, saved_bit}) {
      if (rests(v, what)) stays_[v] = static_cast<std::uint8_t>(stays_[v] | what);
    }
    for_gaps(v, [&](const Gap& gap) {
      if (gap.to <= gap.from + 1) stays_[v] = static_cast<std::uint8_t>(stays_[v] | gap.what);
    });
  }
  if (plan.retention.keeps_any()) keep_nearest();
}

// Whether an activation that visit v uses or makes rests on the GPU.
bool Retained::rests(VisitId v, Bit what) const {
  const auto layer = static_cast<std::size_t>(work_.visits[v].layer);
  if (what != output_bit && !has_backward(v)) return false;
  if (what == saved_bit) return saved_rest_[layer];
  const std::size_t of = what == input_bit ? layer : layer + 1;
  return of < inputs_rest_.size() && inputs_rest_[of];
}

// Whether what a visit's forward computes is used again by a backward.
bool Retained::has_backward(VisitId v) const {
  const Visit& visit = work_.visits[v];
  return uses_.backward(visit.step, visit.layer, visit.micro_batch) != no_visit;
}

// What visit v uses or makes, and when it is used again. What rests on the GPU has no gaps.
template <class Act>
void Retained::for_gaps(VisitId v, const Act& act) const {
  const Visit& visit = work_.visits[v];
  const int step = visit.step, l = visit.layer, m = visit.micro_batch;
  const Turn& turn = uses_.turns()[uses_.turn_of(v)];
  if (v + 1 == turn.end && turn.needs_parameters &&
      !parameters_rest_[static_cast<std::size_t>(l)]) {
    if (const VisitId next = next_use_of_parameters(uses_.turn_of(v)); next != no_visit)
      act(Gap{v, next, parameters_bit, parameter_bytes_});
  }
  if (visit.kind == VisitKind::forward) {
    const VisitId back = uses_.backward(step, l, m);
    if (!rests(v, input_bit) && back != no_visit) act(Gap{v, back, input_bit, checkpoint_bytes_});
    if (!sends_output(problem_.model, l) && !rests(v, output_bit))
      act(Gap{v, uses_.forward(step, l + 1, m), output_bit, checkpoint_bytes_});
    const std::uint64_t saved = saved_bytes_[static_cast<std::size_t>(l)];
    if (!rests(v, saved_bit) && saved > 0 && back != no_visit) act(Gap{v, back, saved_bit, saved});
    return;
  }
  const bool hands_down = is_backward(visit) && l > 0 && !receives_input(problem_.model, l);
  if (const VisitId below = hands_down ? uses_.backward(step, l - 1, m) : no_visit;
      below != no_visit)
    act(Gap{v, below, activation_gradient_bit, checkpoint_bytes_});
  if (adds_gradient(visit) && !plan_.gradients.on_gpu && !visit.completes_sum &&
      next_sum(v) != no_visit)
    act(Gap{v, next_sum(v), gradient_bit, gradient_bytes_});
}

VisitId Retained::next_use_of_parameters(std::uint32_t turn) const {
  VisitId next = next_turn_[turn];
  while (next != no_visit && !uses_.turns()[uses_.turn_of(next)].needs_parameters)
    next = next_turn_[uses_.turn_of(next)];
  return next;
}

// The next visit that adds to the gradient that visit v adds to.
VisitId Retained::next_sum(VisitId v) const {
  const Turn& turn = uses_.turns()[uses_.turn_of(v)];
  VisitId next = v + 1 < turn.end ? v + 1 : next_turn_[uses_.turn_of(v)];
  const auto adds = [&](VisitId visit) { return adds_gradient(work_.visits[visit]); };
  while (next != no_visit && !adds(next)) {
    const std::uint32_t t = uses_.turn_of(next);
    next = next + 1 < uses_.turns()[t].end ? next + 1 : next_turn_[t];
  }
  return next;
}

// What is held of one kind of tensor, of which at most so many may be.
class Retained::Held {
 public:
  explicit Held(Retention retention) : most_(retention.most) {}

  bool may_hold() const { return most_ > 0; }
  bool is_too_much() const { return count_ > most_; }
  void hold(const Gap& gap) {
    ++count_;
    gaps_.push(gap);
  }
  void let_go() { --count_; }
  // What is used furthest after visit v; null where nothing is held until then.
  const Gap* furthest(VisitId v, const Retained& retained) {
    while (!gaps_.empty() &&
           (gaps_.top().to <= v || !retained.has(gaps_.top().from, gaps_.top().what)))
      gaps_.pop();
    return gaps_.empty() ? nullptr : &gaps_.top();
  }
  // Ties are broken the same way on every machine.
  static bool is_sooner(const Gap& a, const Gap& b) {
    return std::tuple(a.to, a.from, a.what) < std::tuple(b.to, b.from, b.what);
  }
  static bool is_later(const Gap& a, const Gap& b) { return is_sooner(b, a); }

 private:
  std::uint32_t most_, count_ = 0;
  std::priority_queue<Gap, std::vector<Gap>, decltype(&is_sooner)> gaps_{&is_sooner};
};

void Retained::keep_nearest() {
  const RetentionByKind& may = plan_.retention;
  std::array<Held, 5> kinds = {Held(may.parameters), Held(may.checkpoints), Held(may.saved),
                               Held(may.activation_gradients), Held(may.gradients)};
  const auto kind_of = [&](Bit what) -> Held& {
    switch (what) {
      case parameters_bit:
        return kinds[0];
      case input_bit:
      case output_bit:
        return kinds[1];
      case saved_bit:
        return kinds[2];
      case activation_gradient_bit:
        return kinds[3];
      case gradient_bit:
        return kinds[4];
    }
    SPILLWAY_ASSERT(false);
  };
  std::uint64_t bytes = 0;
  const auto hold = [&](const Gap& gap) {
    Held& held = kind_of(gap.what);
    if (!held.may_hold() || has(gap.from, gap.what)) return false;
    stays_[gap.from] = static_cast<std::uint8_t>(stays_[gap.from] | gap.what);
    bytes += gap.bytes;
    held.hold(gap);
    return true;
  };
  const auto let_go = [&](const Gap& gap) {
    bytes -= gap.bytes;
    kind_of(gap.what).let_go();
  };
  const auto drop = [&](Gap gap) {
    std::uint8_t& bits = stays_[gap.from];
    bits = static_cast<std::uint8_t>(bits & ~gap.what);
    let_go(gap);
  };
  const auto furthest = [&](VisitId v) {
    const Gap* found = nullptr;
    for (Held& held : kinds) {
      const Gap* const one = held.furthest(v, *this);
      if (one && (!found || Held::is_sooner(*found, *one))) found = one;
    }
    return *found;
  };
  std::priority_queue<Gap, std::vector<Gap>, decltype(&Held::is_later)> ending(&Held::is_later);
  for (VisitId v = 0; v < work_.visits.size(); ++v) {
    for (; !ending.empty() && ending.top().to <= v; ending.pop()) {
      if (has(ending.top().from, ending.top().what)) let_go(ending.top());
    }
    for_gaps(v, [&](const Gap& gap) {
      if (hold(gap)) ending.push(gap);
    });
    for (Held& held : kinds) {
      while (held.is_too_much()) drop(*held.furthest(v, *this));
    }
    while (bytes > plan_.spare_gpu_bytes) drop(furthest(v));
    kept_ = std::max(kept_, bytes);
  }
}

}  // namespace spillway
