// A training run that cannot start leaves nothing behind; one that cannot end keeps what it has.
#include <sys/stat.h>

#include <catch2/catch.hpp>

#include "tests/cli/program.hpp"

using namespace spillway::test;
using Words = std::vector<std::string>;
namespace fs = std::filesystem;

namespace {

void leaves_nothing(const TemporaryFolder& folder, const Words& command, int exit_code,
                    const std::string& message, const std::string& hint) {
  const Words before = folder.listing();
  INFO(Catch::StringMaker<Words>::convert(command));
  check_refusal(run(command), exit_code, message, hint);
  CHECK(folder.listing() == before);
}

void refused(const TemporaryFolder& folder, const Words& arguments, int exit_code,
             const std::string& message, const std::string& hint) {
  leaves_nothing(folder, tiny_training(folder) + arguments, exit_code, message, hint);
}

void data_refused(const TemporaryFolder& folder, const std::string& data, const Words& arguments,
                  const std::string& message, const std::string& hint) {
  leaves_nothing(folder, tiny_training(folder, data) + arguments, 2, message, hint);
}

}  // namespace

TEST_CASE("What cannot be trained here is refused") {
  const TemporaryFolder folder;
  refused(folder, {"--device", "cuda"}, 2, "--device cuda:", "--device cpu");
  refused(folder, {"--device", "tpu"}, 2, "--device tpu is neither cpu nor cuda", "--device cpu");
  refused(folder, {"--device", "cpu", "--gpu", "0"}, 2, "--gpu 0 does not go with --device cpu",
          "leave one of them out");
  refused(folder, {"--device", "cuda", "--throttle", "h2d=1GB/s"}, 2,
          "--throttle makes the CPU backend slower", "--device cpu");
  refused(folder, {"--device", "cpu", "--batch", "4", "--sequences-at-once", "2"}, 2,
          "--sequences-at-once 2: the CPU backend computes one at a time", "leave it out");
  refused(folder, {"--batch", "4", "--sequences-at-once", "3"}, 2,
          "3 sequences at once do not divide a micro-batch of", "--sequences-at-once");
  refused(folder, {"--sequences-at-once", "0"}, 2, "--sequences-at-once 0", "divisor");
  refused(folder, {"--gradient-clip", "global"}, 2, "--gradient-clip global: not off",
          "global=1.0");
  refused(folder, {"--policy", "nope"}, 2, "unknown policy 'nope'", "resident");
  refused(folder, {"--set", "ssd.count=3"}, 2, "--set of a machine's key needs --machine",
          "--gpu-memory");
  refused(folder, {"--framework", "deepspeed-0.9"}, 2,
          "framework deepspeed-0.9:", "leave --framework and --set framework.KEY=VALUE out");
  refused(folder, {"--set", "framework.memory.gpu=1MB"}, 2, "framework spillway:memory.gpu=1MB:",
          "leave --framework and --set framework.KEY=VALUE out");
}

