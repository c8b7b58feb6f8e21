#include "sim/result_json.hpp"

#include <cmath>
#include <nlohmann/json.hpp>

namespace spillway {

namespace {

using Json = nlohmann::ordered_json;

std::int64_t whole(double bytes) { return std::llround(bytes); }

Json memory_json(const Schedule& schedule) {
  Json memory;
  for (const Tier tier : {Tier::gpu, Tier::host, Tier::ssd}) {
    const TierUse& use = schedule.use(tier);
    memory[to_string(tier)] = {{"peak_bytes", use.peak_bytes},
                               {"capacity_bytes", use.capacity_bytes}};
  }
  return memory;
}

Json workload_json(const Workload& workload) {
  return {{"batch", workload.batch},
          {"micro_batch", workload.micro_batch},
          {"micro_batches", workload.micro_batches()},
          {"sequence", workload.sequence}};
}

Json lanes_json(const SimulationResult& result) {
  Json lanes;
  for (int l = 0; l < lane_count; ++l) {
    const LaneUse& use = result.lanes[static_cast<std::size_t>(l)];
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

}  // namespace

Json to_json(const Schedule& schedule, const SimulationResult* result, double schedule_seconds,
             double simulate_seconds) {
  const Problem& problem = schedule.problem();
  Json json;
  json["policy"] = schedule.policy();
  json["model"] = problem.model.name;
  json["machine"] = problem.machine.name;
  json["workload"] = workload_json(problem.workload);
  json["fits"] = schedule.fits();
  json["memory"] = memory_json(schedule);
  if (result != nullptr) {
    add_result(json, *result);
  } else {
    for (const char* key :
         {"step_seconds", "tokens_per_second", "model_tflops", "hardware_tflops", "phases",
          "bound_seconds", "bound_by", "efficiency", "lanes", "ssd_bytes_written_per_step"}) {
      json[key] = nullptr;
    }
  }
  json["tasks"] = schedule.tasks().size();
  json["schedule_seconds"] = schedule_seconds;
  json["simulate_seconds"] = result != nullptr ? Json(simulate_seconds) : Json(nullptr);
  if (result != nullptr && result->extrapolated) json["extrapolated"] = true;
  return json;
}

}  // namespace spillway
