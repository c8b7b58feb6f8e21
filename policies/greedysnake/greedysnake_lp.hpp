// GreedySnake's performance model: one linear program per number of micro-batches and delayed
// fraction, and the search for the best fraction.
//
// Each pass of a unit (one layer) costs the most of compute, PCIe, SSD and CPU optimizer, whose
// times do not add; what rests on the SSD, and what of the activation gradients stays on the GPU,
// are the variables. Source: the public code of GreedySnake's first author (arXiv 2512.17570),
// its configuration search; solved here with GLPK. Not modelled there: DRAM bandwidth, latencies,
// and the start and end of a step. The equations are in docs/greedysnake.md.
//
// Deterministic; safe to call from several threads (GLPK keeps one environment per thread).
#pragma once

#include <optional>

#include "policies/cost/costs.hpp"

namespace spillway {

struct GreedySnakeInputs {
  double units = 0;                // L, layers
  double unit_parameters = 0;      // P, elements of one layer
  double activation_elements = 0;  // A, of one activation between layers of one micro-batch
  double forward_seconds = 0;      // f, one layer forward on one micro-batch
  double backward_seconds = 0;     // b, its backward without recomputation
  double other_seconds = 0;        // per micro-batch: embedding and head
  double gpu_memory = 0;           // bytes for activation gradients that stay on the GPU
  double host_memory = 0;          // bytes
  double pcie = 0;                 // bytes/s, one figure for both directions
  DriveRates drives;               // simplex (times add) is the authors' model
  double adam_rate = 0;            // elements/s of the CPU optimizer
  double gpus = 1;                 // W: each has its own activations; P, rates are of all
  double device_bytes = 2;         // d, bytes per parameter and activation element
  double gradient_bytes = 4;       // q, of the gradient accumulator
  double master_bytes = 4;         // m
  double moment_bytes = 4;         // bytes per Adam moment; the authors' is m
  double adam_states = 2;          // k
  // Delayed gradients that find no dead memory may have memory of their own, which (4) then counts;
  // the authors' program cannot, and alpha is limited by (5).
  bool stash_may_grow = false;
  // Fractions on the SSD that are given, not to be found.
  std::optional<double> checkpoints_ssd, parameters_ssd, optimizer_ssd;
};

struct GreedySnakePlan {
  int micro_batches = 1;
  double alpha = 0;         // delayed fraction of each unit's update
  double step_seconds = 0;  // L (t_f + t_b) + M other_seconds
  double unit_forward_seconds = 0, unit_backward_seconds = 0;         // t_f, t_b
  double checkpoints_ssd = 0, parameters_ssd = 0, optimizer_ssd = 0;  // x_c, x_p, x_o
  double gradients_gpu = 0;  // g, of the activation gradients between layers
};

// The fastest placement for `micro_batches` and `alpha`; nothing where no placement keeps the
// memory limits. Throws InputError naming an input that is not a positive number.
std::optional<GreedySnakePlan> solve_greedysnake(const GreedySnakeInputs& inputs, int micro_batches,
                                                 double alpha);

// The best alpha among 0.00, 0.01, .. 0.30 for `micro_batches`: a larger one replaces a smaller
// only where it makes at least 1 % more micro-batches per second.
std::optional<GreedySnakePlan> best_alpha(const GreedySnakeInputs& inputs, int micro_batches);

// The inputs for a problem: shapes of its model, times and rates as they cost, memory less what the
// schedule of policy greedysnake keeps there whatever the placement. Throws InputError where the
// machine lacks a rate.
GreedySnakeInputs greedysnake_inputs(const Problem& problem, const Costs& costs);

}  // namespace spillway
