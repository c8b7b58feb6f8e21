// One machine, policy or model in full: `spillway machines NAME` and its sisters.
#include <catch2/catch.hpp>

#include "tests/cli/program.hpp"
#include "tests/policies/machine/machine_text.hpp"

using namespace spillway::test;
using nlohmann::json;
using Words = std::vector<std::string>;

namespace {

json by_key(const json& list, const std::string& key, const std::string& name) {
  for (const json& one : list) {
    if (one[key] == name) return one;
  }
  FAIL(name + " is not there");
  return {};
}

}  // namespace

TEST_CASE("machines NAME: every value with its origin, and what --set changes") {
  const Outcome outcome =
      run({"machines", "rtx4090-12ssd", "--set", "ssd.count=6", "pcie.h2d=20GB/s"});
  INFO(outcome.err);
  REQUIRE(outcome.exit_code == 0);
  CHECK_THAT(outcome.out, Catch::StartsWith("rtx4090-12ssd\n"));
  CHECK_THAT(outcome.out, Catch::Contains("a plan may use ") && Catch::Contains("on 6 drives"));
  for (const std::string& line : lines_of(outcome.out)) {
    if (line.rfind("pcie.h2d ", 0) == 0)
      CHECK_THAT(line, Catch::Contains("20 GB/s") && Catch::Contains("given") &&
                           Catch::Contains("set on the command line"));
    if (line.rfind("ssd.read ", 0) == 0)
      CHECK_THAT(line, Catch::Contains("derived") && Catch::Contains("ssd.by_count at 6 drives"));
    if (line.rfind("gpu.launch ", 0) == 0)
      CHECK_THAT(line, Catch::Contains("assumed") && Catch::Contains("StarPU"));
    CHECK_THAT(line, !Catch::StartsWith("cluster."));  // one GPU
  }
  // The name may follow the settings.
  CHECK(run({"machines", "--set", "ssd.count=6", "pcie.h2d=20GB/s", "rtx4090-12ssd"}).out ==
        outcome.out);

  const Outcome object = run({"machines", "rtx4090-12ssd", "--set", "ssd.count=6", "--json"});
  const json machine = object.json();
  CHECK(machine["name"] == "rtx4090-12ssd");
  CHECK(machine["usable_bytes"]["ssd"] == 6 * 3'840'000'000'000);
  const json count = by_key(machine["values"], "key", "ssd.count");
  CHECK(count["value"] == "6");
  CHECK(count["origin"] == "given");
  const json law = by_key(machine["values"], "key", "ssd.law");
  for (const char* key : {"key", "value", "text", "origin", "source", "concerns"})
    CHECK(law.contains(key));
  CHECK(by_key(machine["values"], "key", "cluster.nic")["concerns"] == false);
  CHECK(by_key(machine["tables"], "key", "ssd.by_count")["columns"].size() == 4);
}

TEST_CASE("machines FILE and machines PARTS are shown, too") {
  const TemporaryFolder folder;
  const std::string file = folder.write("m.toml", spillway::small_machine + spillway::small_drives);
  const Outcome outcome = run({"machines", file});
  REQUIRE(outcome.exit_code == 0);
  CHECK_THAT(outcome.out, Catch::Contains("no source is given") &&
                              Catch::Contains("the file does not say how reads and writes share"));
  CHECK_THAT(run({"machines", "rtx3090+desktop-ddr4+4x990pro"}).out,
             Catch::Contains("on 4 drives") && Catch::Contains("ssd.drive_read"));
}

TEST_CASE("policies NAME: settings with type, domain, default and meaning") {
  const Outcome outcome = run({"policies", "greedysnake"});
  REQUIRE(outcome.exit_code == 0);
  CHECK_THAT(outcome.out, Catch::StartsWith("greedysnake\n") &&
                              Catch::Contains("paper: GreedySnake (arXiv 2512.17570)"));
  CHECK_THAT(outcome.out,
             Catch::Contains("alpha (number), default 0.25\n    a number from 0 to 1, or auto\n") &&
                 Catch::Contains("delayed into the next forward"));
  const json policy = run({"policies", "zero-infinity", "--json"}).json();
  CHECK(policy["name"] == "zero-infinity");
  CHECK(by_key(policy["options"], "name", "pipeline_read")["type"] == "switch");
  CHECK(by_key(policy["options"], "name", "param_buffer_count")["type"] == "whole number");
  CHECK(by_key(policy["options"], "name", "gradients")["type"] == "choice");
  CHECK(by_key(policy["options"], "name", "retention")["type"] == "text");
  CHECK(by_key(policy["options"], "name", "param_buffer_count")["takes_less_memory"] ==
        json{"2", "1"});
  // Every built-in policy has one.
  const json all = run({"policies", "--json"}).json();
  for (const json& one : all["policies"])
    CHECK(run({"policies", one["name"], "--json"}).json()["options"].size() ==
          one["options"].size());
}

