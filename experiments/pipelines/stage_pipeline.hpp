// A pipeline of stages that are all alike, with a WAN before the GPU in its middle: for
// publications that give the times of stages and no model.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "policies/pipeline/orders.hpp"

namespace spillway {

struct StagePipeline {
  std::int64_t gpus = 2, micro_batches = 1;
  // Of all that a GPU has, whatever its chunks.
  std::int64_t forward_ns = 0, backward_ns = 0, weights_ns = 0, recompute_ns = 0;
  bool sends_wait = false;  // PipelineTimes::sends_wait
  // Of the WAN, in forward passes: its latency one way, and a transfer's time.
  double latency = 0, transfer = 0;

  double seconds_per_micro_batch(const PipelineOrder& order) const;
  // What two lines say: (M + P - 1) (F + B) and one message there and one back, over M.
  double closed_form() const;
};

// From KEY=VALUE: gpus, micro_batches, forward, backward, weights, recompute, sends_wait, and wan,
// which is LATENCY/TRANSFER. Of a key that is given twice the last one counts. Throws InputError.
StagePipeline stage_pipeline(const std::vector<std::string>& settings);

}  // namespace spillway
