// Which activations inside the layers are worth swapping: saved in forward, offloaded to host
// memory (what does not fit there, to the SSD) and fetched for backward, instead of being
// recomputed.
//
// Source: Ratel (ICDE 2025; LoHan, arXiv 2403.06504v2), section IV-D, equations 1 to 6 and
// Algorithm 1. Every function here is one of them and depends on its arguments alone. What the
// paper calls a layer is an operator inside one of ours; its output is swapped as a whole or not at
// all.
//
// A rate or a time of 0 means not given, and limits nothing. Bytes and FLOPs are of one
// micro-batch.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "policies/cost/costs.hpp"
#include "policies/model/saved.hpp"

namespace spillway {

// An operator of one layer whose output may be swapped.
struct SwapOperator {
  std::string name;  // "qkv"
  int layer = 0;
  SavedMask tensors = 0;  // mask of saved_tensors() that makes up the output
  double flops = 0;       // what backward need not recompute if it is kept
  double bytes = 0;       // without padding
};

// The operators of every layer as Spillway runs it, those of the fewest bytes first, which is a
// GPT's order of the authors' priority (attn-proj, qkv, fc) where FLOPs per byte are equal: of each
// operator layers 0 .. L-1. The down-projection is not among them: nothing in our backward reads
// its output, and it is recomputed only where frameworks that re-run whole layers are imitated.
std::vector<SwapOperator> swap_operators(const Problem& problem);

// A_interBlock = 2 s b h L bytes in 16 bits: one activation per layer.
double paper_inter_block_bytes(const Problem& problem);

// Eq. 6: FLOPs saved per byte swapped; of operators without bytes, infinite.
double offload_benefit(const SwapOperator& one);
// In falling order of that; ties keep their order.
std::vector<SwapOperator> by_benefit(std::vector<SwapOperator> operators);

// Which of the optimizer's time on the SSDs passes under backward: the three pipelines of fuyou.
enum class OptimizerOverlap : std::uint8_t {
  all,     // the paper's: Eq. 5
  writes,  // the GPU waits for what is read
  nothing  // it comes after backward
};

// What equations 2 to 5 know of a step. Times of the GPU are of one micro-batch.
struct SwapModel {
  double gpu_forward = 0;      // FLOP_f / THP_G, seconds
  double gpu_backward = 0;     // 2 FLOP_f / THP_G, seconds: where nothing is recomputed
  double gpu_head = 0;         // of the head, forward and backward; in backward (not in the paper)
  double gpu_flops = 0;        // THP_G, FLOP/s, of what is recomputed
  double link = 0;             // BW_G: PCIe, one direction, bytes/s
  DriveRates drives;           // BW_S2M, BW_M2S; the paper's law: times add
  double parameter_bytes = 0;  // 2P in 16 bits
  double state_bytes = 0;      // 12P; 8P with 16-bit moments
  double gradient_bytes = 0;   // 2P
  double host_available_bytes = 0;  // MEM_avail
  double inter_block_bytes = 0;     // A_interBlock
  int micro_batches = 1;            // the paper's: 1; with more, each has its T_f and T_b
  OptimizerOverlap overlap = OptimizerOverlap::all;
};
SwapModel swap_model(const Problem& problem, const Costs& costs, double host_available_bytes);

// Eq. 3: the bytes alpha A_G2M that do not fit into host memory, 0 <= alpha <= 1.
double spilled_bytes(const SwapModel& model, double swapped);
// Eq. 2: T_f.
double forward_seconds(const SwapModel& model, double swapped);
// Eq. 5: T_b, with the optimizer's traffic under it: all of it (of the last micro-batch), what it
// writes, or none.
double backward_seconds(const SwapModel& model, double swapped, double recomputed_flops,
                        OptimizerOverlap overlap);
// Eq. 1: T_f + T_b; over all micro-batches.
double step_seconds(const SwapModel& model, double swapped, double recomputed_flops);
// Algorithm 1: the prefix of `in_order` after which the step no longer gets faster, but at least
// what makes A_interBlock bytes, without which the GPU runs out of memory, whatever the time.
// `swapped` bytes are decided on before: none in the paper, the inter-block activations here.
std::vector<SwapOperator> choose_swaps(const SwapModel& model,
                                       const std::vector<SwapOperator>& in_order, double swapped,
                                       double all_recomputed_flops);
// The longest prefix of at most `bytes`.
std::vector<SwapOperator> swaps_within(const std::vector<SwapOperator>& in_order, double bytes);

// By layer: the tensors to keep.
std::vector<SavedMask> swap_masks(const std::vector<SwapOperator>& swapped, std::int64_t layers);

}  // namespace spillway
