#include "policies/movement/spare.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "policies/model/operators.hpp"
#include "policies/model/scratch.hpp"
#include "policies/model/stages.hpp"
#include "policies/movement/shards.hpp"
#include "policies/movement/uses.hpp"

namespace spillway {

namespace {

// Bytes that a whole share stands for, and how many tensors.
struct Whole {
  double bytes = 0, tensors = 0;
};

// Moves from the SSD to host memory what `spare` bytes hold, and no more tensors than may stay.
// Returns how many are moved.
double lift(Share& share, const Whole& whole, double may_stay, double& spare) {
  if (share.ssd <= 0 || whole.bytes <= 0 || spare <= 0) return 0;
  const double moved = std::min({share.ssd, spare / whole.bytes, may_stay / whole.tensors});
  share.ssd -= moved;
  share.host += moved;
  spare -= moved * whole.bytes;
  return moved * whole.tensors;
}

// The same of tensors that are alike in all layers, the lowest layers first.
void lift(ByLayer<Share>& share, int layers, const Whole& whole, Retention retention,
          double& spare) {
  auto may_stay = static_cast<double>(retention.most);
  share.change(layers, [&](Share& one, int count) {
    const double part = static_cast<double>(count) / layers;
    may_stay -= lift(one, {whole.bytes * part, whole.tensors * part}, may_stay, spare);
  });
}

// The inputs of layers, what forward saves there, or both, that are on the SSD at once, if all that
// may be are (Activations::place_on_ssd).
Whole activations_on_ssd(const Problem& problem, const Plan& plan, const OrderOfWork& work,
                         bool inputs, bool saved) {
  const Uses uses(problem, work);
  const std::vector<Turn>& turns = uses.turns();
  const bool in_rows = std::any_of(turns.begin(), turns.end(), [](const Turn& turn) {
    return !turn.backward && turn.end - turn.begin > 1;
  });
  const auto margin = in_rows ? static_cast<VisitId>(plan.checkpoints.margin) : 0;
  Whole now, most;
  for (VisitId v = 0; v < work.visits.size() && work.visits[v].step == 0; ++v) {
    const Visit& visit = work.visits[v];
    if (visit.layer + 1 == static_cast<int>(problem.model.layers) && has_head(problem.model))
      continue;
    if (visit.layer < first_backward_layer(problem.model)) continue;
    const bool is_received = receives_input(problem.model, visit.layer);
    const VisitId made = uses.forward(0, is_received ? visit.layer : std::max(0, visit.layer - 1),
                                      visit.micro_batch);
    const Turn& turn = turns[uses.turn_of(made)];
    if (made < turn.begin + margin || made + margin >= turn.end) continue;
    const auto layers = static_cast<int>(problem.model.layers);
    std::uint64_t bytes = inputs ? checkpoint_bytes(problem) : 0;
    if (saved) bytes += saved_bytes(problem, plan.saved.saves.at(visit.layer, layers));
    // What is between a backward's two passes is on the GPU.
    if (bytes == 0 || visit.kind == VisitKind::weights) continue;
    const double sign = visit.kind == VisitKind::forward ? 1 : -1;
    now.bytes += sign * static_cast<double>(bytes);
    now.tensors += sign;
    if (now.bytes > most.bytes) most = now;
  }
  return most;
}

// Of the layers and, if `all`, of the units after them, counted in layers.
Whole optimizer_state(const Problem& problem, const Shards& shards, bool all) {
  const ModelSpec& model = problem.model;
  const auto in_layer = static_cast<double>(trained_elements(model, model.layers - 1));
  const auto outer = static_cast<double>(outer_trained_elements(model));
  const double states =
      static_cast<double>(model.layers - model.frozen_layers) + (all ? outer / in_layer : 0);
  return {states * in_layer * static_cast<double>(problem.state_bytes()) / shards.state().size(),
          states};
}

}  // namespace

PlanWithSpare with_spare(const Problem& problem, Plan plan, const OrderOfWork& work,
                         const TierBytes& spare) {
  plan.spare_gpu_bytes = spare[0];
  plan.spare_host_bytes = spare[1];
  const auto layer_count = static_cast<int>(problem.model.layers);
  const auto layers = static_cast<double>(layer_count);
  const Shards shards(problem, plan);
  const double in_layer =
      static_cast<double>(unit_elements(problem.model, 0)) / shards.state().size();
  double host = static_cast<double>(spare[1]);
  const auto lift_state = [&] {
    // Gradients that rest on the SSD pass through the memory that optimizer state is read into.
    if (plan.gradients.on_ssd) return;
    const Whole state = optimizer_state(problem, shards, !plan.optimizer_state.embedding);
    lift(plan.optimizer_state.rest, layer_count, state, plan.retention.optimizer_state, host);
  };
  // What is written, too, goes first where most of the model is only read.
  const bool state_first = problem.model.has_adapters();
  if (state_first) lift_state();
  const Whole parameters = {layers * in_layer * static_cast<double>(problem.parameter_bytes()),
                            layers};
  double layers_on_ssd = 0;
  plan.parameters.rest.change(
      layer_count, [&](const Share& share, int count) { layers_on_ssd += share.ssd * count; });
  if (plan.parameters.first_in_host > 0 && layers_on_ssd > 0) {
    const auto width = static_cast<double>(problem.parameter_bytes());
    const double first = static_cast<double>(plan.parameters.first_in_host);
    const double on_ssd = std::max(0.0, layers_on_ssd * in_layer - first);
    const double may_stay = static_cast<double>(plan.retention.parameters.most) * in_layer;
    const double moved = std::floor(std::min({on_ssd, host / width, may_stay}));
    plan.parameters.first_in_host += static_cast<std::uint64_t>(moved);
    host -= moved * width;
  } else {
    lift(plan.parameters.rest, layer_count, parameters, plan.retention.parameters, host);
  }
  if (!state_first) lift_state();
  const bool saves = plan.saved.saves.any([](SavedMask mask) { return mask != saved_none; });
  const bool together = saves && !plan.saved.rest;
  const Retention activations =
      together ? Retention{std::min(plan.retention.checkpoints.most, plan.retention.saved.most)}
               : plan.retention.checkpoints;
  const auto lift_activations = [&](ByLayer<Share>& rest, Retention retention, bool inputs,
                                    bool saved) {
    lift(rest, layer_count, activations_on_ssd(problem, plan, work, inputs, saved), retention,
         host);
  };
  lift_activations(plan.checkpoints.rest, activations, true, together);
  if (plan.saved.rest) lift_activations(*plan.saved.rest, plan.retention.saved, false, true);
  const auto kept = static_cast<std::uint64_t>(static_cast<double>(spare[1]) - host);
  return {std::move(plan), kept};
}

}  // namespace spillway
