#include "policies/movement/uses.hpp"

namespace spillway {

Uses::Uses(const Problem& problem, const OrderOfWork& work)
    : layers_(static_cast<int>(problem.model.layers)),
      micro_batches_(static_cast<int>(problem.workload.micro_batches())),
      forward_(index(work.steps, 0, 0), no_visit),
      backward_(index(work.steps, 0, 0), no_visit),
      complete_(static_cast<std::size_t>(work.steps * layers_), no_visit),
      last_backward_(complete_),
      last_visit_(static_cast<std::size_t>(work.steps), 0) {
  turn_of_.reserve(work.visits.size());
  for (VisitId v = 0; v < work.visits.size(); ++v) {
    const Visit& visit = work.visits[v];
    const std::size_t at = index(visit.step, visit.layer, visit.micro_batch);
    const bool is_weights = visit.kind == VisitKind::weights;
    if (visit.kind != VisitKind::backward && !is_weights) forward_[at] = v;
    if (is_backward(visit)) backward_[at] = v;
    const auto of_layer = static_cast<std::size_t>(visit.step * layers_ + visit.layer);
    if (visit.completes_sum) complete_[of_layer] = v;
    if (visit.last_backward) last_backward_[of_layer] = v;
    last_visit_[static_cast<std::size_t>(visit.step)] = v;
    const bool continues = !turns_.empty() && turns_.back().layer == visit.layer &&
                           turns_.back().step == visit.step &&
                           turns_.back().needs_parameters == needs_parameters(visit);
    if (!continues)
      turns_.push_back({v, v, visit.layer, visit.step, is_backward(visit) || is_weights,
                        needs_parameters(visit)});
    turns_.back().end = v + 1;
    turn_of_.push_back(static_cast<std::uint32_t>(turns_.size() - 1));
  }
}

}  // namespace spillway
