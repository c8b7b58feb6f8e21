// How long a compute task runs on a GPU whose kernels were not measured, by the shapes of its
// products.
//
// A large product goes at gpu.flops x gpu.product_gain. One of (M, N) outputs with K multiply-adds
// each takes the longest of
//
//   compute   where gpu.multiprocessors is known, waves of tiles (below); with [[gpu.by_shape]]
//             FLOPs / (gpu.flops x share) in their place; else FLOPs / that rate
//   memory    (M K + K N + M N) elements / gpu.memory_bandwidth: each is read or written once
//
// Tiles: a multiprocessor computes one tile of outputs at a time, all of them one wave, and the
// last wave takes as long as a full one (tile and wave quantisation: NVIDIA, Matrix Multiplication
// Background User's Guide, DU-09799, 3.1 and 3.2). cuBLAS chooses among tiles: those of 256 x 128
// are the fastest, smaller ones read their operands more often (2.3); and it may cut K into parts
// whose sums are added up (CUBLASLT_ALGO_CONFIG_SPLITK_NUM). The fastest choice is taken.
//
// Attention takes its FLOPs / gpu.attention_flops, which is that of heads of 128 columns and
// sequences of 2048 tokens; others take
//   (1 + 25/W) / (1 + 25/128) times as long at a width of W, for the exponential of a score takes
//              as long however wide the head is: at 64 columns 0.86 times the rate at 128
//   (1 + 550/T) / (1 + 550/2048) times as long at T tokens, for tiles on the diagonal are computed
//              whole: 0.65 of the rate of long sequences at 1024, 0.79 at 2048
// (FlashAttention-2, arXiv 2307.08691, figures 4 to 7, with a causal mask). Without that key
// attention goes at gpu.flops.
//
// With gpu.product_gain, what is left of a layer takes time, too: norms, GELU or SwiGLU, rotation,
// sums of biases, and the head's norm and cross entropy read and write their elements at nine
// tenths of gpu.memory_bandwidth (a copy on an H200: 4.3 of 4.8 TB/s), and each kernel takes 0.3
// gpu.launch to start and to end on the GPU. A hidden size of 768 has seven times as many of these
// elements a FLOP as one of 5120. Without that key gpu.flops is of a whole layer, beside which they
// count nothing.
//
// Another framework fuses nothing (PyTorch, operator by operator): residuals are added, values
// dropped and heads transposed in passes of their own, forward and backward. Where gpu.flops is of
// a product (gpu.product_gain is 1) they add to its time. Where it is of a transformer block (the
// gain is larger), the framework reaches gpu.flops with them in a layer of 5120 columns, as Ratel's
// did when the rate of an RTX 4090 was measured, so its products count as faster by as much as
// these passes take there, and in a wider layer by as much as they take in it; narrower ones, in
// which the passes weigh more, are slower than our own. No task of another framework is faster than
// our own program's: fuller waves of tiles, which its larger kernels have, are no gain. What else a
// framework adds is its compute.time.
//
// gpu.clock scales the rates of products and attention.
#pragma once

#include <cstdint>
#include <map>
#include <memory>

#include "policies/model/operators.hpp"
#include "policies/schedule/task.hpp"
#include "policies/workload/problem.hpp"

namespace spillway {

// Sequences of a micro-batch that one kernel works on: in our own framework what training on a GPU
// has (Problem::use_gpu_sequences_at_once), in others the whole micro-batch.
std::int64_t sequences_of_kernel(const Problem& problem);

// How many times as long attention takes a FLOP with heads of so many columns and sequences of so
// many tokens as with those that gpu.attention_flops is of.
double attention_slowdown(std::int64_t head_width, std::int64_t tokens);

// A product of (rows, depth) by (depth, columns).
struct ProductShape {
  std::int64_t rows = 0, columns = 0, depth = 0;
};

// Remembers nothing: who asks often keeps the answers.
class ShapeTimes {
 public:
  // Keeps a reference to the problem.
  explicit ShapeTimes(const Problem& problem);
  // Whether the machine file says more of the GPU's rate than gpu.flops.
  bool known() const;
  // Of a layer's forward or backward, or of a head that makes gradients, without what adapters move
  // in memory (KernelTimes).
  double seconds(const Task& task) const;
  // Of one product of a layer or of the head; `tokens` is the one among its sizes that depends on
  // the batch, for the table of shapes.
  double product_seconds(const ProductShape& shape, std::int64_t tokens) const;

 private:
  double layer_seconds(const Task& task) const;
  double head_seconds() const;
  double forward_seconds(const LayerOperator& one, double flops) const;
  double backward_seconds(const LayerOperator& one, bool weights) const;
  double weight_gradient_seconds(const LayerOperator& one) const;
  ProductShape of_matrix(const LayerOperator& one) const {
    return {one.outputs, one.inputs, tokens_};
  }
  double attention_seconds(double flops) const;
  double moving_seconds(double elements) const;
  double product_rate() const;
  // Elements of one operator's passes that only another framework has.
  double passes_of_others(const LayerOperator& one, bool is_backward) const;
  double share_at(std::int64_t tokens) const;
  double quantised_seconds(const ProductShape& shape) const;

  const Problem& problem_;
  const Machine::Gpu& gpu_;
  const bool moves_;    // operators beside products and attention take time
  const double flops_;  // per second, of whole layers or, with a gain, of products
  const std::int64_t sequences_, tokens_;                          // of one kernel
  std::map<std::int64_t, std::map<std::int64_t, double>> shares_;  // by hidden size, by tokens
  // Of the same problem in our own framework, where the problem is in another: no task takes less.
  std::shared_ptr<const Problem> own_problem_;
  std::shared_ptr<const ShapeTimes> own_;
};

}  // namespace spillway
