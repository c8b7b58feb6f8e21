// What the paper says of swapping beyond what the policy needs: its own count of a layer's
// operators, equations 7 and 8, and its three cases.
#pragma once

#include <algorithm>
#include <vector>

#include "policies/fuyou/swap_plan.hpp"
#include "policies/model/saved.hpp"

namespace spillway::test {

// The operators of every layer as the paper counts them: with the down-projection's output
// (mlp-proj), and without statistics. With paper_inter_block_bytes they add up to 34 s b h L bytes
// in 16 bits.
inline std::vector<SwapOperator> paper_swap_operators(const Problem& problem) {
  const auto tokens = static_cast<double>(problem.workload.micro_batch * problem.workload.sequence);
  const double h = static_cast<double>(problem.model.hidden);
  const double s = static_cast<double>(problem.workload.sequence);
  const double one = tokens * h * static_cast<double>(problem.activation_bytes());  // 2 s b h
  const double product = 2 * tokens * h * h;  // of an output of width h
  const std::vector<SwapOperator> of_layer = {
      {"mlp-proj", 0, saved_none, 4 * product, one},
      {"attn-proj", 0, gpt_saved::residual, product, one},
      {"qkv", 0, gpt_saved::qkv, 3 * product, 3 * one},
      {"fc", 0, gpt_saved::fc, 4 * product, 4 * one},
      {"attention", 0, gpt_saved::attention, 4 * tokens * s * h, one},
      {"norms", 0, gpt_saved::ln1 | gpt_saved::ln2, 0, 2 * one},
      {"gelu", 0, gpt_saved::gelu, 0, 4 * one}};
  std::vector<SwapOperator> all;
  for (SwapOperator operation : of_layer) {
    for (operation.layer = 0; operation.layer < problem.model.layers; ++operation.layer)
      all.push_back(operation);
  }
  return all;
}

// Eq. 7: FLOP_r when `swapped` bytes of the operators, in their order, are kept and
// `recomputed_flops` would be recomputed without any.
inline double recomputed_flops(const std::vector<SwapOperator>& in_order,
                               double all_recomputed_flops, double swapped) {
  double flops = all_recomputed_flops;
  for (const SwapOperator& one : in_order) {
    if (swapped < one.bytes) return flops - one.flops * swapped / one.bytes;
    flops -= one.flops;
    swapped -= one.bytes;
  }
  return flops;
}

// The step with nothing but `inter_block_bytes` swapped, and with each prefix of the operators.
struct SwapPoint {
  double swapped = 0;  // bytes, the inter-block activations included
  double recomputed_flops = 0;
  double seconds = 0;
};
inline std::vector<SwapPoint> swap_curve(const SwapModel& model,
                                         const std::vector<SwapOperator>& in_order,
                                         double all_recomputed_flops) {
  SwapPoint at{model.inter_block_bytes, all_recomputed_flops, 0};
  at.seconds = step_seconds(model, at.swapped, at.recomputed_flops);
  std::vector<SwapPoint> curve = {at};
  for (const SwapOperator& one : in_order) {
    at.swapped += one.bytes;
    at.recomputed_flops -= one.flops;
    at.seconds = step_seconds(model, at.swapped, at.recomputed_flops);
    curve.push_back(at);
  }
  return curve;
}

// The paper's three cases: where the curve has its least value.
enum class SwapCase : std::uint8_t {
  inter_block = 1,  // at its start: the links set the time
  everything = 2,   // where no FLOP is left to be saved: the GPU does
  between = 3
};
inline SwapCase swap_case(const std::vector<SwapPoint>& curve) {
  const auto least = std::min_element(
      curve.begin(), curve.end(),
      [](const SwapPoint& a, const SwapPoint& b) { return a.seconds < b.seconds; });
  if (least == curve.begin()) return SwapCase::inter_block;
  return least->recomputed_flops > curve.back().recomputed_flops ? SwapCase::between
                                                                 : SwapCase::everything;
}

}  // namespace spillway::test