TEST_CASE("Numbers that no training can use are refused") {
  const TemporaryFolder folder;
  refused(folder, {"--steps", "0"}, 2, "--steps 0", "--steps 100");
  refused(folder, {"--steps", "-3"}, 2, "--steps -3", "--steps 100");
  refused(folder, {"--seed", "-1"}, 2, "--seed: -1 is not a whole number", "train --help");
  refused(folder, {"--batch", "3", "--micro-batch", "2"}, 2,
          "micro-batch 2 does not divide batch 3", "--micro-batch");
  refused(folder, {"--sequence", "4000"}, 2, "longer than the 1024 positions", "1024 or less");
  refused(folder, {"--learning-rate", "-1"}, 2, "--learning-rate", "default");
  for (const char* rate : {"nan", "inf"})
    refused(folder, {"--learning-rate", rate}, 2, "--learning-rate", "spillway train --help");
  refused(folder, {"--warmup", "20", "--decay-steps", "10"}, 2,
          "--decay-steps 10: not after the end", "default");
  refused(folder, {"--batch", "100000000", "--micro-batch", "1"}, 2, "too long a schedule",
          "--micro-batch");
  refused(folder, {"--beta1", "1"}, 2, "--beta1 1: not at least 0 and below 1", "default");
  refused(folder, {"--beta2", "1.5"}, 2, "--beta2 1.5", "default");
  refused(folder, {"--weight-decay", "-1"}, 2, "--weight-decay -1", "default");
  refused(folder, {"--warmup", "-1"}, 2, "--warmup -1", "default");
  refused(folder, {"--warmup", "100%"}, 2, "--warmup 100%: not at least 0 and below 100 %", "3%");
  refused(folder, {"--learning-rate-schedule", "cosin"}, 2, "no schedule of learning rates",
          "cosine");
  refused(folder, {"--learning-rate-schedule", "constant", "--decay-steps", "5"}, 2,
          "the learning rate is constant", "default");
  refused(folder, {"--final-learning-rate", "1.5"}, 2, "--final-learning-rate 1.5", "default");
  refused(folder, {"--decay-share", "0"}, 2, "--decay-share 0", "default");
  refused(folder, {"--decay-steps", "-1"}, 2, "--decay-steps -1", "default");
}

TEST_CASE("Text that is missing, empty or too short is refused") {
  const TemporaryFolder folder;
  fs::create_directory(folder / "nothing");
  data_refused(folder, folder / "missing.txt", {}, "missing.txt: No such file or directory",
               "spelling");
  data_refused(folder, folder.write("file", "text") + "/below", {}, "Not a directory", "");
  data_refused(folder, folder / "nothing", {}, "there is no file in", "folder with text");
  data_refused(folder, folder.write("empty.txt", ""), {}, "the training data is empty",
               "text in them");
  data_refused(folder, folder.write("short.txt", "too short"), {"--sequence", "512"},
               "has 9 bytes, a sequence of 512 tokens needs 513", "--sequence 8 or less");
}

TEST_CASE("Text in a folder that may not be read is refused") {
  if (::geteuid() == 0) {
    WARN("skipped: root may read every folder");
    return;
  }
  const TemporaryFolder folder;
  fs::create_directory(folder / "locked");
  ::chmod((folder / "locked").c_str(), 0);
  const Outcome outcome = run(tiny_training(folder, folder / "locked"));
  ::chmod((folder / "locked").c_str(), 0700);
  check_refusal(outcome, 2, "locked: Permission denied", "permissions");
}

TEST_CASE("A run folder is new or empty, and one that could not be used is as it was") {
  const TemporaryFolder folder;
  const std::string file = folder.write("file", "precious");
  fs::create_directory(folder / "full");
  folder.write("full/kept", "precious");
  refused(folder, {"--run", folder / "full"}, 2, "the folder is not empty", "name a new one");
  refused(folder, {"--run", file}, 2, "this is not a folder", "name a new folder");
  refused(folder, {"--run", file + "/run"}, 2, "Not a directory", "can be written");
  CHECK(read_file(file) == "precious");
  // An empty folder that was there stays, one that was made for the run goes, with those made above
  // it.
  fs::create_directory(folder / "empty");
  data_refused(folder, folder / "missing.txt", {"--run", folder / "empty"}, "missing.txt",
               "spelling");
  data_refused(folder, folder / "missing.txt", {"--run", folder / "made/for/this"}, "missing.txt",
               "spelling");
  data_refused(folder, folder / "missing.txt", {"--run", folder / "made/for/this/"}, "missing.txt",
               "spelling");
}

TEST_CASE("SSD directories are there, or are refused") {
  const TemporaryFolder folder;
  fs::create_directory(folder / "ssd");
  refused(folder, {"--ssd", folder / "missing"}, 2, "there is no such directory", "mounted");
  refused(folder, {"--ssd", folder / "ssd" + "," + folder / "missing"}, 2,
          "missing: there is no such directory", "mounted");
  refused(folder, {"--ssd", folder.write("file", "")}, 2, "there is no such directory", "mounted");
  refused(folder, {"--ssd", ","}, 2, "names no directory", "DIR[,DIR]");
}

