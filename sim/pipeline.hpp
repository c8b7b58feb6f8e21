// Pipelines of stages, simulated: when each pass and each transfer runs, what the GPUs wait for.
//
// A pass has its GPU to itself. A transfer occupies a link for its bytes over its rate, or the fair
// share of the link's capacity, and arrives its latency later (CrossPipe, USENIX ATC 2025: messages
// queue on a link for the time of their bytes, and not for their latency); transfers of one
// pipeline and way arrive in the order in which they were sent. Pipelines that run together meet in
// links and, where a step ends, when the last of them has its updates done.
#pragma once

#include <cstdint>
#include <vector>

#include "policies/pipeline/pipeline_times.hpp"
#include "sim/engine.hpp"

namespace spillway {

struct PipelinePass {
  Pass pass;
  std::int64_t start_ns = 0, end_ns = 0;
};

struct PipelineTransfer {
  int pipeline = 0, link = 0;
  int from = 0, to = 0;  // stages
  std::int32_t micro_batch = 0;
  std::int64_t ready_ns = 0;              // the pass that it follows has ended
  std::int64_t start_ns = 0, end_ns = 0;  // on the link
  std::int64_t arrives_ns = 0;
};

struct PipelineResult {
  std::int64_t step_ns = 0;    // with updates
  std::int64_t passes_ns = 0;  // until the last pass ends
  // By pipeline and GPU: what it runs, in time.
  std::vector<std::vector<std::vector<PipelinePass>>> passes;
  std::vector<std::vector<std::int64_t>> updates_begin_ns,
      updates_end_ns;                       // by pipeline and GPU, sums come before
  std::vector<PipelineTransfer> transfers;  // of links, in order of pipeline and sender
  double busy = 0;  // share of the step in which a GPU runs passes, the mean of all GPUs
};

// Work of others on a GPU while its pipeline trains: it begins at `start_ns`, or later where the
// GPU is not free, right before the pass of that place in the GPU's order (at its end: before the
// updates).
struct GuestWork {
  int pipeline = 0, gpu = 0;
  std::size_t before = 0;
  std::int64_t start_ns = 0, duration_ns = 0;
};

// `seed`: of the links' jitter. `guests`: in order of their start. Throws InputError (BlockedError)
// where GPUs wait for each other for ever.
PipelineResult simulate_pipelines(const PipelineShape& shape, const PipelineTimes& times,
                                  const std::vector<PassOrder>& orders, std::uint64_t seed = 0,
                                  const std::vector<GuestWork>& guests = {});

}  // namespace spillway
