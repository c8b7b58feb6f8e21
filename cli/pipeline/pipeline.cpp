// spillway pipeline: a model trained as a pipeline, in one data centre or over several.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/errors.hpp"
#include "cli/commands.hpp"
#include "cli/pipeline/pipeline_options.hpp"
#include "cli/pipeline/pipeline_text.hpp"
#include "cli/text/output.hpp"
#include "cli/text/progress.hpp"
#include "experiments/pipelines/pipeline_trace.hpp"

namespace spillway::cli {

namespace {

using nlohmann::ordered_json;

ordered_json header(const PipelineRequest& request) {
  const Workload& workload = request.problem.workload;
  ordered_json links = ordered_json::array();
  for (const WanLink& link : request.centers.links)
    links.push_back({{"from", link.from},
                     {"to", link.to},
                     {"rtt_ns", link.rtt_ns},
                     {"flows", link.flows},
                     {"pair_bytes_per_second", link.pair_rate()},
                     {"total_bytes_per_second", link.total},
                     {"jitter_ns", link.jitter_ns}});
  return {{"model", request.problem.model.name},
          {"machine", request.problem.machine.name},
          {"data_centers", request.centers.name},
          {"wan", links},
          {"batch", workload.batch},
          {"sequence", workload.sequence},
          {"tensor", request.tensor},
          {"sends_wait", request.sends_wait},
          {"seed", request.seed}};
}

void run_what_if(const PipelineOptions& options, const PipelineRequest& request, int& exit_code) {
  if (options.orders.size() > 1)
    throw InputError("what-if is of one order", "give one order, e.g. atlas");
  const PipelineOrder order(options.orders.empty() ? "1f1b" : options.orders.front());
  std::vector<std::int64_t> sizes = options.micro_batches;
  if (sizes.empty()) sizes = {1, 2, 4, 8};
  Progress progress(true);
  const auto begin = std::chrono::steady_clock::now();
  const WhatIf found = what_if(request, order, sizes, [&](std::size_t done, std::size_t all) {
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
    if (seconds.count() > 2) progress.show(done_text(done, all, seconds.count(), "choices"));
  });
  progress.clear();
  if (found.choices.empty()) exit_code = exit_does_not_fit;
  if (!options.json) return fmt::print("{}", text_of(request, order.text(), found, options.top));
  ordered_json json = header(request);
  json["order"] = order.text();
  json["tried"] = found.tried;
  json["fit"] = found.choices.size();
  json["choices"] = ordered_json::array();
  for (std::size_t i = 0; i < std::min(options.top, found.choices.size()); ++i)
    json["choices"].push_back(to_json(found.choices[i]));
  fmt::print("{}\n", to_text(json));
}

std::vector<PrefillLoad> loads_of(const PipelineOptions& options, const PipelinePlan& plan,
                                  const PrefillSettings& settings) {
  const std::int64_t end = plan.result->step_ns * settings.steps;
  std::vector<double> rates = options.prefill.rates;
  if (!options.prefill.file.empty()) rates = {0};
  std::vector<PrefillLoad> loads;
  Activity activity("placing prefills");
  for (const double rate : rates)
    loads.push_back({rate, place_prefills(plan, settings, options.requests(rate, end))});
  return loads;
}

// What the table does not show, and what to try where nothing fits.
std::string notes_on(const PipelineOptions& options, const std::vector<PipelinePlan>& plans) {
  std::vector<std::string> left_out = options.orders;
  if (left_out.empty())
    for (const PipelineOrderInfo& info : pipeline_orders()) left_out.push_back(info.name);
  std::erase_if(left_out, [&](const std::string& order) {
    return std::any_of(plans.begin(), plans.end(), [&](const PipelinePlan& plan) {
      return plan.order == PipelineOrder(order).text();
    });
  });
  std::string text;
  if (!left_out.empty())
    text += fmt::format(
        "left out: {}: no micro-batches of this batch, or too few layers, for so many workers\n",
        fmt::join(left_out, ", "));
  const bool fits = std::any_of(plans.begin(), plans.end(),
                                [](const PipelinePlan& plan) { return plan.result.has_value(); });
  if (!fits)
    text +=
        "nothing fits: try more workers (--pipeline) or GPUs a worker (--tensor), or smaller "
        "micro-batches\n";
  return text;
}

void run(const PipelineOptions& options, int& exit_code) {
  const FilePlace trace_file{options.trace};
  check_output_path("--trace", options.trace);
  const PipelineRequest request = options.request();
  if (options.what_if) return run_what_if(options, request, exit_code);
  std::vector<PipelinePlan> plans;
  {
    Activity activity("simulating pipelines");
    for (const PipelineOrder& order : options.chosen_orders(request)) {
      if (!options.problem.chooses_micro_batch()) {
        plans.push_back(plan_pipeline(request, order));
        continue;
      }
      auto plan = plan_pipeline_at_its_best(request, order);
      if (plan) plans.push_back(std::move(*plan));
    }
    if (plans.empty())
      throw InputError("pipeline: no order suits a micro-batch that the batch divides into",
                       "choose a batch of a multiple of the replicas, and for interleaved of the "
                       "workers in a row, too");
  }
  const bool one_is_asked = options.prefill.asked() || !options.trace.empty();
  if (one_is_asked && plans.size() != 1)
    throw InputError("prefills and a trace are of one order", "give one order, e.g. atlas");
  const bool fits = std::any_of(plans.begin(), plans.end(),
                                [](const PipelinePlan& plan) { return plan.result.has_value(); });
  if (!fits) exit_code = exit_does_not_fit;
  std::vector<PrefillLoad> loads;
  const PrefillSettings settings = options.prefill_settings(request.problem);
  if (options.prefill.asked() && fits) loads = loads_of(options, plans.front(), settings);
  if (!options.trace.empty() && fits)
    write_file(trace_file,
               pipeline_trace(plans.front(), loads.empty() ? nullptr : &loads.front().result));
  if (!options.json) {
    fmt::print("{}{}{}", text_of(plans), notes_on(options, plans),
               loads.empty() ? "" : text_of(settings, loads));
    return;
  }
  ordered_json json = header(request);
  json["pipeline"] = request.gpus;
  json["replicas"] = request.replicas;
  json["orders"] = ordered_json::array();
  for (const PipelinePlan& plan : plans) json["orders"].push_back(to_json(plan));
  for (const PrefillLoad& load : loads) json["prefills"].push_back(to_json(load));
  fmt::print("{}\n", to_text(json));
}

}  // namespace

void add_pipeline(CLI::App& app, int& exit_code) {
  CLI::App* command = app.add_subcommand(
      "pipeline",
      "pipeline parallelism, in one data centre or over several joined by a WAN: orders of passes "
      "side by side, what-if over data centres, prefills in the bubbles");
  auto options = std::make_shared<PipelineOptions>();
  options->add_to(*command);
  command->callback([options, &exit_code] { run(*options, exit_code); });
}

}  // namespace spillway::cli
