// What is wrong is said in one line, what to do in another; the exit code is 2; nothing is written.
#include <catch2/catch.hpp>

#include "tests/cli/program.hpp"

using namespace spillway::test;
using Words = std::vector<std::string>;

namespace {

struct Case {
  Words arguments;
  std::string message, hint;
};

const Words sound =
    Words{"simulate", "--machine", "testbed", "--policy", "zero-infinity"} + tiny_problem();

void check_all(const std::vector<Case>& cases, const Words& command = {}) {
  for (const Case& one : cases) {
    const Words arguments = command + one.arguments;
    INFO("arguments: " << Catch::StringMaker<Words>::convert(arguments));
    check_refusal(run(arguments), 2, one.message, one.hint);
  }
}

}  // namespace

TEST_CASE("Commands and options that do not exist are named, with what is near") {
  check_all(
      {{{}, "no command is given", "simulate"},
       {{"simulte"}, "unknown command 'simulte'", "did you mean simulate?"},
       {{"frobnicate", "--model", "gpt-tiny"}, "unknown command 'frobnicate'", "known: calibrate"},
       {{"--frob"}, "unknown option --frob", "--help"},
       {{"--json", "policies"}, "unknown option --json before the command", "follow the command"},
       {{"simulate", "--modle", "gpt-tiny"},
        "simulate: unknown option --modle",
        "did you mean --model"},
       {{"policies", "--frob"}, "policies: unknown option --frob", "spillway policies --help"},
       {{"frameworks", "everything"}, "everything", "spillway frameworks --help"},
       {{"simulate", "--machine", "testbed", "--policy", "resident"},
        "--model is required",
        "simulate --help"},
       {{"simulate", "--model", "gpt-tiny", "--policy", "resident"},
        "--machine is required",
        "simulate --help"},
       {{"simulate", "--model", "gpt-tiny", "--machine", "testbed"},
        "--policy is required",
        "simulate --help"},
       {{"validate"}, "trace is required", "validate --help"}});
  check_all({{{"--batch"}, "--batch", "simulate --help"},
             {{"--batch", "many"}, "--batch", "simulate --help"},
             {{"stray"}, "stray", "simulate --help"}},
            sound);
}

TEST_CASE("Names that are not built in are named, with those that are") {
  check_all(
      {{{"--model", "gpt-tin"}, "unknown model gpt-tin", "did you mean gpt-tiny?"},
       {{"--machine", "tesbed"}, "unknown machine tesbed", "did you mean testbed?"},
       {{"--policy", "greedysnak"}, "unknown policy 'greedysnak'", "greedysnake"},
       {{"--policy", ""}, "unknown policy ''", "zero-infinity"},
       {{"--policy", "greedysnake:alfa=1"}, "no option 'alfa'", "alpha"},
       {{"--policy", "greedysnake:alpha=7"}, "alpha=7", "0 to 1"},
       {{"--policy", "greedysnake:alpha"}, "'alpha' is not OPTION=VALUE", "greedysnake:alpha=0.2"}},
      sound);
  check_all({{{"compare", "--model", "gpt-tiny", "--machine", "testbed", "--policy", "nope"},
              "unknown policy 'nope'",
              "resident"}});
}

TEST_CASE("Numbers out of range are refused, each with what would do") {
  check_all({{{"--batch", "0"}, "--batch 0", "--batch 8"},
             {{"--batch", "-3"}, "--batch -3", "--batch 8"},
             {{"--batch", "99999999999999999999"}, "is out of range", "simulate --help"},
             {{"--micro-batch", "0"}, "--micro-batch 0", "divisor"},
             {{"--micro-batch", "-1"}, "--micro-batch -1", "divisor"},
             {{"--batch", "8", "--micro-batch", "3"},
              "micro-batch 3 does not divide batch 8",
              "--micro-batch 2 or --micro-batch 4"},
             {{"--sequence", "0"}, "--sequence 0", "--sequence 512"},
             {{"--sequence", "-5"}, "--sequence -5", "--sequence 512"},
             {{"--sequence", "2000"},
              "sequence 2000 is longer than the 1024 positions",
              "--sequence 1024 or less"},
             {{"--steps", "0"}, "--steps 0", "leave it out"},
             {{"--steps", "-1"}, "--steps -1", "leave it out"},
             {{"--precision", "fp64"}, "fp64", "bf16"},
             {{"--moments", "fp16"}, "--moments fp16: neither fp32 nor bf16", "8, the moments"},
             {{"--gradient-bits", "8"}, "--gradient-bits 8 is not 16, 32 or auto", "leave it out"},
             {{"--gpu-memory", "64MX"}, "\"64MX\" is not a size in bytes", "24GB"},
             {{"--host-memory", "much"}, "\"much\" is not a size in bytes", "24GB"}},
            sound);
}

