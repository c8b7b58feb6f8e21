#include "policies/fuyou/swap_plan.hpp"
#include "policies/model/operators.hpp"

#include <algorithm>
#include <limits>
#include <string_view>

namespace spillway {

namespace {

// Of one layer, before it is repeated for all of them.
struct Operator {
  std::string_view name;
  SavedMask tensors;
  double flops, bytes;
};

std::vector<SwapOperator> in_every_layer(const std::vector<Operator>& operators,
                                         std::int64_t layers) {
  std::vector<SwapOperator> all;
  for (const Operator& one : operators) {
    for (int layer = 0; layer < layers; ++layer)
      all.push_back({std::string(one.name), layer, one.tensors, one.flops, one.bytes});
  }
  return all;
}

double tokens_of(const Problem& problem) {
  return static_cast<double>(problem.workload.micro_batch * problem.workload.sequence);
}

double seconds(double amount, double rate) { return rate > 0 ? amount / rate : 0; }

}  // namespace

std::vector<SwapOperator> swap_operators(const Problem& problem) {
  const double tokens = tokens_of(problem);
  const double nothing_kept = recompute_flops(problem, saved_none, false);
  std::vector<Operator> operators;
  for (const LayerOperator& one : layer_operators(problem.model, 1, 1)) {
    if (one.makes == saved_none) continue;
    const double flops = nothing_kept - recompute_flops(problem, one.makes, false);
    double bytes = 0;
    for (const SavedTensor& tensor : saved_tensors(problem.model)) {
      if ((one.makes & tensor.bit) == 0) continue;
      const std::uint64_t width = tensor.fp32 ? 4 : problem.activation_bytes();
      bytes += tokens * static_cast<double>(tensor.width) * static_cast<double>(width);
    }
    operators.push_back({one.name, one.makes, flops, bytes});
  }
  // Of those that gain as much for a byte, the smallest comes first.
  std::stable_sort(operators.begin(), operators.end(),
                   [](const Operator& a, const Operator& b) { return a.bytes < b.bytes; });
  return in_every_layer(operators, problem.model.layers);
}

double paper_inter_block_bytes(const Problem& problem) {
  return tokens_of(problem) * static_cast<double>(problem.model.hidden * problem.model.layers) *
         static_cast<double>(problem.activation_bytes());
}

double offload_benefit(const SwapOperator& one) {
  return one.bytes > 0 ? one.flops / one.bytes : std::numeric_limits<double>::infinity();
}

std::vector<SwapOperator> by_benefit(std::vector<SwapOperator> operators) {
  std::stable_sort(operators.begin(), operators.end(),
                   [](const SwapOperator& a, const SwapOperator& b) {
                     return offload_benefit(a) > offload_benefit(b);
                   });
  return operators;
}

SwapModel swap_model(const Problem& problem, const Costs& costs, double host_available_bytes) {
  const ModelSpec& model = problem.model;
  SwapModel result;
  if (costs.knows(Work::compute)) {
    const auto layers = static_cast<double>(model.layers);
    const double backward = costs.backward_seconds(saved_all(problem.model), false);
    const double recomputing = costs.backward_seconds(saved_none, false) - backward;
    result.gpu_forward = layers * costs.forward_seconds();
    result.gpu_backward = layers * backward;
    result.gpu_head = costs.head_seconds();
    result.gpu_flops = seconds(recompute_flops(problem, saved_none, false), recomputing);
  }
  result.link = costs.links().one_way();
  result.drives = costs.drives();
  // The embedding's parameters stay on the GPU; its optimizer state does not.
  const auto ranks = static_cast<double>(problem.workload.ranks);
  const double in_layers = static_cast<double>(model.layers * model.layer_parameters()) / ranks;
  const double trained = static_cast<double>(model.trained_parameters()) / ranks;
  result.parameter_bytes = in_layers * static_cast<double>(problem.parameter_bytes());
  result.state_bytes = static_cast<double>(problem.state_bytes()) * trained;
  result.gradient_bytes = trained * static_cast<double>(problem.gradient_bytes());
  result.host_available_bytes = std::max(0.0, host_available_bytes);
  result.inter_block_bytes = paper_inter_block_bytes(problem);
  result.micro_batches = static_cast<int>(problem.workload.micro_batches());
  return result;
}

double spilled_bytes(const SwapModel& model, double swapped) {
  return std::clamp(swapped - model.host_available_bytes, 0.0, swapped);
}

double forward_seconds(const SwapModel& model, double swapped) {
  return std::max({model.gpu_forward, seconds(swapped, model.link),
                   seconds(model.parameter_bytes, model.link),
                   model.drives.seconds(model.parameter_bytes, spilled_bytes(model, swapped))});
}

double backward_seconds(const SwapModel& model, double swapped, double recomputed_flops,
                        OptimizerOverlap overlap) {
  const double read = model.parameter_bytes + spilled_bytes(model, swapped) +
                      (overlap == OptimizerOverlap::all ? model.state_bytes : 0);
  const double written =
      overlap == OptimizerOverlap::nothing ? 0 : model.state_bytes + model.parameter_bytes;
  // Of several micro-batches, gradients come back to be added to.
  const double returning = model.micro_batches > 1 ? model.gradient_bytes : 0;
  return std::max({model.gpu_backward + seconds(recomputed_flops, model.gpu_flops) + model.gpu_head,
                   seconds(model.gradient_bytes, model.link),
                   seconds(model.parameter_bytes + swapped + returning, model.link),
                   model.drives.seconds(read, written)});
}

double step_seconds(const SwapModel& model, double swapped, double recomputed_flops) {
  const double forward = forward_seconds(model, swapped);
  const double others =
      backward_seconds(model, swapped, recomputed_flops, OptimizerOverlap::nothing);
  double last = backward_seconds(model, swapped, recomputed_flops, model.overlap);
  if (model.overlap == OptimizerOverlap::writes) last += model.drives.seconds(model.state_bytes, 0);
  if (model.overlap == OptimizerOverlap::nothing)
    last += model.drives.seconds(model.state_bytes, model.state_bytes + model.parameter_bytes);
  return model.micro_batches * forward + (model.micro_batches - 1) * others + last;
}

std::vector<SwapOperator> choose_swaps(const SwapModel& model,
                                       const std::vector<SwapOperator>& in_order, double swapped,
                                       double all_recomputed_flops) {
  std::vector<SwapOperator> chosen;
  double flops = all_recomputed_flops;
  double least = swapped >= model.inter_block_bytes ? step_seconds(model, swapped, flops)
                                                    : std::numeric_limits<double>::infinity();
  for (const SwapOperator& one : in_order) {
    const bool is_enough = swapped >= model.inter_block_bytes;
    swapped += one.bytes;
    flops -= one.flops;
    const double time = step_seconds(model, swapped, flops);
    if (time >= least && is_enough) break;
    least = std::min(least, time);
    chosen.push_back(one);
  }
  return chosen;
}

std::vector<SwapOperator> swaps_within(const std::vector<SwapOperator>& in_order, double bytes) {
  std::vector<SwapOperator> chosen;
  for (const SwapOperator& one : in_order) {
    bytes -= one.bytes;
    if (bytes < -0.5) break;  // sums of such numbers differ in their last digits
    chosen.push_back(one);
  }
  return chosen;
}

std::vector<SavedMask> swap_masks(const std::vector<SwapOperator>& swapped, std::int64_t layers) {
  std::vector<SavedMask> masks(static_cast<std::size_t>(layers), saved_none);
  for (const SwapOperator& one : swapped) {
    SavedMask& mask = masks[static_cast<std::size_t>(one.layer)];
    mask = static_cast<SavedMask>(mask | one.tensors);
  }
  return masks;
}

}  // namespace spillway
