// What a step takes of the machine whatever the plan: seconds of its compute tasks, bytes of its
// tensors, and how work of each kind draws on the machine's resources.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "policies/cost/costs.hpp"
#include "policies/model/saved.hpp"
#include "policies/workload/problem.hpp"

namespace spillway {

// Kinds of work whose amount in a step is a choice of the plan: parameters updated, and bytes.
enum class Flow : std::uint8_t { gpu_update, cpu_update, h2d, d2h, read, write };
inline constexpr std::size_t flow_count = 6;
constexpr std::size_t index_of(Flow flow) { return static_cast<std::size_t>(flow); }

// A choice of what forward saves in a layer, of one micro-batch.
struct SaveChoice {
  SavedMask mask = 0;
  double bytes = 0, backward_seconds = 0;
};

// A resource that kinds of work share, beside the lanes of each.
struct SharedResource {
  std::string name;
  double seconds_of_compute = 0;                // of the resource, by a second of compute
  std::array<double, flow_count> seconds_of{};  // by a unit of each kind of work
};

struct StepAmounts {
  explicit StepAmounts(const Problem& problem);

  double layers = 0, micro_batches = 0;
  double backward_layers = 0;  // that are not frozen
  // Of one layer; of the embedding; of the head, 0 where it is tied. Of several ranks, the part
  // that each has at the least.
  double layer_elements = 0, embedding_elements = 0, head_elements = 0;
  double state_elements = 0;                                        // of all units
  double parameter_bytes = 0, gradient_bytes = 0, state_bytes = 0;  // of an element
  double checkpoint = 0;  // bytes of a layer's input, of one micro-batch

  // Seconds of compute tasks of one micro-batch: of a layer; of the last layer's backward, which
  // may save all it likes; of the head and of the embedding. The first backward of the embedding in
  // a step clears its gradient, too.
  double forward = 0, last_backward = 0, head = 0;
  double embed_forward = 0, embed_backward = 0, embed_clear = 0;
  double norm = 0;  // seconds of the norm of a layer's gradient on the GPU, where norms are taken
  bool updates_wait = false;
  // From the fewest bytes to the least time: no mask is better than a mix of two of these.
  std::vector<SaveChoice> saves;

  // GPU memory that a forward and a backward task take beside parameters, gradients, and the input:
  // output or its gradient, what is saved, and scratch. The least over all masks.
  double forward_working = 0, backward_working = 0;

  double gpu_memory = 0, host_memory = 0, ssd_memory = 0;
  std::array<double, flow_count> lane_seconds{};  // of the lane, by a unit; 0: not limited
  std::vector<SharedResource> shared;

  double all_layer_elements() const { return layers * layer_elements; }
  double outer_elements() const { return embedding_elements + head_elements; }
  bool is_tied() const { return head_elements == 0; }
  // Of the gradient that the loss adds to.
  double head_sum() const { return is_tied() ? embedding_elements : head_elements; }
  // Seconds of compute in a step with the least recomputation.
  double least_compute() const;
  // About as long as a step may take, for numbers of a linear program to be near one.
  double about_a_step() const;

 private:
  void find_seconds(const Problem& problem, const Costs& costs);
  void find_saves(const Problem& problem, const Costs& costs);
  void find_flows(const Costs& costs);
};

}  // namespace spillway
