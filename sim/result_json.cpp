#include "sim/result_json.hpp"

#include <cmath>
#include <nlohmann/json.hpp>

#include "policies/framework/framework.hpp"
#include "policies/workload/workload_json.hpp"

namespace spillway {

namespace {

using Json = nlohmann::ordered_json;

std::int64_t whole(double bytes) { return std::llround(bytes); }

Json memory_json(const ScheduleSummary& schedule) {
  Json memory;
  for (int index = 0; index < tier_count; ++index) {
    const Tier tier = static_cast<Tier>(index);
    const TierUse& use = schedule.memory[static_cast<std::size_t>(tier)];
    if (tier > Tier::ssd && use.capacity_bytes == 0 && use.peak_bytes == 0) continue;
    memory[to_string(tier)] = {{"peak_bytes", use.peak_bytes},
                               {"capacity_bytes", use.capacity_bytes},
                               {"kept_bytes", use.kept_bytes}};
  }
  return memory;
}

Json lanes_json(const SimulationResult& result) {
  Json lanes;
  for (int l = 0; l < lane_count; ++l) {
    const LaneUse& use = result.lanes[static_cast<std::size_t>(l)];
    if (l >= lane_count_of_one_rank && use.busy_fraction == 0) continue;
    lanes[to_string(static_cast<Lane>(l))] = {{"busy_fraction", use.busy_fraction},
                                              {"bytes", whole(use.bytes)}};
  }
  return lanes;
}

void add_result(Json& json, const SimulationResult& result) {
  json["step_seconds"] = result.step_seconds;
  json["tokens_per_second"] = result.tokens_per_second;
  json["model_tflops"] = result.model_tflops;
  json["hardware_tflops"] = result.hardware_tflops;
  json["phases"] = {{"forward", result.phases.forward},
                    {"backward", result.phases.backward},
                    {"optimizer", result.phases.optimizer}};
  json["bound_seconds"] = result.bound_seconds;
  json["bound_by"] = result.bound_by;
  json["efficiency"] = result.efficiency;
  json["lanes"] = lanes_json(result);
  json["ssd_bytes_written_per_step"] = whole(result.ssd_bytes_written_per_step);
}

Json critical_path_json(const Explanation& explanation) {
  const double per_step = 1e-9 / explanation.window.steps;
  const CriticalPath& path = explanation.critical_path;
  Json parts = Json::array();
  for (const CriticalPart& part : path.parts) {
    Json json = class_json(part.of);
    json["seconds"] = static_cast<double>(part.ns) * per_step;
    json["lost_seconds"] = Json::object();
    for (const auto& [resource, ns] : part.lost_ns) json["lost_seconds"][resource] = ns * per_step;
    parts.push_back(std::move(json));
  }
  return {{"chain_seconds", path.chain_ns > 0 ? Json(path.chain_ns * per_step) : Json()},
          {"parts", std::move(parts)}};
}

Json stalls_json(const Explanation& explanation) {
  const double per_step = 1e-9 / explanation.window.steps;
  const StallReport& report = explanation.stalls;
  Json causes = Json::array();
  for (const Stall& stall : report.stalls) {
    Json json = class_json(stall.running);
    json["wait"] = to_string(stall.wait);
    json["seconds"] = static_cast<double>(stall.ns) * per_step;
    causes.push_back(std::move(json));
  }
  return {{"busy_seconds", static_cast<double>(report.busy_ns) * per_step},
          {"idle_seconds", static_cast<double>(report.idle_ns) * per_step},
          {"causes", std::move(causes)}};
}

}  // namespace

void add_margins(Json& json, const TierUses& memory) {
  const auto number = [](const std::optional<double>& value) {
    return value ? Json(*value) : Json(nullptr);
  };
  for (std::size_t t = 0; t < memory.size(); ++t)
    if (const char* const tier = to_string(static_cast<Tier>(t)); json["memory"].contains(tier))
      json["memory"][tier]["margin"] = number(free_share(memory[t]));
  const FitMargin margin = fit_margin(memory);
  json["tightest"] = to_string(margin.tier);
  json["shortfall"] = nullptr;
  if (margin.fits()) return;
  json["shortfall"] = {{"tier", to_string(margin.tier)},
                       {"bytes", -margin.bytes},
                       {"share", margin.share ? Json(-*margin.share) : Json(nullptr)}};
}

Json class_json(const TaskClass& task_class) {
  return {{"name", to_string(task_class)},
          {"lane", to_string(task_class.lane)},
          {"kind", to_string(task_class.kind)},
          {"buffer", task_class.buffer ? Json(to_string(*task_class.buffer)) : Json(nullptr)}};
}

Json to_json(const Workload& workload) {
  const Json fields = workload_json(workload);
  Json json;
  for (const auto& [key, value] : fields.items()) {
    json[key] = value;
    if (key == "micro_batch") json["micro_batches"] = workload.micro_batches();
  }
  return json;
}

Json to_json(const ScheduleSummary& schedule, const SimulationResult* result,
             double schedule_seconds, double simulate_seconds, const Explanation* explanation) {
  const Problem& problem = schedule.problem;
  Json json;
  json["policy"] = schedule.policy;
  json["model"] = problem.model.name;
  json["machine"] = problem.machine.name;
  json["framework"] = problem.framework;
  json["workload"] = to_json(problem.workload);
  json["steps"] = schedule.steps;
  json["overrides"] = problem.overrides;
  json["framework_hash"] = framework_hash(problem.framework);
  json["fits"] = schedule.fits;
  json["memory"] = memory_json(schedule);
  add_margins(json, schedule.memory);
  if (result != nullptr) {
    add_result(json, *result);
  } else {
    for (const char* key :
         {"step_seconds", "tokens_per_second", "model_tflops", "hardware_tflops", "phases",
          "bound_seconds", "bound_by", "efficiency", "lanes", "ssd_bytes_written_per_step"}) {
      json[key] = nullptr;
    }
  }
  if (problem.workload.ranks > 1) {
    const Ranks ranks = problem.ranks();
    json["ranks"] = {
        {"count", ranks.size()},
        {"gpus_of_a_node", ranks.inside},
        {"nodes", ranks.across},
        {"tokens_per_second_per_gpu",
         result != nullptr ? Json(result->tokens_per_second / ranks.size()) : Json(nullptr)}};
  }
  json["critical_path"] = explanation ? critical_path_json(*explanation) : Json(nullptr);
  json["stalls"] = explanation ? stalls_json(*explanation) : Json(nullptr);
  json["tasks"] = schedule.tasks;
  json["schedule_seconds"] = schedule_seconds;
  json["simulate_seconds"] = result != nullptr ? Json(simulate_seconds) : Json(nullptr);
  json["extrapolates"] = Json::array();
  if (result != nullptr && !result->extrapolates.empty()) {
    json["extrapolates"] = result->extrapolates;
    json["extrapolated"] = true;
  }
  return json;
}

Json to_json(const Schedule& schedule, const SimulationResult* result, double schedule_seconds,
             double simulate_seconds, const Explanation* explanation) {
  const ScheduleSummary summary = {schedule.problem(),  schedule.policy(), schedule.steps(),
                                   tier_uses(schedule), schedule.fits(),   schedule.tasks().size()};
  return to_json(summary, result, schedule_seconds, simulate_seconds, explanation);
}

}  // namespace spillway
