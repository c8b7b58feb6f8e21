#include "experiments/pipelines/stage_pipeline.hpp"

#include <fmt/format.h>

#include <cmath>
#include <cstdio>

#include "base/errors.hpp"
#include "policies/machine/config_field.hpp"
#include "policies/machine/field_reader.hpp"
#include "sim/pipeline.hpp"

namespace spillway {

namespace {

Field wan_field(StagePipeline& pipeline) {
  Field field;
  field.key = "wan";
  field.example = "\"0.25/2\"";
  field.set = [&pipeline](const std::string& text) {
    char rest = 0;
    if (std::sscanf(text.c_str(), "%lf/%lf%c", &pipeline.latency, &pipeline.transfer, &rest) != 2 ||
        !(pipeline.latency >= 0) || !(pipeline.transfer >= 0))
      throw InputError(fmt::format("wan '{}' is not LATENCY/TRANSFER in forward passes", text),
                       "write for example 0.25/2");
  };
  field.get = [&pipeline] { return fmt::format("{:g}/{:g}", pipeline.latency, pipeline.transfer); };
  return field;
}

std::vector<Field> fields_of(StagePipeline& pipeline) {
  return {count_field("gpus", pipeline.gpus),
          count_field("micro_batches", pipeline.micro_batches),
          nanoseconds_field("forward", pipeline.forward_ns),
          nanoseconds_field("backward", pipeline.backward_ns),
          nanoseconds_field("weights", pipeline.weights_ns),
          nanoseconds_field("recompute", pipeline.recompute_ns),
          flag_field("sends_wait", pipeline.sends_wait),
          wan_field(pipeline)};
}

PipelineTimes times_of(const StagePipeline& pipeline, const PipelineShape& shape) {
  PipelineTimes times;
  StageTimes stage;
  stage.forward_ns = pipeline.forward_ns / shape.chunks;
  stage.backward_ns = pipeline.backward_ns / shape.chunks;
  stage.weight_ns = pipeline.weights_ns / shape.chunks;
  stage.recompute_ns = pipeline.recompute_ns / shape.chunks;
  times.stages.assign(static_cast<std::size_t>(shape.stages()), stage);
  times.outputs.resize(times.stages.size() - 1);
  times.gradients = times.outputs;
  times.sends_wait = pipeline.sends_wait;
  times.links = {{"WAN out", 0, false, 0}, {"WAN back", 0, false, 0}};
  const auto in_forwards = [&](double passes) {
    return passes * static_cast<double>(pipeline.forward_ns);
  };
  if (pipeline.latency == 0 && pipeline.transfer == 0) return times;
  const int middle = shape.gpus / 2;
  for (int s = 0; s + 1 < shape.stages(); ++s) {
    const bool before = shape.gpu_of(s) < middle;
    if (before == (shape.gpu_of(s + 1) < middle)) continue;
    StageHop hop{before ? 0 : 1, in_forwards(pipeline.transfer), 1e9,
                 std::llround(in_forwards(pipeline.latency))};
    times.outputs[static_cast<std::size_t>(s)] = hop;
    hop.link = 1 - hop.link;
    times.gradients[static_cast<std::size_t>(s)] = hop;
  }
  return times;
}

}  // namespace

double StagePipeline::seconds_per_micro_batch(const PipelineOrder& order) const {
  const PipelineShape shape = order.shape(static_cast<int>(gpus), static_cast<int>(micro_batches));
  const PipelineTimes times = times_of(*this, shape);
  const std::vector<PassOrder> orders = order.passes(shape, times);
  for (const PassOrder& one : orders) check_order(shape, one);
  return static_cast<double>(simulate_pipelines(shape, times, orders).step_ns) * 1e-9 /
         static_cast<double>(micro_batches);
}

double StagePipeline::closed_form() const {
  const double forward = static_cast<double>(forward_ns);
  const double pass = forward + static_cast<double>(backward_ns + recompute_ns);
  const double all =
      static_cast<double>(micro_batches + gpus - 1) * pass + 2 * (latency + transfer) * forward;
  return all * 1e-9 / static_cast<double>(micro_batches);
}

StagePipeline stage_pipeline(const std::vector<std::string>& settings) {
  StagePipeline pipeline;
  const std::vector<Field> fields = fields_of(pipeline);
  for (const std::string& setting : settings) {
    const auto [key, value] = split_assignment(setting, "");
    set_field(fields, key, value);
  }
  if (pipeline.gpus < 2 || pipeline.gpus > 4096 || pipeline.micro_batches < 1 ||
      pipeline.micro_batches > 1'000'000)
    throw InputError("a pipeline has 2 to 4096 gpus and 1 or more micro_batches", "give both");
  if (pipeline.forward_ns < 1 || pipeline.weights_ns > pipeline.backward_ns)
    throw InputError("a pipeline's forward takes no time, or weights take more than backward",
                     "give forward and backward, and of backward the weights' part");
  return pipeline;
}

}  // namespace spillway