TEST_CASE("models NAME: shape, parameters by unit, FLOPs of a token, tensors") {
  const json model = run({"models", "gpt-13b", "--json"}).json();
  CHECK(model["shape"]["layers"] == 40);
  CHECK(model["shape"]["hidden"] == 5120);
  std::int64_t parameters = 0;
  for (const json& unit : model["units"]) {
    std::int64_t of_tensors = 0;
    for (const json& tensor : unit["tensors"])
      of_tensors += tensor["rows"].get<std::int64_t>() * tensor["columns"].get<std::int64_t>();
    CHECK(of_tensors == unit["parameters"]);
    parameters += of_tensors * unit["count"].get<std::int64_t>();
  }
  CHECK(parameters == model["parameters"]);
  CHECK(model["trained_parameters"] == model["parameters"]);
  // A layer of a GPT: 24 C^2 + 4 T C a token; the head 2 C V; a step is three forwards.
  const double c = 5120, t = model["sequence"].get<double>();
  const double layer = 24 * c * c + 4 * t * c;
  const double head = 2 * c * model["shape"]["vocabulary"].get<double>();
  CHECK(model["flops_per_token"]["layer_forward"].get<double>() == Approx(layer));
  CHECK(model["flops_per_token"]["forward"].get<double>() == Approx(40 * layer + head));
  CHECK(model["flops_per_token"]["step"].get<double>() == Approx(3 * (40 * layer + head)));
  double of_operators = 0;
  for (const json& one : model["operators"]) of_operators += one["forward_flops"].get<double>();
  CHECK(of_operators == Approx(layer));

  const Outcome text = run({"models", "llama-3-8b", "--sequence", "2048"});
  REQUIRE(text.exit_code == 0);
  CHECK_THAT(text.out,
             Catch::Contains("layers 0 to 31") && Catch::Contains("32 x 218.1") &&
                 Catch::Contains("self_attn.q_proj.weight") && Catch::Contains("4096 x 4096") &&
                 Catch::Contains("in sequences of 2048 tokens") && Catch::Contains("8.03 billion"));
  const json deeper = run({"models", "gpt-13b", "--set", "model.layers=48", "--json"}).json();
  CHECK(deeper["shape"]["layers"] == 48);
  // Of adapters the matrices are not trained.
  const json lora = run({"models", "llama-3-8b", "--set", "model.lora_rank=8", "--json"}).json();
  CHECK(lora["trained_parameters"] < lora["parameters"]);
}

TEST_CASE("An unknown name, or a setting without one, says what to do") {
  check_refusal(run({"machines", "rtx4090-12sd"}), 2, "unknown machine rtx4090-12sd",
                "did you mean rtx4090-12ssd");
  check_refusal(run({"policies", "greedysnack"}), 2, "unknown policy 'greedysnack'",
                "did you mean greedysnake?");
  check_refusal(run({"policies", "greedysnake:alpha=0.2"}), 2, "unknown policy", "name alone");
  check_refusal(run({"models", "gpt-14b"}), 2, "unknown model gpt-14b", "did you mean gpt-13b");
  check_refusal(run({"machines", "--set", "ssd.count=6"}), 2, "--set needs the name of one",
                "without a name all are listed");
  check_refusal(run({"machines", "h200", "--set", "ssd.cuont=6"}), 2, "unknown key ssd.cuont",
                "ssd.count");
  check_refusal(run({"models", "gpt-13b", "--set", "layers=48"}), 2, "--set layers=48",
                "model.layers=48");
  check_refusal(run({"models", "gpt-13b", "--sequence", "4000000"}), 2, "--sequence 4000000",
                "leave it out");
}

TEST_CASE("Without a name the lists stay as they are") {
  for (const char* command : {"machines", "models", "policies"}) {
    CHECK(run({command}).exit_code == 0);
    CHECK(run({command, "--json"}).json()[command].size() > 3);
  }
}
