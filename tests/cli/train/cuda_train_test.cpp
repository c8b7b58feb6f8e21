// spillway train --device cuda, as a user runs it, on the emulated GPU.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <optional>
#include <string>

#include "test_paths.hpp"
#include "tests/cli/program.hpp"
#include "tests/cli/train/ranks.hpp"

namespace spillway::test {
namespace {

// While it lives, programs find the emulated GPU.
struct EmulatedGpu {
  EmulatedGpu() { setenv("SPILLWAY_CUDA_MODULE", SPILLWAY_EMULATED_MODULE, 1); }
  ~EmulatedGpu() { unsetenv("SPILLWAY_CUDA_MODULE"); }
};

// Six steps of a model that is quick to emulate.
std::vector<std::string> cuda_training(const TemporaryFolder& folder, const std::string& policy,
                                       const std::vector<std::string>& more = {},
                                       const std::string& steps = "6") {
  std::string text;
  while (text.size() < 4000) text += "It spills over, and still it runs. ";
  std::filesystem::create_directory(folder.path() / "ssd");
  return std::vector<std::string>{"train",
                                  "--model",
                                  "gpt-tiny",
                                  "--set",
                                  "model.layers=2",
                                  "--set",
                                  "model.hidden=32",
                                  "--batch",
                                  "4",
                                  "--micro-batch",
                                  "2",
                                  "--sequence",
                                  "16",
                                  "--data",
                                  folder.write("text.txt", text),
                                  "--run",
                                  folder / "run",
                                  "--ssd",
                                  folder / "ssd",
                                  "--steps",
                                  steps,
                                  "--policy",
                                  policy,
                                  "--gpu-memory",
                                  "256MB",
                                  "--host-memory",
                                  "64MB",
                                  "--device",
                                  "cuda"} +
         more;
}

std::map<std::int64_t, double> losses_of(const std::vector<std::string>& arguments,
                                         const TemporaryFolder& folder) {
  const Outcome outcome = run(arguments);
  INFO(outcome.err);
  REQUIRE(outcome.exit_code == 0);
  return recorded_losses(folder / "run");
}

TEST_CASE("train --device cuda trains in bf16, under every placement with the same losses") {
  const EmulatedGpu gpu;
  const TemporaryFolder resident, offloaded, wide;
  const auto expected = losses_of(cuda_training(resident, "resident"), resident);
  REQUIRE(expected.size() == 6);
  CHECK(losses_of(cuda_training(offloaded, "zero-infinity"), offloaded) == expected);
  const auto fp32 = losses_of(cuda_training(wide, "resident", {"--precision", "fp32"}), wide);
  CHECK(fp32 != expected);
  for (const auto& [step, loss] : fp32) CHECK(loss == Approx(expected.at(step)).epsilon(0.02));
}

TEST_CASE("stages and ranks take a GPU each, and train what one process trains") {
  if (ranks_are_skipped()) return;
  const EmulatedGpu gpu;
  std::string told;
  const auto train = [&](int processes, const std::string& policy,
                         const std::vector<std::string>& more) {
    const TemporaryFolder folder;
    std::optional<StartedBy> by;
    if (processes > 1) by.emplace(mpirun(processes));
    setenv("SPILLWAY_EMULATED_GPUS", std::to_string(processes).c_str(), 1);
    const Outcome outcome = run(cuda_training(folder, policy, more, "3"));
    unsetenv("SPILLWAY_EMULATED_GPUS");
    INFO(policy << ": " << outcome.err);
    REQUIRE(outcome.exit_code == 0);
    told = outcome.err;
    return last_event(folder / "run");
  };
  const auto alone = train(1, "resident", {});
  for (const char* policy : {"1f1b", "zero-infinity"})
    CHECK(train(2, policy, {"--pipeline", "2"})["weights_hash"] == alone["weights_hash"]);
  // Sequences that are computed some at a time make gradients wider, on all of them.
  const std::vector<std::string> whole = {"--micro-batch", "4", "--sequences-at-once", "2"};
  CHECK(train(2, "resident", whole + std::vector<std::string>{"--pipeline", "2"})["weights_hash"] ==
        train(1, "resident", whole)["weights_hash"]);
  const auto together = train(2, "resident", {});
  CHECK(train(2, "zero-offload", {})["weights_hash"] == together["weights_hash"]);
  // From GPU to GPU, unless there is nothing to do it by.
  CHECK_THAT(told, Catch::Contains("from GPU to GPU by NCCL 2.28.9"));
  setenv("SPILLWAY_NCCL", "off", 1);
  CHECK(train(2, "resident", {})["weights_hash"] == together["weights_hash"]);
  CHECK(train(2, "1f1b", {"--pipeline", "2"})["weights_hash"] == alone["weights_hash"]);
  CHECK_THAT(told, Catch::Contains("by way of the host's memory: rank 0: SPILLWAY_NCCL is off"));
  unsetenv("SPILLWAY_NCCL");
  const StartedBy three(mpirun(3));
  setenv("SPILLWAY_EMULATED_GPUS", "2", 1);
  const TemporaryFolder folder;
  const Outcome refused =
      run(cuda_training(folder, "resident", {"--batch", "6", "--micro-batch", "1"}, "3"));
  unsetenv("SPILLWAY_EMULATED_GPUS");
  CHECK(refused.exit_code != 0);
  CHECK_THAT(refused.err, Catch::Contains("3 ranks on this computer, each with a GPU of its own"));
}

TEST_CASE("The limit of GPU memory counts workspaces, and so does the hint that raises it") {
  const EmulatedGpu gpu;
  const TemporaryFolder folder;
  // Less than the workspaces alone.
  auto words = cuda_training(folder, "resident", {}, "1");
  *std::next(std::find(words.begin(), words.end(), "--gpu-memory")) = "20MB";
  const Outcome outcome = run(words);
  check_complaint(outcome, 3, "does not fit in gpu memory", "would make it fit");
  CHECK_THAT(outcome.err,
             Catch::Contains("(20.00 MB less the ") && Catch::Contains(" of workspaces)"));
  const auto settings = settings_in_hint(outcome);
  REQUIRE(settings.size() == 2);
  REQUIRE(settings[0] == "--gpu-memory");
  *std::next(std::find(words.begin(), words.end(), "--gpu-memory")) = settings[1];
  const Outcome helped = run(words);
  INFO(helped.err);
  CHECK(helped.exit_code == 0);
}

TEST_CASE("train --device cuda says what it trains on, in JSON too") {
  const EmulatedGpu gpu;
  const TemporaryFolder folder;
  const Outcome outcome = run(cuda_training(folder, "resident", {"--json"}));
  INFO(outcome.err);
  REQUIRE(outcome.exit_code == 0);
  const auto lines = outcome.json_lines();
  CHECK(lines.front()["device"].get<std::string>() == "cuda (emulated GPU)");
  CHECK(lines.back()["event"] == "end");
}

TEST_CASE("train --policy auto without a machine file measures the GPU, once", "[slow]") {
  const EmulatedGpu gpu;
  const TemporaryFolder first, second, third, cache;
  const KeptMeasurements kept(cache / "kept");
  const auto start_of = [](std::vector<std::string> words, const std::string& device) {
    *std::next(std::find(words.begin(), words.end(), "--device")) = device;
    const Outcome outcome = run(words);
    INFO(outcome.err);
    REQUIRE(outcome.exit_code == 0);
    return outcome.json_lines().front();
  };
  const auto rates = start_of(cuda_training(first, "auto", {"--json"}, "2"), "cuda");
  CHECK(rates["rates"]["measured_seconds"] > 0.0);
  CHECK(rates["predicted_step_seconds"] > 0.0);
  CHECK_THAT(read_file(first.path() / "run/machine.toml"), Catch::Contains("on emulated GPU"));
  const auto again = start_of(cuda_training(second, "auto", {"--json"}, "2"), "cuda");
  CHECK(again["rates"]["measured_seconds"] == 0.0);
  CHECK(again["policy"] == rates["policy"]);
  // The CPU of this computer is another device.
  const auto cpu = start_of(cuda_training(third, "auto", {"--json"}, "2"), "cpu");
  CHECK(cpu["rates"]["measured_seconds"] > 0.0);
  CHECK(cpu["rates"]["kept_in"] != rates["rates"]["kept_in"]);
}

TEST_CASE("a training on a GPU that was stopped goes on where it was") {
  const EmulatedGpu gpu;
  const TemporaryFolder whole, part;
  const std::string policy = "greedysnake:optimizer_ssd=1";
  const auto expected = losses_of(cuda_training(whole, policy), whole);
  losses_of(cuda_training(part, policy, {}, "3"), part);
  const Outcome resumed = run({"train", "--resume", "--run", part / "run", "--steps", "6"});
  INFO(resumed.err);
  REQUIRE(resumed.exit_code == 0);
  CHECK(recorded_losses(part / "run") == expected);
}

TEST_CASE("algorithms of matrix products are kept, or chosen anew where the user says so") {
  const EmulatedGpu gpu;
  const TemporaryFolder whole, part;
  const auto expected = losses_of(cuda_training(whole, "zero-infinity"), whole);
  losses_of(cuda_training(part, "zero-infinity", {"--durability", "step"}, "3"), part);
  const std::vector<std::string> resume = {"train",      "--resume", "--run",
                                           part / "run", "--steps",  "6"};
  // As after an update of CUDA's libraries.
  setenv("SPILLWAY_EMULATED_CUBLASLT", "140100", 1);
  const Outcome refused = run(resume);
  CHECK(refused.exit_code == 2);
  CHECK_THAT(refused.err, Catch::Contains("cannot go on bit for bit") &&
                              Catch::Contains("140100") && Catch::Contains("--retune-matmul"));
  const Outcome anew = run(resume + std::vector<std::string>{"--retune-matmul"});
  INFO(anew.err);
  CHECK(anew.exit_code == 0);
  CHECK(recorded_losses(part / "run") == expected);  // the emulated library's bits are the same
  // What was chosen anew is what is recorded from there on; the option is not kept.
  const Outcome again = run({"train", "--resume", "--run", part / "run", "--steps", "7"});
  INFO(again.err);
  CHECK(again.exit_code == 0);
  unsetenv("SPILLWAY_EMULATED_CUBLASLT");
  CHECK(run({"train", "--resume", "--run", part / "run", "--steps", "8"}).exit_code == 2);
}

TEST_CASE("what tunes products and what computes GELU backward are part of what a training is") {
  const EmulatedGpu gpu;
  const TemporaryFolder folder;
  losses_of(cuda_training(
                folder, "zero-infinity",
                {"--tune-matmul", "off", "--gelu-backward", "dgelu", "--durability", "step"}, "2"),
            folder);
  const std::vector<std::string> resume = {"train",        "--resume", "--run",
                                           folder / "run", "--steps",  "4"};
  const auto refused = [&](const std::vector<std::string>& more, const char* why) {
    const Outcome outcome = run(resume + more);
    CHECK(outcome.exit_code == 2);
    CHECK_THAT(outcome.err, Catch::Contains(why));
  };
  refused({"--tune-matmul", "on"}, "--tune-matmul is on, but the training");
  refused({"--gelu-backward", "kernel"}, "--gelu-backward is kernel, but the training");
  const Outcome goes_on = run(resume);
  INFO(goes_on.err);
  CHECK(goes_on.exit_code == 0);
}

TEST_CASE("GELU's backward is computed as the machine file says") {
  const EmulatedGpu gpu;
  const TemporaryFolder by_option, by_file;
  const auto expected =
      losses_of(cuda_training(by_option, "resident", {"--gelu-backward", "dgelu"}), by_option);
  const auto words =
      cuda_training(by_file, "resident", {"--machine", "h200", "--set", "gpu.gelu_backward=dgelu"});
  CHECK(losses_of(words, by_file) == expected);
  const TemporaryFolder usual;
  CHECK(losses_of(cuda_training(usual, "resident"), usual) != expected);
}

TEST_CASE("options of how a GPU computes are refused where none does, or where they do nothing") {
  const TemporaryFolder folder;
  const std::vector<std::string> on_cpu = {"train", "--model",      "gpt-tiny", "--device", "cpu",
                                           "--run", folder / "run", "--steps",  "1"};
  for (const std::vector<std::string>& more :
       {std::vector<std::string>{"--tune-matmul", "off"}, {"--gelu-backward", "kernel"}}) {
    const Outcome outcome = run(on_cpu + more);
    CHECK(outcome.exit_code == 2);
    CHECK_THAT(outcome.err, Catch::Contains(more.front() + ": the CPU backend has no choice"));
  }
  const Outcome alone = run(on_cpu + std::vector<std::string>{"--retune-matmul"});
  CHECK(alone.exit_code == 2);
  CHECK_THAT(alone.err, Catch::Contains("goes with --resume"));
  CHECK(run(on_cpu + std::vector<std::string>{"--tune-matmul", "maybe"}).exit_code == 2);
}

TEST_CASE("SPILLWAY_CUDA_ATTENTION is part of what a training is, and kept when it is resumed",
          "[slow]") {
  const EmulatedGpu gpu;
  const auto weights = [](const std::vector<std::string>& words) {
    const Outcome outcome = run(words);
    INFO(outcome.err);
    REQUIRE(outcome.exit_code == 0);
    return outcome.json_lines().back().at("weights_hash").get<std::string>();
  };
  // Heads of 64, and more tokens than a tile of keys.
  const std::vector<std::string> more = {
      "--set", "model.hidden=64", "--set", "model.heads=1", "--sequences-at-once",
      "1",     "--durability",    "step",  "--json"};
  const TemporaryFolder usual, straight, stopped;
  const auto words = [&](const TemporaryFolder& folder, const std::string& steps) {
    std::vector<std::string> all = cuda_training(folder, "zero-infinity", more, steps);
    *std::next(std::find(all.begin(), all.end(), "--sequence")) = "140";
    return all;
  };
  const std::string expected_usual = weights(words(usual, "2"));
  setenv("SPILLWAY_CUDA_ATTENTION", "wgmma", 1);
  const std::string expected = weights(words(straight, "2"));
  CHECK(expected != expected_usual);
  weights(words(stopped, "1"));
  const std::vector<std::string> resume = {"train",   "--resume", "--run", stopped / "run",
                                           "--steps", "2",        "--json"};
  setenv("SPILLWAY_CUDA_ATTENTION", "mma", 1);
  const Outcome refused = run(resume);
  CHECK(refused.exit_code == 2);
  CHECK_THAT(refused.err, Catch::Contains("SPILLWAY_CUDA_ATTENTION is mma, but the training"));
  setenv("SPILLWAY_CUDA_ATTENTION", "quick", 1);
  CHECK(run(resume).exit_code == 2);
  unsetenv("SPILLWAY_CUDA_ATTENTION");
  CHECK(weights(resume) == expected);
}

}  // namespace
}  // namespace spillway::test
