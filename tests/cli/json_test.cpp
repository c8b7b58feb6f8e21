// What other programs rely on: the keys of --json, and that standard output is that one object.
#include <catch2/catch.hpp>

#include "tests/cli/program.hpp"

using namespace spillway::test;
using nlohmann::json;
using Words = std::vector<std::string>;

namespace {

// The keys in the order of the file.
Words keys(const nlohmann::ordered_json& object) {
  Words names;
  for (const auto& [key, value] : object.items()) names.push_back(key);
  // Only there where something is extrapolated.
  if (object.value("extrapolated", false)) std::erase(names, "extrapolated");
  return names;
}

Words keys_of_output(const Outcome& outcome) {
  return keys(nlohmann::ordered_json::parse(outcome.out));
}

const Words result_keys = {"policy",
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
                           "extrapolates",
                           "durability",
                           "wear"};

// And what `simulate` says of the machine.
Words keys_of(const std::string& command) {
  return command == "simulate" ? result_keys + Words{"assumed"} : result_keys;
}

Words simulation(const char* command) {
  return Words{command, "--machine", "testbed", "--policy", "zero-infinity", "--json"} +
         tiny_problem();
}

void check_result(const json& result) {
  CHECK(result["policy"] == "zero-infinity");
  CHECK(result["model"] == "gpt-tiny");
  CHECK(result["machine"] == "testbed");
  CHECK(result["fits"] == true);
  CHECK(result["workload"]["batch"] == 2);
  CHECK(result["workload"]["sequence"] == 16);
  // batch = micro_batch x micro_batches
  CHECK(result["workload"]["micro_batch"].get<int>() *
            result["workload"]["micro_batches"].get<int>() ==
        2);
  for (const char* tier : {"gpu", "host", "ssd"}) {
    CHECK(result["memory"][tier]["peak_bytes"] <= result["memory"][tier]["capacity_bytes"]);
  }
  CHECK(result["memory"]["gpu"]["capacity_bytes"] == 64'000'000);
  // tokens/s x seconds = batch x sequence; the bound is a lower one.
  CHECK(result["tokens_per_second"].get<double>() * result["step_seconds"].get<double>() ==
        Approx(2 * 16));
  CHECK(result["bound_seconds"] <= result["step_seconds"]);
  CHECK(result["efficiency"].get<double>() ==
        Approx(result["bound_seconds"].get<double>() / result["step_seconds"].get<double>()));
  CHECK(result["hardware_tflops"] >= result["model_tflops"]);
  for (const char* phase : {"forward", "backward", "optimizer"})
    CHECK(result["phases"][phase].is_number());
  for (const auto& [name, lane] : result["lanes"].items()) {
    INFO(name);
    CHECK(lane["busy_fraction"] >= 0.0);
    CHECK(lane["busy_fraction"] <= 1.0);
    CHECK(lane["bytes"].is_number_integer());
  }
  // All state rests on the ssd: a commit writes its record and nothing else.
  CHECK(result["durability"]["bytes_copied_per_commit"] == 0);
  CHECK(result["ssd_bytes_written_per_step"] ==
        result["lanes"]["ssd.write"]["bytes"].get<std::int64_t>() +
            result["wear"]["commit_bytes_per_step"].get<std::int64_t>());
  CHECK(result["tasks"] > 0);
}

}  // namespace

TEST_CASE("simulate and estimate --json print exactly the documented keys") {
  for (const char* command : {"simulate", "estimate"}) {
    const Outcome outcome = run(simulation(command));
    INFO(command << ": " << outcome.err);
    REQUIRE(outcome.exit_code == 0);
    CHECK(outcome.err.empty());
    CHECK(keys_of_output(outcome) == keys_of(command));
    const json result = outcome.json();
    CHECK(result["memory"].size() == 3);
    CHECK(result["memory"]["gpu"].size() == 4);
    CHECK(result["workload"].size() == 10);
    CHECK(result["phases"].size() == 3);
    check_result(result);
    CHECK(result["critical_path"].is_null() == (command == std::string("estimate")));
  }
}

TEST_CASE("What does not fit has the same keys, and those only a simulation knows are null") {
  const Outcome outcome = run(simulation("simulate") + Words{"--gpu-memory", "100KB"});
  CHECK(outcome.exit_code == 3);
  CHECK(keys_of_output(outcome) == keys_of("simulate"));
  const json result = outcome.json();
  CHECK(result["fits"] == false);
  CHECK(result["step_seconds"].is_null());
  CHECK(result["stalls"].is_null());
  CHECK(result["memory"]["gpu"]["peak_bytes"] > result["memory"]["gpu"]["capacity_bytes"]);
}

TEST_CASE(
    "simulate --json: the critical path adds up to the step, the stalls to the GPU's idle time") {
  const json result = run(simulation("simulate")).json();
  const auto sum = [](const json& list) {
    double seconds = 0;
    for (const json& item : list) seconds += item["seconds"].get<double>();
    return seconds;
  };
  const double step = result["step_seconds"].get<double>();
  CHECK(sum(result["critical_path"]["parts"]) == Approx(step));
  CHECK(result["critical_path"]["chain_seconds"].get<double>() <= step * (1 + 1e-9));
  const double idle = result["stalls"]["idle_seconds"].get<double>();
  CHECK(idle > 0);
  CHECK(sum(result["stalls"]["causes"]) == Approx(idle));
  CHECK(idle + result["stalls"]["busy_seconds"].get<double>() == Approx(step));
  CHECK(result["stalls"]["busy_seconds"].get<double>() ==
        Approx(step * result["lanes"]["gpu.compute"]["busy_fraction"].get<double>()));
}

