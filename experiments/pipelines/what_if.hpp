// What-if over data centres: which of them to train in, in how many pipelines of how many GPUs.
//
// Every set of the data centres that links join to a row, those with the most nodes as early in it
// as links allow; every number of GPUs of a pipeline up to the layers that gives each stage as many
// layers; every number of replicas and every micro-batch that the batch divides into and the data
// centres have room for. Source: Algorithm 1 of ATLAS as Sailor's authors have rebuilt it; the
// degrees and the models of time and memory are ours.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "experiments/pipelines/pipeline_plan.hpp"

namespace spillway {

struct PipelineChoice {
  std::vector<std::string> centers;
  int gpus = 0, replicas = 0;
  std::int64_t micro_batch = 0;
  int cell = 1;
  bool recomputes = false;
  double step_seconds = 0, tokens_per_second = 0, busy = 0, wan_forwards = 0;
  std::int64_t workers = 0;  // that train
};

struct WhatIf {
  std::vector<PipelineChoice> choices;  // that fit, the fastest first
  std::size_t tried = 0;                // simulated, or found not to fit
};

// Called with how many are done, and of how many.
using WhatIfProgress = std::function<void(std::size_t, std::size_t)>;

// `request`: its data centres, and what is the same in all choices: tensor parallelism, whether
// layers recompute, the cell where it is given. Its degrees and its micro-batch are not looked at.
// `micro_batches`: sequences of a micro-batch that are tried.
WhatIf what_if(const PipelineRequest& request, const PipelineOrder& order,
               const std::vector<std::int64_t>& micro_batches, const WhatIfProgress& progress = {});

}  // namespace spillway