TEST_CASE("option --set names the key that is unknown or has a wrong value") {
  check_all({{{"--set", "gpu.memry=64MB"}, "unknown key gpu.memry", "did you mean gpu.memory?"},
             {{"--set", "model.layer=3"}, "unknown key layer", "layers"},
             {{"--set", "gpu.memory"}, "expected KEY=VALUE", "host.memory=256GB"},
             {{"--set", "gpu.memory=64MB/s"}, "\"64MB/s\" is not a size in bytes", "24GB"},
             {{"--set", "gpu.flops=fast"}, "gpu.flops", "TFLOPS"},
             {{"--set", "model.layers=0"}, "0 is outside 1 ..", ""}},
            sound);
}

TEST_CASE("A machine or model file that is wrong is named with its line") {
  const TemporaryFolder folder;
  const auto machine = [&](const std::string& text) {
    return Words{"--machine", folder.write("m.toml", text)};
  };
  const auto check = [&](const Words& arguments, const std::string& message,
                         const std::string& hint) {
    check_refusal(run(sound + arguments), 2, message, hint);
  };
  check(machine("name = \"m\"\n[gpu]\nmemory = \"1GB\"\nflops = \"1TFLOPS\"\nmemry = \"3GB\"\n"),
        "m.toml:5:1: unknown key gpu.memry", "did you mean gpu.memory?");
  check(machine("name = \"m\"\n[gpu]\nmemory = \"1GB/s\"\nflops = \"1TFLOPS\"\n"),
        "m.toml:3:10: gpu.memory: \"1GB/s\" is not a size in bytes", "24GB");
  check(machine("name = \"m\"\n[gpu]\nmemory = 64\nflops = \"1TFLOPS\"\n"), "m.toml:3", "24GB");
  check(machine("name = \"m\"\n[gpu]\nmemory = \"1GB\"\n"), "m.toml:2:1: gpu.flops, ", "160TFLOPS");
  check(machine("name = \"m\n"), "m.toml:1", "docs/machine-files.md");
  check(machine(""), "m.toml:1:1: name, ", "name =");
  check({"--machine", folder / "missing.toml"},
        "missing.toml: cannot read: No such file or directory", "spelling");
  check({"--machine", folder.path().string()}, "is a directory", "TOML file");
  check({"--machine", folder.write("file", "") + "/m.toml"}, "Not a directory", "path");
  check({"--model", folder.write("model.toml",
                                 "[[model]]\nname = \"m\"\nlayers = 2\nhidden = 65\nheads = "
                                 "2\nvocabulary = 256\npositions = 64\n")},
        "model.toml", "");
  check({"--model", folder.write("none.toml", "")}, "none.toml: there is no model", "[[model]]");
}

TEST_CASE(
    "A file that cannot be written to is refused before any work, and none is left half-written") {
  const TemporaryFolder folder;
  const std::string missing = folder / "missing/t.json", file = folder.write("file", "precious");
  const Words before = folder.listing();
  const Words calibrate = {"calibrate",  "--model", "gpt-tiny", "--batch", "1",
                           "--sequence", "16",      "--ssd",    ""};
  for (const auto& [command, option] :
       std::vector<std::pair<Words, std::string>>{{sound, "--trace"},
                                                  {sound, "--dot"},
                                                  {calibrate, "--out"},
                                                  {tiny_training(folder), "--trace"}}) {
    INFO(command.front() << " " << option);
    check_refusal(
        run(command + Words{option, missing}), 2,
        option + " " + missing + ": " + folder / "missing" + ": there is no such directory",
        "create it");
    check_refusal(run(command + Words{option, file + "/t.json"}), 2, "there is no such directory",
                  "create it");
    check_refusal(run(command + Words{option, folder.path().string()}), 2, "this is a directory",
                  "name a file in it");
  }
  for (const char* option : {"--trace", "--dot"}) {
    check_refusal(run(sound + Words{option, "/dev/full"}), 1,
                  "/dev/full: cannot write: No space left on device", "free space");
  }
  CHECK(read_file(file) == "precious");
  std::filesystem::remove(folder / "text.txt");
  CHECK(folder.listing() == before);
}

TEST_CASE("calibrate refuses before it measures") {
  const TemporaryFolder folder;
  const Words calibrate = {"calibrate", "--model", "gpt-tiny", "--out", folder / "machine.toml"};
  check_all({{{"--ssd", folder / "missing"}, "there is no such directory", "mounted"},
             {{"--batch", "0"}, "--batch", "--batch 8"},
             {{"--samples", "3"}, "--samples must be at least 10", "median"},
             {{"--sequence", "0"}, "sequence = 0", "at least 1"},
             {{"--sequence", "5000"}, "longer than the 1024 positions", "1024 or less"}},
            calibrate);
  CHECK(folder.listing().empty());
}
