#include "cli/pipeline/pipeline_text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>

#include "base/units.hpp"

namespace spillway::cli {

namespace {

using nlohmann::ordered_json;

std::string seconds(std::int64_t ns) { return format_seconds(static_cast<double>(ns) * 1e-9); }

std::string recompute_text(bool recomputes) { return recomputes ? "yes" : "no"; }

// "4 in east, 4 in west"
std::string places_text(const PipelinePlan& plan) {
  std::string text;
  for (std::size_t c = 0; c < plan.request.centers.centers.size(); ++c) {
    const auto places =
        std::count(plan.center_of.begin(), plan.center_of.end(), static_cast<int>(c));
    if (places > 0)
      text += fmt::format("{}{} in {}", text.empty() ? "" : ", ", places,
                          plan.request.centers.centers[c].name);
  }
  return text;
}

std::string links_text(const DataCenters& centers) {
  std::string text;
  for (const WanLink& link : centers.links) {
    fmt::format_to(
        std::back_inserter(text),
        "  WAN {} to {}: {} there and back, {} TCP flow{} of a pair of nodes: {}{}\n", link.from,
        link.to, seconds(link.rtt_ns), link.flows, link.flows == 1 ? "" : "s",
        format_bytes_per_second(link.pair_rate()),
        link.total > 0 ? fmt::format(", {} in all", format_bytes_per_second(link.total)) : "");
  }
  return text;
}

std::string number_or_dash(const std::optional<double>& number, const char* form = "{:.2f}") {
  return number ? fmt::format(fmt::runtime(form), *number) : "-";
}

ordered_json json_or_null(const std::optional<double>& number) {
  return number ? ordered_json(*number) : ordered_json(nullptr);
}

}  // namespace

std::string text_of(const std::vector<PipelinePlan>& plans) {
  const PipelinePlan& first = plans.front();
  const PipelineRequest& request = first.request;
  const Workload& workload = request.problem.workload;
  std::string text = fmt::format(
      "{} on {}, {}: {} pipeline{} of {} worker{} ({}), {} GPU{} a worker\n"
      "  {} sequences of {} tokens a step, {} in each pipeline\n",
      request.problem.model.name, request.problem.machine.name, request.centers.name,
      request.replicas, request.replicas == 1 ? "" : "s", request.gpus,
      request.gpus == 1 ? "" : "s", places_text(first), request.tensor,
      request.tensor == 1 ? "" : "s", workload.batch, workload.sequence, first.shape.micro_batches,
      workload.micro_batch);
  text += links_text(request.centers);
  if (first.wan_forwards > 0)
    text +=
        fmt::format("  a transfer over the WAN takes as long as {:.2f} forward passes of a stage\n",
                    first.wan_forwards);
  text +=
      fmt::format("{:<28} {:>6} {:>10} {:>11} {:>9} {:>6} {:>10} {:>10} {:>10}\n", "order", "micro",
                  "step", "tokens/s", "computes", "holds", "recompute", "GPU needs", "of");
  double most = 0;
  for (const PipelinePlan& plan : plans) most = std::max(most, plan.tokens_per_second());
  for (const PipelinePlan& plan : plans) {
    const bool fits = plan.result.has_value();
    const bool is_fastest = fits && plans.size() > 1 && plan.tokens_per_second() == most;
    fmt::format_to(std::back_inserter(text),
                   "{:<28} {:>6} {:>10} {:>11} {:>9} {:>6} {:>10} {:>10} {:>10}{}\n", plan.order,
                   plan.request.problem.workload.micro_batch,
                   fits ? seconds(plan.result->step_ns) : "-",
                   fits ? fmt::format("{:.1f}", plan.tokens_per_second()) : "-",
                   fits ? fmt::format("{:.1f} %", 100 * plan.result->busy) : "does not", plan.held,
                   recompute_text(plan.recomputes), format_bytes(plan.memory.needed),
                   format_bytes(plan.memory.capacity),
                   is_fastest ? "  <- fastest"
                   : fits     ? ""
                              : "  does not fit");
    if (plan.cell > 1) text += fmt::format("  {} pipelines take turns on the WAN\n", plan.cell);
  }
  return text;
}

std::string text_of(const PipelineRequest& request, const std::string& order, const WhatIf& what_if,
                    std::size_t top) {
  std::string text =
      fmt::format("{} on {}, {}, order {}: {} of {} choices fit\n", request.problem.model.name,
                  request.problem.machine.name, request.centers.name, order, what_if.choices.size(),
                  what_if.tried);
  text += links_text(request.centers);
  if (what_if.choices.empty()) return text;
  text += fmt::format("{:>10} {:>10} {:>9} {:>8} {:>8} {:>6} {:>5} {:>9} {:>8}   {}\n", "tokens/s",
                      "step", "computes", "pipeline", "replicas", "micro", "cell", "recompute",
                      "workers", "data centres");
  for (std::size_t i = 0; i < std::min(top, what_if.choices.size()); ++i) {
    const PipelineChoice& one = what_if.choices[i];
    fmt::format_to(std::back_inserter(text),
                   "{:>10.1f} {:>10} {:>7.1f} % {:>8} {:>8} {:>6} {:>5} {:>9} {:>8}   {}\n",
                   one.tokens_per_second, format_seconds(one.step_seconds), 100 * one.busy,
                   one.gpus, one.replicas, one.micro_batch, one.cell,
                   recompute_text(one.recomputes), one.workers, fmt::join(one.centers, ", "));
  }
  return text;
}

std::string text_of(const PrefillSettings& settings, const std::vector<PrefillLoad>& loads) {
  const PrefillResult& first = loads.front().result;
  std::string text = fmt::format(
      "\nprefills of {} in the bubbles of {} steps, each through {} worker{}; {} of weights a "
      "GPU{}\n"
      "{:>10} {:>8} {:>8} {:>10} {:>12} {:>10} {:>10} {:>10} {:>12}\n",
      settings.model.name, settings.steps, settings.gpus, settings.gpus == 1 ? "" : "s",
      format_bytes(first.weight_bytes),
      first.weights_fit ? "" : ", WHICH DO NOT FIT beside what training needs", "a second",
      "requests", "placed", "computes", "with them", "tokens/s", "TTFT 50 %", "99 %", "train step");
  for (const PrefillLoad& load : loads) {
    const PrefillResult& one = load.result;
    fmt::format_to(std::back_inserter(text),
                   "{:>10} {:>8} {:>8} {:>8.1f} % {:>10.1f} % {:>10.0f} {:>10} {:>10} {:>12}\n",
                   load.rate > 0 ? fmt::format("{:g}", load.rate) : "file", one.requests,
                   one.placed.size(), 100 * one.training_busy, 100 * one.all_busy,
                   one.tokens_per_second, seconds(one.ttft_ns(0.5)), seconds(one.ttft_ns(0.99)),
                   one.passes_unchanged && one.slowest_step_ns == one.step_ns
                       ? "unchanged"
                       : fmt::format("+{} ns", one.slowest_step_ns - one.step_ns));
  }
  return text;
}

std::string text_of(const WanMapAxes& axes, const std::vector<WanMapRow>& rows) {
  std::string text = fmt::format(
      "ATLAS on many TCP flows, {} stages in each data centre, latency {:g} forward passes one "
      "way;\n"
      "others on one flow, {:g} times as slow; {}. C: a transfer on many flows, M: micro-batches,\n"
      "K: data centres, times in forward passes; -: the order holds more than memory does\n"
      "{:>3} {:>6} {:>5} {:>7} {:>5} {:>10} {:>9} {:>11} {:>11} {:>11} {:>13} {:>13} {:>15}\n",
      axes.stages_of_center, axes.latency, axes.flows_gain,
      axes.recomputes ? "backward recomputes" : "nothing is recomputed", "K", "memory", "M", "C",
      "cell", "ATLAS", "computes", "GPipe", "1F1B", "Varuna", "over fastest", "over slowest",
      "and many flows");
  for (const WanMapRow& row : rows) {
    fmt::format_to(std::back_inserter(text),
                   "{:>3} {:>6} {:>5} {:>7g} {:>5} {:>10} {:>7.1f} % {:>11} {:>11} {:>11} {:>13} "
                   "{:>13} {:>15}\n",
                   row.centers, row.held > 0 ? fmt::format("{}", row.held) : "all",
                   row.micro_batches, row.ratio, row.cell, number_or_dash(row.atlas, "{:.1f}"),
                   100 * row.atlas_busy, number_or_dash(row.baselines[0].one_flow, "{:.1f}"),
                   number_or_dash(row.baselines[1].one_flow, "{:.1f}"),
                   number_or_dash(row.baselines[2].one_flow, "{:.1f}"),
                   number_or_dash(row.over_fastest()), number_or_dash(row.over_slowest()),
                   number_or_dash(row.over_many_flows()));
  }
  return text;
}

ordered_json to_json(const PipelinePlan& plan) {
  const PipelineMemory& memory = plan.memory;
  ordered_json centers = ordered_json::array();
  for (const int center : plan.center_of)
    centers.push_back(plan.request.centers.centers[static_cast<std::size_t>(center)].name);
  ordered_json json = {{"order", plan.order},
                       {"fits", plan.result.has_value()},
                       {"stages", plan.shape.stages()},
                       {"micro_batch", plan.request.problem.workload.micro_batch},
                       {"micro_batches", plan.shape.micro_batches},
                       {"data_centers", centers},
                       {"layers", plan.layers_of},
                       {"cell", plan.cell},
                       {"recomputes", plan.recomputes},
                       {"wan_forwards", plan.wan_forwards},
                       {"held", plan.held},
                       {"memory",
                        {{"needed_bytes", memory.needed},
                         {"capacity_bytes", memory.capacity},
                         {"parameters_bytes", memory.parameters},
                         {"gradients_bytes", memory.gradients},
                         {"optimizer_state_bytes", memory.optimizer_state},
                         {"activations_bytes", memory.activations},
                         {"working_bytes", memory.working}}}};
  if (!plan.result) return json;
  json["step_ns"] = plan.result->step_ns;
  json["step_seconds"] = static_cast<double>(plan.result->step_ns) * 1e-9;
  json["passes_seconds"] = static_cast<double>(plan.result->passes_ns) * 1e-9;
  json["tokens_per_second"] = plan.tokens_per_second();
  json["computes"] = plan.result->busy;
  return json;
}

ordered_json to_json(const PipelineChoice& choice) {
  return {{"data_centers", choice.centers},
          {"pipeline", choice.gpus},
          {"replicas", choice.replicas},
          {"micro_batch", choice.micro_batch},
          {"cell", choice.cell},
          {"recomputes", choice.recomputes},
          {"workers", choice.workers},
          {"step_seconds", choice.step_seconds},
          {"tokens_per_second", choice.tokens_per_second},
          {"computes", choice.busy},
          {"wan_forwards", choice.wan_forwards}};
}

ordered_json to_json(const PrefillLoad& load) {
  const PrefillResult& one = load.result;
  return {{"rate", load.rate},
          {"requests", one.requests},
          {"placed", one.placed.size()},
          {"training_computes", one.training_busy},
          {"all_computes", one.all_busy},
          {"tokens_per_second", one.tokens_per_second},
          {"ttft_seconds",
           {{"p50", static_cast<double>(one.ttft_ns(0.5)) * 1e-9},
            {"p95", static_cast<double>(one.ttft_ns(0.95)) * 1e-9},
            {"p99", static_cast<double>(one.ttft_ns(0.99)) * 1e-9}}},
          {"weight_bytes", one.weight_bytes},
          {"weights_fit", one.weights_fit},
          {"step_ns", one.step_ns},
          {"slowest_step_ns", one.slowest_step_ns},
          {"training_unchanged", one.passes_unchanged}};
}

ordered_json to_json(const WanMapRow& row) {
  ordered_json baselines;
  for (const WanMapRow::Baseline& one : row.baselines)
    baselines[one.order] = {{"one_flow", json_or_null(one.one_flow)},
                            {"many_flows", json_or_null(one.many_flows)}};
  return {{"ratio", row.ratio},
          {"micro_batches", row.micro_batches},
          {"data_centers", row.centers},
          {"held", row.held},
          {"cell", row.cell},
          {"atlas", json_or_null(row.atlas)},
          {"atlas_computes", row.atlas_busy},
          {"baselines", baselines},
          {"over_fastest", json_or_null(row.over_fastest())},
          {"over_slowest", json_or_null(row.over_slowest())},
          {"over_many_flows", json_or_null(row.over_many_flows())}};
}

}  // namespace spillway::cli
