#include "policies/movement/spare.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "policies/movement/uses.hpp"

namespace spillway {

namespace {

// Bytes that a whole share stands for, and how many tensors.
struct Whole {
  double bytes = 0, tensors = 0;
};

// Moves from the SSD to host memory what `spare` bytes hold, and no more tensors than may stay.
void lift(Share& share, const Whole& whole, Retention retention, double& spare) {
  if (share.ssd <= 0 || whole.bytes <= 0 || spare <= 0) return;
  const double may_stay = static_cast<double>(retention.most) / whole.tensors;
  const double moved = std::min({share.ssd, spare / whole.bytes, may_stay});
  share.ssd -= moved;
  share.host += moved;
  spare -= moved * whole.bytes;
}

// The inputs of layers and what forward saves there that are on the SSD at once, if all that may be
// are (Activations::place_on_ssd).
Whole activations_on_ssd(const Problem& problem, const Plan& plan, const OrderOfWork& work) {
  const Uses uses(problem, work);
  const std::vector<Turn>& turns = uses.turns();
  const bool in_rows = std::any_of(turns.begin(), turns.end(), [](const Turn& turn) {
    return !turn.backward && turn.end - turn.begin > 1;
  });
  const auto margin = in_rows ? static_cast<VisitId>(plan.checkpoints.margin) : 0;
  Whole now, most;
  for (VisitId v = 0; v < work.visits.size() && work.visits[v].step == 0; ++v) {
    const Visit& visit = work.visits[v];
    if (visit.layer + 1 == static_cast<int>(problem.model.layers)) continue;
    const VisitId made = uses.forward(0, std::max(0, visit.layer - 1), visit.micro_batch);
    const Turn& turn = turns[uses.turn_of(made)];
    if (made < turn.begin + margin || made + margin >= turn.end) continue;
    std::uint64_t bytes = checkpoint_bytes(problem);
    if (!plan.saved.saves.empty())
      bytes += saved_bytes(problem, plan.saved.saves[static_cast<std::size_t>(visit.layer)]);
    const double sign = visit.kind == VisitKind::forward ? 1 : -1;
    now.bytes += sign * static_cast<double>(bytes);
    now.tensors += sign;
    if (now.bytes > most.bytes) most = now;
  }
  return most;
}

}  // namespace

PlanWithSpare with_spare(const Problem& problem, Plan plan, const OrderOfWork& work,
                         const TierBytes& spare) {
  plan.spare_gpu_bytes = spare[0];
  plan.spare_host_bytes = spare[1];
  const auto layers = static_cast<double>(problem.model.layers);
  const auto in_layer = static_cast<double>(unit_elements(problem.model, 0));
  const auto embedding = static_cast<double>(unit_elements(problem.model, problem.model.layers));
  double host = static_cast<double>(spare[1]);
  const Whole parameters = {layers * in_layer * static_cast<double>(problem.parameter_bytes()),
                            layers};
  if (plan.parameters.first_in_host > 0 && plan.parameters.rest.ssd > 0) {
    const auto width = static_cast<double>(problem.parameter_bytes());
    const double first = static_cast<double>(plan.parameters.first_in_host);
    const double on_ssd = std::max(0.0, plan.parameters.rest.ssd * layers * in_layer - first);
    const double may_stay = static_cast<double>(plan.retention.parameters.most) * in_layer;
    const double moved = std::floor(std::min({on_ssd, host / width, may_stay}));
    plan.parameters.first_in_host += static_cast<std::uint64_t>(moved);
    host -= moved * width;
  } else {
    lift(plan.parameters.rest, parameters, plan.retention.parameters, host);
  }
  // Gradients that rest on the SSD pass through the memory that optimizer state is read into.
  if (!plan.gradients.on_ssd) {
    const double states = layers + (plan.optimizer_state.embedding ? 0 : embedding / in_layer);
    const Whole state = {states * in_layer * static_cast<double>(problem.state_bytes()), states};
    lift(plan.optimizer_state.rest, state, plan.retention.optimizer_state, host);
  }
  const bool saves = std::any_of(plan.saved.saves.begin(), plan.saved.saves.end(),
                                 [](std::uint8_t mask) { return mask != saved_none; });
  const Retention activations =
      saves ? Retention{std::min(plan.retention.checkpoints.most, plan.retention.saved.most)}
            : plan.retention.checkpoints;
  lift(plan.checkpoints.rest, activations_on_ssd(problem, plan, work), activations, host);
  const auto kept = static_cast<std::uint64_t>(static_cast<double>(spare[1]) - host);
  return {std::move(plan), kept};
}

}  // namespace spillway
