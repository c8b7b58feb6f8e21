// A model trained as a pipeline over data centres: where its stages lie, what they take, what fits.
//
// A worker is `tensor` GPUs of a node, over which each layer is split (tensor parallelism); a node
// has as many workers as that makes. A pipeline is `gpus` workers in a row, one for each place;
// there are `replicas` of it, each on its share of the batch. All replicas of a place are in one
// data centre, side by side, so that no gradient sum crosses the WAN (Algorithm 1 of ATLAS as
// Sailor's authors have rebuilt it, eth-easl/sailor, Planner/baselines/Atlas).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "policies/pipeline/data_centers.hpp"
#include "policies/pipeline/orders.hpp"
#include "policies/workload/problem.hpp"
#include "sim/pipeline.hpp"

namespace spillway {

// The machine is a node, with what its `cluster` says of links between GPUs and between nodes.
struct PipelineRequest {
  Problem problem;  // the batch is that of all replicas; Workload::ranks is not looked at
  DataCenters centers;
  int gpus = 1;      // workers of a pipeline
  int replicas = 1;  // pipelines
  int tensor = 1;    // GPUs of a worker; divides machine.cluster.gpus
  // Layers keep their inputs alone, and recompute the rest. Nothing: where all does not fit.
  std::optional<bool> recompute;
  // Of an order that shares the WAN in turns: pipelines that do so together. 0: the divisor of
  // `replicas` next to C, a transfer over the WAN in forward passes (ATLAS' cells).
  int cell = 0;
  bool sends_wait = false;  // PipelineTimes::sends_wait
  std::uint64_t seed = 0;   // of the links' jitter
};

struct PipelineMemory {
  // Of the GPU that needs most.
  double parameters = 0, gradients = 0, optimizer_state = 0, activations = 0, working = 0;
  double needed = 0, capacity = 0;
  bool fits() const { return needed <= capacity; }
};

struct PipelinePlan {
  PipelineRequest request;
  std::string order;
  PipelineShape shape;
  PipelineTimes times;
  std::vector<int> center_of;  // by place in the pipeline: the data centre's index
  std::vector<int> layers_of;  // by stage
  int cell = 1;
  bool recomputes = false;
  double wan_forwards = 0;  // C: the longest transfer over the WAN, alone, in forward passes
  int held = 0;             // micro-batches of a stage, over its chunks, that a GPU holds at most
  PipelineMemory memory;
  // Nothing where it does not fit.
  std::optional<PipelineResult> result;

  double tokens_per_second() const;
};

// The data centre of each place: places in a row go to one, as many as it has room for; data
// centres in the order given. Nothing: there is not room for all, or no link from one to the next.
std::optional<std::vector<int>> place_stages(const DataCenters& centers, int gpus, int replicas,
                                             int workers_per_node);

// Seconds of a layer's sums over the GPUs of a worker on one micro-batch, of which forward has two
// and backward two (Shoeybi et al., "Megatron-LM", 2019, Sec. 3): of either.
double tensor_sum_seconds(const Problem& problem, int tensor);

// Throws InputError where the request makes no sense, or there is no room.
PipelinePlan plan_pipeline(const PipelineRequest& request, const PipelineOrder& order);
// With the fastest micro-batch of 1, 2, 4 .. 32 sequences that fits; nothing where the order suits
// none that the batch divides into.
std::optional<PipelinePlan> plan_pipeline_at_its_best(PipelineRequest request,
                                                      const PipelineOrder& order);

}  // namespace spillway
