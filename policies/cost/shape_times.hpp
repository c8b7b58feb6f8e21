// How long a compute task runs on a GPU whose kernels were not measured, by the shapes of its
// products.
//
// gpu.flops is what large products reach. One of (M, N) outputs with K multiply-adds each takes the
// longest of
//
//   compute   where gpu.multiprocessors is known, waves of tiles (below); with [[gpu.by_shape]]
//             FLOPs / (flops x share) in their place; else FLOPs / flops
//   memory    (M K + K N + M N) elements / gpu.memory_bandwidth: each is read or written once
//
// Tiles: a multiprocessor computes one tile of outputs at a time, all of them one wave, and the
// last wave takes as long as a full one (tile and wave quantisation: NVIDIA, Matrix Multiplication
// Background User's Guide, DU-09799, 3.1 and 3.2). cuBLAS chooses among tiles: those of 256 x 128
// are the fastest, smaller ones read their operands more often (2.3); and it may cut K into parts
// whose sums are added up (CUBLASLT_ALGO_CONFIG_SPLITK_NUM). The fastest choice is taken.
//
// Attention takes its FLOPs / gpu.attention_flops, which is that of heads of 128 columns; others
// take (1 + 25/W) / (1 + 25/128) times as long at a width of W, for the exponential of a score
// takes as long however wide the head is (FlashAttention-2, arXiv 2307.08691, figures 4 to 7: at 64
// columns 0.85 times the rate at 128). Without that key it goes at gpu.flops.
//
// gpu.clock scales both rates. Norms and elementwise functions count nothing: gpu.flops is that of
// a whole layer.
#pragma once

#include <cstdint>
#include <map>

#include "policies/model/operators.hpp"
#include "policies/schedule/task.hpp"
#include "policies/workload/problem.hpp"

namespace spillway {

// Sequences of a micro-batch that one kernel works on: in our own framework what training on a GPU
// has (Problem::use_gpu_sequences_at_once), in others the whole micro-batch.
std::int64_t sequences_of_kernel(const Problem& problem);

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
  double backward_seconds(const LayerOperator& one) const;
  double attention_seconds(double flops) const;
  double share_at(std::int64_t tokens) const;
  double quantised_seconds(const ProductShape& shape) const;

  const Problem& problem_;
  const Machine::Gpu& gpu_;
  const double flops_;                     // per second, at the clock that is kept
  const std::int64_t sequences_, tokens_;  // of one kernel
  std::map<std::int64_t, std::map<std::int64_t, double>> shares_;  // by hidden size, by tokens
};

}  // namespace spillway
