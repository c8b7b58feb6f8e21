// A step of a pipeline as a Chrome trace, for Perfetto: a process for each pipeline with a track
// for each GPU, and one for the WAN.
#pragma once

#include <string>

#include "experiments/pipelines/pipeline_plan.hpp"
#include "experiments/pipelines/prefill.hpp"

namespace spillway {

// JSON text. `prefills`: those of the first step are shown, too; null: none. The plan has a result.
std::string pipeline_trace(const PipelinePlan& plan, const PrefillResult* prefills);

}  // namespace spillway
