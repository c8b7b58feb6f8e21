#include "policies/movement/spare.hpp"

#include <algorithm>
#include <utility>

namespace spillway {

namespace {

// Moves up to `spare` of the `bytes` that a whole share stands for from the SSD to host memory.
void lift(Share& share, double bytes, double& spare) {
  if (share.ssd <= 0 || bytes <= 0 || spare <= 0) return;
  const double moved = std::min(share.ssd, spare / bytes);
  share.ssd -= moved;
  share.host += moved;
  spare -= moved * bytes;
}

}  // namespace

PlanWithSpare with_spare(const Problem& problem, Plan plan, const TierBytes& spare) {
  plan.retention = Retention::nearest;
  plan.spare_gpu_bytes = spare[0];
  const std::int64_t layers = problem.model.layers;
  const double elements = static_cast<double>(layers * unit_elements(problem.model, 0));
  const double embedding = static_cast<double>(unit_elements(problem.model, layers));
  double host = static_cast<double>(spare[1]);
  lift(plan.parameters.rest, elements * static_cast<double>(problem.parameter_bytes()), host);
  // Gradients that rest on the SSD pass through the memory that optimizer state is read into.
  const double states = elements + (plan.optimizer_state.embedding ? 0 : embedding);
  if (!plan.gradients.on_ssd)
    lift(plan.optimizer_state.rest, states * static_cast<double>(problem.state_bytes()), host);
  const auto kept = static_cast<std::uint64_t>(static_cast<double>(spare[1]) - host);
  return {std::move(plan), kept};
}

}  // namespace spillway