TEST_CASE("simulate is deterministic, but for the time it takes itself") {
  json first = run(simulation("simulate")).json(), second = run(simulation("simulate")).json();
  for (json* result : {&first, &second}) {
    result->erase("schedule_seconds");
    result->erase("simulate_seconds");
  }
  CHECK(first == second);
}

TEST_CASE("compare --json holds one such object for each policy") {
  const Outcome outcome = run(Words{"compare", "--machine", "testbed", "--json"} + tiny_problem());
  REQUIRE(outcome.exit_code == 0);
  CHECK(keys_of_output(outcome) ==
        Words{"policies", "comparison", "fastest", "auto", "writes_less"});
  const nlohmann::ordered_json list = nlohmann::ordered_json::parse(outcome.out)["policies"];
  // Policies of several ranks are no candidates where there is one.
  std::size_t of_one_rank = 0;
  const json policies = run({"policies", "--json"}).json();
  for (const json& policy : policies["policies"])
    if (!policy["for_several_ranks"].get<bool>()) ++of_one_rank;
  CHECK(list.size() == of_one_rank + 1);
  for (const auto& result : list) {
    CHECK(keys(result) == result_keys + Words{"compared"});
    CHECK(keys(result["compared"]) ==
          Words{"asked", "settings", "recomputation", "follows", "competes"});
  }

  const json chosen = run(Words{"compare", "--machine", "testbed", "--json", "--policy", "resident",
                                "--policy", "zero-infinity"} +
                          tiny_problem())
                          .json();
  REQUIRE(chosen["policies"].size() == 2);
  CHECK(chosen["policies"][0]["policy"] == "resident");
  check_result(chosen["policies"][1]);
}

TEST_CASE("compare chooses the micro-batch only where none is given") {
  const Words command =
      Words{"compare", "--machine", "testbed", "--json", "--policy", "zero-infinity"} +
      tiny_problem();
  const json given = run(command + Words{"--micro-batch", "1"}).json();
  CHECK(given["policies"][0]["workload"]["micro_batch"] == 1);
  CHECK(given["policies"][0]["workload"]["micro_batches"] == 2);
}

TEST_CASE("policies, models and machines list what the other commands take") {
  const json policies = run({"policies", "--json"}).json()["policies"];
  REQUIRE(policies.size() >= 3);
  for (const json& policy : policies) {
    for (const char* key :
         {"name", "paper", "idea", "for_several_ranks", "for_pipelines", "options"})
      CHECK(policy.contains(key));
    INFO(policy["name"]);
    const Outcome outcome =
        run(Words{"estimate", "--machine", "h200", "--json", "--policy", policy["name"]} +
            tiny_problem());
    CHECK(outcome.exit_code == 0);
  }
  const json models = run({"models", "--json"}).json()["models"];
  bool has_tiny = false;
  for (const json& model : models) {
    for (const char* key : {"name", "parameters", "layers", "hidden", "heads", "vocabulary",
                            "positions", "architecture", "source"}) {
      CHECK(model.contains(key));
    }
    has_tiny =
        has_tiny || (model["name"] == "gpt-tiny" && model["layers"] == 4 && model["hidden"] == 128);
  }
  CHECK(has_tiny);
  const json machines = run({"machines", "--json"}).json()["machines"];
  Words names;
  for (const json& machine : machines) {
    for (const char* key : {"name", "description", "gpu_memory", "gpu_flops", "host_memory",
                            "ssd_count", "ssd_capacity"}) {
      CHECK(machine.contains(key));
    }
    names.push_back(machine["name"]);
  }
  for (const char* name : {"rtx4090-12ssd", "rtx4090-1ssd", "a100-80gb", "h200", "testbed"}) {
    CHECK_THAT(names, Catch::VectorContains(std::string(name)));
  }
}

TEST_CASE("A file overrides, --set overrides the file, and the last --set wins") {
  const TemporaryFolder folder;
  const std::string model =
      folder.write("m.toml",
                   "[[model]]\nname = \"mine\"\nlayers = 2\nhidden = 64\nheads = 2\n"
                   "vocabulary = 256\npositions = 64\n");
  const Words command = {"simulate", "--json", "--policy", "resident", "--machine",  "testbed",
                         "--model",  model,    "--batch",  "1",        "--sequence", "16"};
  const json result =
      run(command + Words{"--set", "gpu.memory=1GB", "--set", "gpu.memory=2GB"}).json();
  CHECK(result["model"] == "mine");
  CHECK(result["memory"]["gpu"]["capacity_bytes"] == 2'000'000'000);
  const json deeper =
      run(command + Words{"--set", "gpu.memory=2GB", "--set", "model.layers=8"}).json();
  CHECK(deeper["memory"]["gpu"]["peak_bytes"] > result["memory"]["gpu"]["peak_bytes"]);
}
