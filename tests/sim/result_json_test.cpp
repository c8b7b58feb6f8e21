#include "sim/result_json.hpp"

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "tests/policies/cost/problems.hpp"

using namespace spillway;
using namespace spillway::test;

namespace {

using Json = nlohmann::ordered_json;

std::vector<std::string> keys(const Json& object) {
  std::vector<std::string> result;
  for (const auto& item : object.items()) result.push_back(item.key());
  return result;
}

using Keys = std::vector<std::string>;

}  // namespace

TEST_CASE("The JSON object has every key, in the documented order") {
  const Schedule schedule = build_schedule(small_problem(round_machine()), "zero-offload", 3);
  const SimulationResult result = simulate(schedule);
  const Json json = to_json(schedule, &result, 0.25, 0.5);
  CHECK(keys(json) == Keys{"policy",
                           "model",
                           "machine",
                           "framework",
                           "workload",
                           "steps",
                           "overrides",
                           "framework_hash",
                           "fits",
                           "memory",
                           "tightest",
                           "shortfall",
                           "step_seconds",
                           "tokens_per_second",
                           "model_tflops",
                           "hardware_tflops",
                           "phases",
                           "bound_seconds",
                           "bound_by",
                           "efficiency",
                           "lanes",
                           "ssd_bytes_written_per_step",
                           "critical_path",
                           "stalls",
                           "tasks",
                           "schedule_seconds",
                           "simulate_seconds",
                           "extrapolates"});
  CHECK(keys(json["workload"]) == Keys{"batch", "micro_batch", "micro_batches", "sequence",
                                       "sequences_at_once", "precision", "gradient_bits", "moments",
                                       "gradient_clip", "on_nonfinite"});
  CHECK(keys(json["memory"]) == Keys{"gpu", "host", "ssd"});
  CHECK(keys(json["memory"]["gpu"]) ==
        Keys{"peak_bytes", "capacity_bytes", "kept_bytes", "margin"});
  CHECK(keys(json["phases"]) == Keys{"forward", "backward", "optimizer"});
  CHECK(json["lanes"].contains("gpu.compute"));
  CHECK(keys(json["lanes"]["pcie.h2d"]) == Keys{"busy_fraction", "bytes"});
  CHECK(json["policy"] == "zero-offload");
  CHECK(json["fits"] == true);
  CHECK(json["step_seconds"] == result.step_seconds);
  CHECK(json["tasks"] == schedule.tasks().size());
  CHECK(json["schedule_seconds"] == 0.25);
  CHECK(json["simulate_seconds"] == 0.5);
}

TEST_CASE("What does not fit has its memory, and null for what only a simulation tells") {
  Problem problem = small_problem(round_machine());
  problem.machine.gpu.memory = 4096;
  const Schedule schedule = build_schedule(problem, "zero-offload", 3);
  const Json json = to_json(schedule, nullptr, 0.25, 0.5);
  CHECK(json["fits"] == false);
  CHECK(json["memory"]["gpu"]["peak_bytes"] > 4096);
  for (const char* key :
       {"step_seconds", "tokens_per_second", "model_tflops", "hardware_tflops", "phases",
        "bound_seconds", "bound_by", "efficiency", "lanes", "ssd_bytes_written_per_step",
        "critical_path", "stalls", "simulate_seconds"}) {
    INFO(key);
    REQUIRE(json.contains(key));
    CHECK(json[key].is_null());
  }
  CHECK(json["tasks"] == schedule.tasks().size());
}

TEST_CASE("In JSON the critical path adds up to the step, and the stalls to the GPU's idle time") {
  const Schedule schedule = build_schedule(small_problem(round_machine()), "zero-infinity", 4);
  const SimulationResult result = simulate(schedule);
  CHECK(to_json(schedule, &result, 0, 0)["stalls"].is_null());
  const Explanation explanation = explain(schedule, result);
  const Json json = to_json(schedule, &result, 0, 0, &explanation);
  const Json& path = json["critical_path"];
  CHECK(keys(path) == Keys{"chain_seconds", "parts"});
  REQUIRE(!path["parts"].empty());
  CHECK(keys(path["parts"][0]) ==
        Keys{"name", "lane", "kind", "buffer", "seconds", "lost_seconds"});
  const auto sum = [](const Json& list) {
    double seconds = 0;
    for (const Json& item : list) seconds += item["seconds"].get<double>();
    return seconds;
  };
  CHECK(sum(path["parts"]) == Approx(result.step_seconds));
  const Json& stalls = json["stalls"];
  CHECK(keys(stalls) == Keys{"busy_seconds", "idle_seconds", "causes"});
  REQUIRE(!stalls["causes"].empty());
  CHECK(keys(stalls["causes"][0]) == Keys{"name", "lane", "kind", "buffer", "wait", "seconds"});
  CHECK(sum(stalls["causes"]) == Approx(stalls["idle_seconds"].get<double>()));
  CHECK(stalls["idle_seconds"].get<double>() + stalls["busy_seconds"].get<double>() ==
        Approx(result.step_seconds));
}

TEST_CASE("Extrapolated kernel times are marked, measured ones are not") {
  const Schedule schedule = build_schedule(small_problem(cpu_machine(2)), "zero-offload", 1);
  const SimulationResult result = simulate(schedule);
  const Json json = to_json(schedule, &result, 0, 0);
  CHECK(json["extrapolated"] == true);
  REQUIRE(json["extrapolates"].size() == 1);
  CHECK_THAT(json["extrapolates"][0].get<std::string>(),
             Catch::StartsWith("kernels of ") && Catch::Contains("forward, head, backward") &&
                 Catch::EndsWith("none is measured"));
  // Beside a measured kernel of another shape it is this shape that was not measured.
  Problem problem = small_problem(cpu_machine(2));
  problem.machine.kernels.push_back({"forward", "another shape", 1e9, 1'000'000, 0, {}});
  CHECK_THAT(simulate(build_schedule(problem, "zero-offload", 1)).extrapolates.at(0),
             Catch::EndsWith("not measured at this shape"));
  const Schedule known = build_schedule(small_problem(round_machine()), "zero-offload", 1);
  const SimulationResult of_known = simulate(known);
  CHECK(to_json(known, &of_known, 0, 0)["extrapolates"].empty());
  CHECK_FALSE(to_json(known, &of_known, 0, 0).contains("extrapolated"));
}
