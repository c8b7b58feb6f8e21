// What the passes of a pipeline and the transfers between its stages take.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "policies/pipeline/passes.hpp"

namespace spillway {

// Of one micro-batch.
struct StageTimes {
  std::int64_t forward_ns = 0;
  std::int64_t backward_ns = 0;   // both parts, without recomputation
  std::int64_t weight_ns = 0;     // the part of it that the gradient of the weights takes
  std::int64_t recompute_ns = 0;  // forward again, before backward; 0: everything is kept
  // After the last backward pass of a step: gradients are summed over replicas, on the network
  // alone; then the GPU updates.
  std::int64_t sum_ns = 0, update_ns = 0;

  std::int64_t of(const Pass& pass) const;
};

// One way of a link between two groups of GPUs. Every pair of GPUs that follow each other over it
// has connections of its own; what all share is the capacity.
struct PipelineLink {
  std::string name;
  double capacity = 0;  // bytes/s that all transfers have together; 0: each has its own rate
  // The pipelines' transfers between two places take turns; else each pipeline's run beside the
  // others', one after the other.
  bool in_turns = false;
  // Mean of what a transfer comes later than its latency says, exponentially distributed.
  std::int64_t jitter_ns = 0;
};

// What moves between two stages that follow each other, of one micro-batch. It occupies the link
// for bytes / rate and arrives `latency_ns` after that.
struct StageHop {
  int link = -1;  // in PipelineTimes::links; -1: it takes no time
  double bytes = 0;
  double rate = 0;  // bytes/s of a transfer that is alone
  std::int64_t latency_ns = 0;
  // Nanoseconds on the link alone.
  std::int64_t transfer_ns() const;
};

struct PipelineTimes {
  std::vector<StageTimes> stages;
  std::vector<PipelineLink> links;
  // By the stage s before the boundary: outputs from s to s + 1, gradients from s + 1 to s.
  std::vector<StageHop> outputs, gradients;
  // Where first and last stage have a copy of the embedding each: the sum of both gradients, after
  // those over replicas.
  std::int64_t embedding_ns = 0;
  // A GPU that sends waits until what it sends has arrived, as blocking sends do that meet their
  // receiver (NCCL). Else it goes on with its next pass.
  bool sends_wait = false;
  int pipelines = 1;  // that run together, alike, and share the links
  // Micro-batches per chunk whose activations fit beside all else in the memory of every GPU; 0:
  // not known.
  int memory_holds = 0;

  // The hop that follows a pass of stage s, if any: of its output or of its input's gradient.
  const StageHop* hop_after(const Pass& pass) const;
};

}  // namespace spillway
