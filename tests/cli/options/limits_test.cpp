// Numbers that are absurd, each in its range: an answer or a refusal, at once; never a crash, never
// without end.
#include <signal.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <random>
#include <thread>

#include "tests/cli/program.hpp"

using namespace spillway::test;
using Words = std::vector<std::string>;

namespace {

const Words policies = {"resident", "zero-offload",          "zero-infinity",
                        "fuyou",    "deep-optimizer-states", "greedysnake"};

Words model(const std::string& settings) {
  return {"--model", "gpt-tiny", "--machine", "rtx4090-12ssd", "--set", settings};
}

}  // namespace

TEST_CASE("A model too large to count with is refused at once by every command") {
  const TemporaryFolder folder;
  for (const auto& [layers, message] : std::vector<std::pair<std::string, std::string>>{
           {"100000", "100000 is outside 1 .. 5000"},
           {"5000", "more than the 1e+14 that a model may have"}}) {
    const Words absurd = {"--model", "gpt-tiny", "--set", "model.layers=" + layers,
                          "model.hidden=1000000"};
    for (const char* command : {"estimate", "simulate"}) {
      for (const std::string& policy : policies) {
        INFO(command << " " << policy);
        check_refusal(
            run(Words{command, "--policy", policy, "--machine", "rtx4090-12ssd"} + absurd), 2,
            message, "");
      }
    }
    check_refusal(run(Words{"compare", "--machine", "rtx4090-12ssd"} + absurd), 2, message, "");
    check_refusal(run(Words{"train", "--policy", "zero-infinity"} + absurd), 2, message, "");
    const std::string file = folder.write(
        "s.toml",
        "[fixed]\nmodel = \"gpt-tiny\"\nmachine = \"testbed\"\npolicy = \"fuyou\"\n[[axis]]\n"
        "\"model.layers\" = [" +
            layers + "]\n\"model.hidden\" = [1000000]\n");
    check_refusal(run({"sweep", file, "--out", folder / "out"}), 2, message, "");
  }
}

TEST_CASE("Long schedules are refused before they are built, with what would do") {
  check_refusal(
      run(Words{"simulate", "--policy", "resident", "--batch", "100000000", "--micro-batch", "1"} +
          model("model.layers=10")),
      2, "too long a schedule: some 86400 million tasks, more than the 20 million",
      "a larger --micro-batch");
  check_refusal(run(Words{"simulate", "--policy", "resident", "--batch", "1", "--steps", "1000",
                          "--gpu-memory", "100GB"} +
                    model("model.layers=5000")),
                2, "too long a schedule", "fewer steps");
  check_refusal(
      run(Words{"estimate", "--policy", "fuyou:group=2048"} + model("model.hidden=65536")), 2,
      "groups of 2048 elements are too many", "larger");
}

TEST_CASE("More activations than bytes can be counted are refused") {
  check_refusal(run(Words{"compare", "--batch", "100000000", "--sequence", "100000000"} +
                    model("model.positions=100000000")),
                2, "of activations, more than the 1.00 EB", "smaller batch");
}

TEST_CASE("A deep model of small layers is simulated by every policy") {
  for (const std::string& policy : policies) {
    INFO(policy);
    const Outcome outcome =
        run(Words{"estimate", "--policy", policy, "--batch", "1", "--sequence", "1"} +
            model("model.layers=2000"));
    CHECK((outcome.exit_code == 0 || outcome.exit_code == 3));
  }
}