TEST_CASE("An SSD that is too small is refused before training, and no store is left") {
  const TemporaryFolder folder;
  const SmallDisk disk(folder.path() / "small", "4m");
  if (!disk.mounted()) {
    WARN("skipped: " << disk.why_not());
    return;
  }
  refused(folder, {"--ssd", folder / "small"}, 3, "does not fit in ssd memory",
          "name more or other directories with --ssd");
  // The machine file promises more than there is.
  refused(folder, {"--ssd", folder / "small", "--machine", "testbed"}, 1, "the SSD store needs",
          "free space");
  refused(folder, {"--run", folder / "small/run", "--no-export"}, 3, "does not fit in ssd memory",
          "--ssd");
}

TEST_CASE("A disk that cannot be written to is refused before training") {
  const TemporaryFolder folder;
  const SmallDisk disk(folder.path() / "disk", "64m", true);
  if (!disk.mounted()) {
    WARN("skipped: " << disk.why_not());
    return;
  }
  refused(folder, {"--run", folder / "disk/run"}, 2, "Read-only file system", "can be written");
  refused(folder, {"--ssd", folder / "disk"}, 1, "Read-only file system", "name another directory");
}

TEST_CASE("A disk without room for the metrics or the weights is noticed before training") {
  const TemporaryFolder folder;
  const SmallDisk tiny(folder.path() / "tiny", "4k"), small(folder.path() / "small", "1m");
  if (!tiny.mounted() || !small.mounted()) {
    WARN("skipped: " << tiny.why_not());
    return;
  }
  const Words elsewhere = {"--policy", "resident", "--durability", "off"};
  refused(folder, {"--policy", "resident", "--run", folder / "small/run"}, 1,
          "the SSD store needs 23", "--durability off");
  refused(folder, elsewhere + Words{"--run", folder / "small/run"}, 1, "the trained weights need",
          "--no-export");
  folder.write("tiny/filler", std::string(4096, 'x'));
  refused(folder, elsewhere + Words{"--run", folder / "tiny/run", "--no-export"}, 1,
          "No space left on device", "disk is full");
}

TEST_CASE(
    "A disk that fills up during training ends it with a message, and what was recorded stays") {
  const TemporaryFolder folder;
  const SmallDisk small(folder.path() / "small", "64k");
  if (!small.mounted()) {
    WARN("skipped: " << small.why_not());
    return;
  }
  const Outcome outcome = run(tiny_training(folder) +
                              Words{"--policy", "resident", "--durability", "off", "--no-export",
                                    "--json", "--steps", "100000", "--run", folder / "small/run"});
  check_complaint(outcome, 1, "metrics.jsonl: No space left on device", "disk is full");
  const std::vector<nlohmann::json> events = outcome.json_lines();
  CHECK(events.front()["event"] == "start");
  CHECK(events.back()["event"] == "step");
  CHECK(fs::exists(folder / "small/run/metrics.jsonl"));
}

TEST_CASE("A trace that cannot be written fails the run, but the weights are there") {
  const TemporaryFolder folder;
  const Outcome outcome = run(tiny_training(folder) + Words{"--trace", "/dev/full", "--quiet"});
  check_complaint(outcome, 1, "/dev/full: cannot write: No space left on device", "disk is full");
  CHECK(fs::exists(folder / "run/model.safetensors"));
  CHECK_FALSE(fs::exists(folder / "run/trace.json.gz"));
}

TEST_CASE("Training that diverges says so") {
  const TemporaryFolder folder;
  const Outcome outcome =
      run(tiny_training(folder) + Words{"--quiet", "--steps", "10", "--learning-rate", "1e30"});
  check_complaint(outcome, 1, "the loss is", "smaller --learning-rate");
  CHECK(fs::exists(folder / "run/metrics.jsonl"));
  CHECK_FALSE(fs::exists(folder / "run/model.safetensors"));
  // The last step that was finite is still there.
  CHECK(run({"store", "inspect", folder / "run"}).exit_code == 0);
}
