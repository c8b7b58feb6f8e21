// Points of papers on pipelines: what their settings, KEY=VALUE, come to. There is no policy's
// schedule behind them, but an order of passes (policies/pipeline/orders.hpp).
#pragma once

#include <string>
#include <vector>

#include "experiments/papers/paper.hpp"

namespace spillway {

struct PipelineValue {
  double value = 0;  // in the quantity
  double closed_form = 0;
};

// seconds_per_micro_batch: settings are those of stage_pipeline().
// wan_speed_up: ATLAS over the fastest of GPipe, 1F1B and Varuna on one TCP flow (wan_map.hpp);
//   settings: ratio, micro_batches, centers, held, stages, flows_gain, latency, most_cell. The
//   closed form is that of links and GPUs that are never idle.
// prefill_utilization: share of the time in which GPUs compute, with prefills (prefill.hpp);
//   settings: model, machine, inference, centers, nodes, rtt, window, flows, pair, pipeline,
//   replicas, tensor, batch, micro_batch, sequence, rate, least_tokens, most_tokens,
//   prefill_pipeline, guard, steps, seed.
// Of a key that is given twice the last one counts. Throws InputError.
PipelineValue pipeline_value(Quantity quantity, const std::string& order,
                             const std::vector<std::string>& settings);

// What its closed form is, in words.
const char* pipeline_closed_form_text(Quantity quantity);

}  // namespace spillway