TEST_CASE("Whole numbers that are too large are out of range in every command that takes some") {
  const std::string huge = "99999999999999999999";
  const Words problem = Words{"--machine", "testbed", "--policy", "resident"} + tiny_problem();
  for (const char* option :
       {"--steps", "--batch", "--micro-batch", "--sequence", "--sequences-at-once"}) {
    INFO(option);
    check_refusal(run(Words{"simulate"} + problem + Words{option, huge}), 2,
                  std::string(option) + ": " + huge + " is out of range", "simulate --help");
  }
  for (const char* option : {"--steps", "--seed", "--gpu", "--decay-steps"}) {
    INFO(option);
    check_refusal(run(Words{"train"} + tiny_problem() + Words{option, huge}), 2,
                  huge + " is out of range", "train --help");
  }
  check_complaint(run(Words{"train"} + tiny_problem() + Words{"--warmup", huge}), 2,
                  "--warmup " + huge, "");
  check_refusal(run({"sweep", "s.toml", "--out", "o", "--jobs", huge}), 2, "out of range", "sweep");
  // Octal, hexadecimal and blanks are not guessed at, infinity is no number.
  for (const char* text : {"010", "0x10", "1e3", "12 ", "8.0", "seven", "+", ""}) {
    INFO(text);
    check_complaint(run(Words{"simulate"} + problem + Words{"--batch", text}), 2, "--batch", "");
  }
  for (const char* text : {"inf", "nan", "1e999", "1,5"}) {
    INFO(text);
    check_refusal(run(Words{"train"} + tiny_problem() + Words{"--learning-rate", text}), 2,
                  "--learning-rate", "train --help");
  }
}

TEST_CASE("Numbers that are parts of options are out of range, too") {
  const std::string large = "99999999999999999999";
  const Words estimate = {"estimate", "--policy", "resident"};
  check_refusal(run(estimate + model("ssd.count=" + large)), 2, "out of range", "12");
  check_refusal(
      run(estimate + model("model.layers=1") + Words{"--durability", "interval=" + large}), 2,
      "out of range", "interval=20");
  const TemporaryFolder folder;
  const std::string file = folder.write("s.toml",
                                        "[fixed]\nmodel = \"gpt-tiny\"\nmachine = \"testbed\"\n"
                                        "sequence = 16\nbatch = 2\npolicy = \"resident\"\n");
  check_refusal(run({"sweep", file, "--out", folder / "out", "--jobs", "0"}), 2, "not in 1 .. 4096",
                "one job a core");
}

TEST_CASE("A size without its unit is refused with what to write") {
  const Words problem =
      Words{"simulate", "--machine", "testbed", "--policy", "resident"} + tiny_problem();
  check_refusal(run(problem + Words{"--gpu-memory", "8"}), 2,
                "--gpu-memory 8: \"8\" is not a size in bytes: the unit is missing",
                "write the unit, for example \"8GB\"");
  check_refusal(run(problem + Words{"--host-memory", "64"}), 2,
                "--host-memory 64: \"64\" is not a size in bytes: the unit is missing", "\"64GB\"");
  check_refusal(run(problem + Words{"--set", "gpu.memory=24"}), 2,
                "gpu.memory=24: gpu.memory: \"24\" is not a size in bytes", "\"24GB\"");
}

TEST_CASE("Machines that cannot be are refused, whatever is absurd about them") {
  const Words problem =
      Words{"estimate", "--machine", "testbed", "--policy", "greedysnake"} + tiny_problem();
  for (const char* setting :
       {"gpu.flops=1e-300FLOPS", "gpu.flops=1e300FLOPS", "pcie.h2d=1e-300GB/s", "ssd.read=1e40GB/s",
        "host.cores=1e300", "host.adam_rate=1e-9param/s", "gpu.launch=9000000000s",
        "gpu.memory=18EB", "host.adam_bytes_per_param=1e300", "ssd.count=1000000000000",
        "ssd.write_latency=1e9s"}) {
    INFO(setting);
    const Outcome outcome = run(problem + Words{"--set", setting});
    CHECK(outcome.exit_code == 2);
    CHECK_THAT(outcome.err, Catch::Contains(setting) && Catch::Contains("  hint: "));
  }
  check_refusal(run(problem + Words{"--set", "gpu.flops=1FLOPS"}), 2,
                "years of work on machine testbed", "too low");
}

