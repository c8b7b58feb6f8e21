// spillway validate --kineto: a training of another program held against a simulated schedule.
#include <catch2/catch.hpp>

#include "test_paths.hpp"
#include "tests/cli/program.hpp"

using namespace spillway::test;
using nlohmann::json;
using Words = std::vector<std::string>;

namespace {

const std::string recorded = SPILLWAY_SOURCE_DIR "/tests/reference/kineto/";
const std::string trace = recorded + "gpt2-cpu.json.gz";

// Options by name, some of them left out or with other values.
Words command(std::map<std::string, std::string> given = {}) {
  std::map<std::string, std::string> options = {
      {"--kineto", trace},      {"--mapping", recorded + "mapping.toml"},
      {"--machine", "testbed"}, {"--model", recorded + "model.toml"},
      {"--policy", "resident"}, {"--batch", "4"},
      {"--micro-batch", "2"},   {"--sequence", "128"}};
  for (const auto& [name, value] : given) options[name] = value;
  Words words = {"validate"};
  for (const auto& [name, value] : options) {
    if (!value.empty()) words.insert(words.end(), {name, value});
  }
  return words;
}

}  // namespace

TEST_CASE("validate --kineto reports step, kinds, lanes and what is not mapped") {
  const Outcome text = run(command());
  INFO(text.err);
  REQUIRE(text.exit_code == 0);
  for (const char* words : {"gpt2-recorded with policy resident on testbed", "median of 3 steps",
                            "embed_forward+forward+head", "not mapped", "unmapped  "})
    CHECK_THAT(text.out, Catch::Contains(words));
  const Outcome outcome = run(command() + Words{"--json"});
  CHECK(outcome.err.empty());
  const json report = outcome.json();
  CHECK(report["model"] == "gpt2-recorded");
  CHECK(report["workload"]["micro_batches"] == 2);
  CHECK(report["measured_steps"] == 3);
  CHECK(report["left_out_steps"] == 1);
  const double predicted = report["predicted_step_seconds"],
               measured = report["measured_step_seconds"];
  CHECK(report["error"].get<double>() == Approx(predicted / measured - 1));
  CHECK(report["kinds"]["embed_backward"]["measured"].is_null());
  double kinds = 0;
  for (const auto& [name, kind] : report["kinds"].items()) {
    if (kind["measured"].is_null()) continue;
    kinds += kind["measured"].get<double>();
    CHECK(kind["error"].get<double>() ==
          Approx(kind["predicted"].get<double>() / kind["measured"].get<double>() - 1));
  }
  const double busy = report["lanes"]["gpu.compute"]["measured_busy"];
  CHECK(busy > 0.5);
  CHECK(kinds == Approx(busy * measured).epsilon(0.2));  // of medians, which need not add up
  REQUIRE(report["rules"].size() == 3);
  for (const auto& rule : report["rules"]) CHECK(rule["events"] > 0);
  // The same input gives the same bytes.
  CHECK(run(command() + Words{"--json"}).out == outcome.out);
}

TEST_CASE("the prediction is that of simulate, and another policy may need what no rule has") {
  const json simulated =
      run({"simulate", "--machine", "testbed", "--model", recorded + "model.toml", "--policy",
           "zero-offload", "--batch", "4", "--micro-batch", "2", "--sequence", "128", "--json"})
          .json();
  const json report = run(command({{"--policy", "zero-offload"}}) + Words{"--json"}).json();
  CHECK(report["predicted_step_seconds"].get<double>() ==
        Approx(simulated["step_seconds"].get<double>()).epsilon(0.02));
  CHECK(report["lanes"]["pcie.h2d"]["measured_busy"].is_null());
  CHECK(report["lanes"]["pcie.h2d"]["predicted_busy"] > 0);
}

TEST_CASE("the lanes of a PyTorch trace become a trace that Perfetto opens") {
  const TemporaryFolder folder;
  const std::string lanes = folder / "lanes.json";
  REQUIRE(run(command({{"--lanes", lanes}})).exit_code == 0);
  const json written = json::parse(read_file(lanes));
  CHECK(written["spillway"]["lanes"] == json{"gpu.compute"});
  CHECK(written["spillway"]["spans"] > 100);
  folder.write("mine.json", "{}");
  check_refusal(run(command({{"--lanes", folder / "mine.json"}})), 2, "mine.json", "");
}

TEST_CASE("validate --kineto says what is missing, and refuses damaged files by line") {
  const TemporaryFolder folder;
  for (const char* needed : {"--mapping", "--model", "--machine", "--policy"})
    check_refusal(run(command({{needed, ""}})), 2, std::string("--kineto needs ") + needed,
                  "docs/traces.md");
  check_refusal(run({"validate", trace, "--batch", "4"}), 2, "--batch goes with --kineto",
                "--kineto trace.json.gz");
  check_refusal(run(command() + Words{trace}), 2, "a second trace beside --kineto", "one of them");
  check_refusal(run(command({{"--kineto", folder / "none.json"}})), 2, "no such trace file", "");
  check_refusal(run(command({{"--kineto", folder.write("cut.json", "{\"traceEvents\":[\n{")}})), 2,
                "cut.json:2: the file ends in the middle", "again");
  check_refusal(run(command({{"--mapping", folder.write("m.toml", "[[rule]]\nlane = 'gpu'\n")}})),
                2, "m.toml:2:8: unknown lane gpu", "gpu.compute");
  check_refusal(run(command({{"--mapping", folder.write("w.toml", "rule = 3\n")}})), 2,
                "w.toml:1:8: rule is not a list of tables", "[[rule]]");
  check_complaint(run(command({{"--gpu-memory", "5MB"}})), 3, "does not fit", "--gpu-memory");
}
