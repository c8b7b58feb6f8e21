#include "experiments/papers/pipeline_points.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/errors.hpp"
#include "experiments/pipelines/prefill.hpp"
#include "experiments/pipelines/stage_pipeline.hpp"
#include "experiments/pipelines/wan_map.hpp"
#include "policies/machine/config_field.hpp"
#include "policies/machine/field_reader.hpp"

namespace spillway {

namespace {

void set_all(const std::vector<Field>& fields, const std::vector<std::string>& settings) {
  for (const std::string& setting : settings) {
    const auto [key, value] = split_assignment(setting, "");
    set_field(fields, key, value);
  }
}

PipelineValue wan_speed_up(const std::vector<std::string>& settings) {
  WanMapAxes axes;
  double ratio = 1;
  std::int64_t micro_batches = 16, centers = 2, held = 0, stages = axes.stages_of_center,
               most_cell = axes.most_cell;
  set_all({number_field("ratio", ratio), count_field("micro_batches", micro_batches),
           count_field("centers", centers), count_field("held", held),
           count_field("stages", stages), number_field("flows_gain", axes.flows_gain),
           number_field("latency", axes.latency), count_field("most_cell", most_cell)},
          settings);
  if (!(ratio > 0) || micro_batches < 1 || centers < 2 || stages < 1 || most_cell < 1 ||
      !(axes.flows_gain >= 1))
    throw InputError("a point of ATLAS needs a ratio, micro_batches, 2 centers, stages",
                     "give each above zero");
  axes.ratios = {ratio};
  axes.micro_batches = {static_cast<int>(micro_batches)};
  axes.centers = {static_cast<int>(centers)};
  axes.held = {static_cast<int>(held)};
  axes.stages_of_center = static_cast<int>(stages);
  axes.most_cell = static_cast<int>(most_cell);
  const std::optional<double> over = wan_map(axes).front().over_fastest();
  if (!over) throw InputError("no order holds so few micro-batches", "let GPUs hold more");
  const double passes = 3;  // forward and backward, in forward passes
  return {*over, std::max(passes, ratio * axes.flows_gain) / std::max(passes, ratio)};
}

PipelineValue prefill_utilization(const std::string& order,
                                  const std::vector<std::string>& settings) {
  PipelineRequest request;
  PrefillSettings prefill;
  WanLink link;
  std::string model, machine, inference;
  std::int64_t centers = 2, nodes = 1, pipeline = 2, replicas = 1, tensor = 1, least = 256,
               most = 4096, gpus = 1, steps = 3, seed = 0;
  double rate = 0;
  Workload& workload = request.problem.workload;
  set_all({text_field("model", model, ""),
           text_field("machine", machine, ""),
           text_field("inference", inference, ""),
           count_field("centers", centers),
           count_field("nodes", nodes),
           nanoseconds_field("rtt", link.rtt_ns),
           bytes_field("window", link.window),
           count_field("flows", link.flows),
           bandwidth_field("pair", link.pair),
           count_field("pipeline", pipeline),
           count_field("replicas", replicas),
           count_field("tensor", tensor),
           count_field("batch", workload.batch),
           count_field("micro_batch", workload.micro_batch),
           count_field("sequence", workload.sequence),
           number_field("rate", rate),
           count_field("least_tokens", least),
           count_field("most_tokens", most),
           count_field("prefill_pipeline", gpus),
           nanoseconds_field("guard", prefill.guard_ns),
           count_field("steps", steps),
           count_field("seed", seed)},
          settings);
  if (link.rtt_ns < 1 || link.window < 1 || link.flows < 1 || !(link.pair > 0) || !(rate > 0) ||
      least < 1 || most < least || gpus < 1 || steps < 1)
    throw InputError("a point of prefills lacks rtt, window, pair, rate or tokens",
                     "give each above zero");
  request.problem.model = load_model(model);
  request.problem.machine = load_machine(machine);
  prefill.model = load_model(inference);
  request.centers.name = fmt::format("{} data centres", centers);
  for (std::int64_t c = 0; c < centers; ++c) {
    request.centers.centers.push_back({fmt::format("{}", c), nodes});
    for (const auto& [from, to] : {std::pair(c, c + 1), std::pair(c + 1, c)}) {
      link.from = fmt::format("{}", from);
      link.to = fmt::format("{}", to);
      request.centers.links.push_back(link);
    }
  }
  request.gpus = static_cast<int>(pipeline);
  request.replicas = static_cast<int>(replicas);
  request.tensor = static_cast<int>(tensor);
  prefill.gpus = static_cast<int>(gpus);
  prefill.steps = static_cast<int>(steps);
  const PipelinePlan plan = plan_pipeline(request, PipelineOrder(order));
  if (!plan.result) throw InputError("the pipeline does not fit", "take more GPUs");
  const auto requests = poisson_requests(rate, least, most, plan.result->step_ns * steps,
                                         static_cast<std::uint64_t>(seed));
  const PrefillResult result = place_prefills(plan, prefill, requests);
  return {result.all_busy, result.offered_busy};
}

}  // namespace

const char* pipeline_closed_form_text(Quantity quantity) {
  switch (quantity) {
    case Quantity::seconds_per_micro_batch:
      return "(M + P - 1) passes and a message each way";
    case Quantity::wan_speed_up:
      return "max(F + B, one flow's transfer) over max(F + B, a transfer)";
    case Quantity::prefill_utilization:
      return "all requests' work, as far as there is time";
    default:
      SPILLWAY_ASSERT(false, to_string(quantity));
  }
}

PipelineValue pipeline_value(Quantity quantity, const std::string& order,
                             const std::vector<std::string>& settings) {
  switch (quantity) {
    case Quantity::seconds_per_micro_batch: {
      const StagePipeline pipeline = stage_pipeline(settings);
      return {pipeline.seconds_per_micro_batch(PipelineOrder(order)), pipeline.closed_form()};
    }
    case Quantity::wan_speed_up:
      return wan_speed_up(settings);
    case Quantity::prefill_utilization:
      return prefill_utilization(order, settings);
    default:
      SPILLWAY_ASSERT(false, to_string(quantity));
  }
}

}  // namespace spillway