TEST_CASE("Ctrl-C ends what takes long with 130, after a word on what is being done") {
  Program program(
      Words{"simulate", "--policy", "fuyou", "--batch", "1", "--sequence", "1", "--steps", "100"} +
      model("model.layers=5000"));
  while (program.running() && program.errors().find(" ... 0:0") == std::string::npos)
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  program.send(SIGINT);
  const Outcome outcome = program.wait();
  CHECK(outcome.signal == 0);
  CHECK(outcome.exit_code == 130);
  CHECK_THAT(outcome.err, Catch::Contains("simulating fuyou with micro-batches of 1") &&
                              Catch::Contains("spillway: interrupted"));
}

TEST_CASE("Absurd settings at random end in an answer or a refusal with a hint", "[slow]") {
  // Tens of thousands of groups of optimizer state, which hints are looked for with.
  CHECK(run({"estimate", "--model", "gpt-tiny", "--machine", "rtx4090-12ssd", "--policy", "fuyou",
             "--batch", "3", "--sequence", "1000", "--set", "model.heads=1", "model.layers=7",
             "model.hidden=1000000", "model.positions=1000000"})
            .exit_code == 3);
  const unsigned seed = std::random_device{}();
  INFO("seed " << seed);
  std::mt19937 random(seed);
  const auto pick = [&](const Words& from) { return from[random() % from.size()]; };
  const Words counts = {"1", "2", "3", "7", "64", "1000", "65537", "1000000", "100000000"};
  const Words rates = {"1", "1e3", "1e9", "1e15", "1e21", "1e-300", "1e300"};
  const Words sizes = {"1B", "1kB", "1MB", "1GB", "1PB", "1EB", "2EB", "18EB"};
  const std::vector<std::pair<std::string, std::string>> of_rate = {
      {"gpu.flops", "FLOPS"},
      {"pcie.h2d", "B/s"},
      {"pcie.d2h", "B/s"},
      {"host.bandwidth", "B/s"},
      {"host.adam_rate", "param/s"},
      {"ssd.read", "B/s"},
      {"ssd.write", "B/s"},
      {"ssd.total", "B/s"},
      {"gpu.adam_rate", "param/s"},
      {"pcie.total", "B/s"},
      {"gpu.attention_flops", "FLOPS"},
      {"host.core_bandwidth", "B/s"},
      {"host.io_bandwidth", "B/s"},
      {"gpu.multiprocessors", ""},
      {"gpu.clock", ""}};
  for (int round = 0; round < 60; ++round) {
    Words arguments = {
        random() % 4 == 0 ? "compare" : "estimate",      "--model", "gpt-tiny",     "--machine",
        pick({"testbed", "rtx4090-12ssd", "a100-80gb"}), "--set",   "model.heads=1"};
    if (arguments.front() == "estimate") arguments = arguments + Words{"--policy", pick(policies)};
    for (const char* key : {"layers", "hidden", "vocabulary", "positions"}) {
      if (random() % 2 == 0) continue;
      arguments = arguments + Words{"--set", std::string("model.") + key + "=" + pick(counts)};
    }
    for (const char* option : {"--batch", "--micro-batch", "--sequence"}) {
      if (random() % 2 == 0) arguments = arguments + Words{option, pick(counts)};
    }
    for (const auto& [key, unit] : of_rate) {
      if (random() % 6 == 0) arguments = arguments + Words{"--set", key + "=" + pick(rates) + unit};
    }
    for (const char* key : {"gpu.memory", "host.memory", "ssd.capacity"}) {
      if (random() % 4 == 0)
        arguments = arguments + Words{"--set", std::string(key) + "=" + pick(sizes)};
    }
    INFO("arguments: " << Catch::StringMaker<Words>::convert(arguments));
    const Outcome outcome = run(arguments);
    CHECK(outcome.signal == 0);
    CHECK((outcome.exit_code == 0 || outcome.exit_code == 2 || outcome.exit_code == 3));
    if (outcome.exit_code == 2) CHECK_THAT(outcome.err, Catch::Contains("  hint: "));
  }
}
