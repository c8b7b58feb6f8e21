// --ssd DIR --ssd2 DIR: a run on two sets of drives is killed, goes on, is exported, validated, and
// may go on with one.
#include <signal.h>

#include <catch2/catch.hpp>
#include <thread>

#include "tests/cli/program.hpp"

using namespace spillway::test;
using nlohmann::json;
using Words = std::vector<std::string>;
namespace fs = std::filesystem;

namespace {

const Words all_on_drives = {"--policy",
                             "greedysnake:optimizer_ssd=1,parameters_ssd=1,checkpoints_ssd=1,snake="
                             "off",
                             "--json", "--steps", "30"};

// Two directories on the first set, one on the second.
Words in_sets(const TemporaryFolder& folder) {
  for (const char* name : {"a", "b", "c"}) fs::create_directories(folder / name);
  return {"--ssd", folder / "a," + folder / "b", "--ssd2", folder / "c"};
}

// Kills the program once so many commits are told.
void kill_after(const Words& arguments, std::size_t commits) {
  Program program(arguments);
  const auto told = [&] {
    std::size_t found = 0;
    const std::string text = program.output();
    for (std::size_t at = text.find("\"commit\""); at != std::string::npos;
         at = text.find("\"commit\"", at + 1))
      ++found;
    return found;
  };
  while (program.running() && told() < commits)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  program.send(SIGKILL);
  CHECK(program.wait().signal == SIGKILL);
}

// A machine file for this computer, on drives that were measured as nobody's are.
std::string machine_with_two_sets(const TemporaryFolder& folder) {
  return folder.write("two.toml",
                      "name = \"two-sets\"\n"
                      "[gpu]\nis_cpu = true\nmemory = \"1GB\"\nflops = \"20GFLOPS\"\n"
                      "adam_rate = \"0.1Gparam/s\"\n"
                      "[pcie]\nh2d = \"4GB/s\"\nd2h = \"4GB/s\"\n"
                      "[host]\nmemory = \"1GB\"\nbandwidth = \"20GB/s\"\ncores = 2\n"
                      "[ssd]\ncount = 1\ncapacity = \"1GB\"\nread = \"900MB/s\"\n"
                      "write = \"600MB/s\"\nlaw = \"duplex\"\n"
                      "[ssd2]\ncount = 1\ncapacity = \"1GB\"\nread = \"300MB/s\"\n"
                      "write = \"200MB/s\"\nlaw = \"duplex\"\n");
}

}  // namespace

TEST_CASE(
    "train --ssd A,B --ssd2 C: killed and gone on with, the bits of one set, wherever it goes on",
    "[store]") {
  const TemporaryFolder folder;
  const Words sets = in_sets(folder);
  const Outcome one = run(tiny_training(folder) + all_on_drives + Words{"--run", folder / "one"});
  INFO(one.err);
  REQUIRE(one.exit_code == 0);
  const Words two = tiny_training(folder) + all_on_drives + sets + Words{"--no-export"};
  kill_after(two + Words{"--run", folder / "two"}, 4);
  for (const char* name : {"a", "c"}) CHECK(!fs::is_empty(folder / name));
  const Outcome looked = run({"store", "inspect", folder / "two", "--json"});
  INFO(looked.err);
  REQUIRE(looked.exit_code == 0);
  CHECK(json::parse(looked.out)["stores"][0]["state_bytes"]["ssd2"] > 0);
  CHECK(json::parse(looked.out)["stores"][0]["bad_chunks"].empty());
  // In place, as it was.
  kill_after({"train", "--resume", "--run", folder / "two", "--json"}, 3);
  // On one set, and to the end on two others.
  fs::create_directories(folder / "d");
  kill_after({"train", "--resume", "--run", folder / "two", "--json", "--ssd", folder / "d"}, 3);
  CHECK(fs::is_empty(folder / "a"));
  CHECK(fs::is_empty(folder / "c"));
  const Outcome rest = run({"train", "--resume", "--run", folder / "two", "--json", "--ssd",
                            folder / "c", "--ssd2", folder / "d"});
  INFO(rest.err);
  REQUIRE(rest.exit_code == 0);
  CHECK(recorded_losses(folder / "two") == recorded_losses(folder / "one"));
  CHECK(rest.json_lines().back()["weights_hash"] == one.json_lines().back()["weights_hash"]);
  const Outcome exported = run({"export", folder / "two", "--out", folder / "out"});
  INFO(exported.err);
  REQUIRE(exported.exit_code == 0);
  CHECK(read_file(folder / "out/model.safetensors") == read_file(folder / "one/model.safetensors"));
}

TEST_CASE("a run on two sets is held against its prediction, lane by lane", "[store]") {
  const TemporaryFolder folder;
  in_sets(folder);
  const std::string machine = machine_with_two_sets(folder);
  const Outcome trained =
      run(tiny_training(folder) + all_on_drives +
          Words{"--run", folder / "run", "--machine", machine, "--ssd", folder / "a", "--ssd2",
                folder / "b", "--trace", folder / "trace.json", "--throttle",
                "ssd.read=900MB/s,ssd.write=600MB/s,ssd2.read=300MB/s,ssd2.write=200MB/s"});
  INFO(trained.err);
  REQUIRE(trained.exit_code == 0);
  const Outcome held = run({"validate", folder / "trace.json", "--machine", machine, "--json"});
  INFO(held.err);
  REQUIRE(held.exit_code == 0);
  CHECK(held.out.find("ssd2.read") != std::string::npos);
  CHECK(held.out.find("ssd2.write") != std::string::npos);
  // The same plan at other rates, by a file of today.
  std::string text = read_file(machine);
  text.replace(text.find("300MB/s"), 7, "250MB/s");
  const Outcome again = run(
      {"validate", folder / "trace.json", "--machine", folder.write("today.toml", text), "--json"});
  INFO(again.err);
  CHECK(again.exit_code == 0);
  text.erase(text.find("[ssd2]"));
  check_refusal(
      run({"validate", folder / "trace.json", "--machine", folder.write("one.toml", text)}), 2,
      "recorded on 2 sets of drives", "ssd2.count");
}

TEST_CASE("sets of drives that cannot be are refused with what to do", "[store]") {
  const TemporaryFolder folder;
  in_sets(folder);
  const Words training = tiny_training(folder) + all_on_drives + Words{"--run", folder / "run"};
  check_refusal(run(training + Words{"--ssd", folder / "a", "--ssd2", ","}), 2,
                "--ssd2 ,: names no directory", "--ssd2 DIR");
  check_refusal(run(training + Words{"--ssd", folder / "a", "--ssd2", folder / "a"}), 2,
                "named twice", "once");
  check_refusal(run(training + Words{"--ssd", folder / "a", "--ssd3", folder / "b"}), 2,
                "after one that has no directories", "--ssd2");
  check_refusal(run(training + Words{"--throttle", "ssd2.read=1MB/s"}), 2, "no directories on ssd2",
                "--ssd2");
  // A machine that knows one set.
  std::string one = read_file(machine_with_two_sets(folder));
  one.erase(one.find("[ssd2]"));
  const std::string known = folder.write("one.toml", one);
  check_refusal(
      run(training + Words{"--machine", known, "--ssd", folder / "a", "--ssd2", folder / "b"}), 2,
      "2 sets of drives, and machine two-sets has 1", "ssd2.count");
  // One that knows two, of which one is named: said, and planned so.
  const Outcome first = run(training + Words{"--machine", machine_with_two_sets(folder), "--ssd",
                                             folder / "a", "--steps", "2"});
  INFO(first.err);
  CHECK(first.exit_code == 0);
  CHECK(first.err.find("the others are left out") != std::string::npos);
}

TEST_CASE("a folder may have a colon in its name, and directories may change their sets",
          "[store]") {
  const TemporaryFolder folder;
  in_sets(folder);
  const std::string run_folder = folder / "runs/10:30";
  const Words training = tiny_training(folder) + all_on_drives + Words{"--run", run_folder};
  REQUIRE(run(training + Words{"--steps", "3"}).exit_code == 0);
  const Outcome rest = run({"train", "--resume", "--run", run_folder, "--steps", "5"});
  INFO(rest.err);
  CHECK(rest.exit_code == 0);
  // Two sets, turned round: a new store, not the old one in place.
  const Words two = tiny_training(folder) + all_on_drives + Words{"--run", folder / "run"};
  const Words there = {"--ssd", folder / "a", "--ssd2", folder / "b"};
  REQUIRE(run(two + there + Words{"--steps", "3"}).exit_code == 0);
  REQUIRE(run({"train", "--resume", "--run", folder / "run", "--ssd", folder / "b", "--ssd2",
               folder / "a", "--steps", "5"})
              .exit_code == 0);
  const Outcome looked = run({"store", "inspect", folder / "run", "--json"});
  const json store = json::parse(looked.out)["stores"][0];
  CHECK(store["generation"] == 1);
  CHECK(store["directories"][0].get<std::string>().back() == 'b');
}

TEST_CASE("what is written is counted on all sets, and the one that wears out first is told",
          "[cli]") {
  const Words problem = {"simulate",     "--model", "gpt-13b", "--machine",
                         "rtx4090-2ssd", "--batch", "8",       "--policy",
                         "fuyou",        "--json",  "--set",   "ssd.tbw=600TB"};
  const auto wear = [&](const Words& more) {
    const Outcome outcome = run(problem + more);
    INFO(outcome.err);
    REQUIRE(outcome.exit_code == 0);
    return json::parse(outcome.out)["wear"];
  };
  const Words second = {"ssd2.count=2", "ssd2.capacity=4TB", "ssd2.read=14GB/s",
                        "ssd2.write=13.4GB/s", "ssd2.law=duplex"};
  const json one = wear({}), two = wear(second + Words{"ssd2.tbw=60000TB"});
  // But for the record of a commit, which has a part more for each.
  CHECK(one["bytes_per_step"].get<double>() ==
        Approx(two["bytes_per_step"].get<double>()).epsilon(1e-6));
  // The second set is rated for a hundred times as much: the first is worn out all the same.
  const auto rated = [](const json& of) { return of["rated_bytes"].get<double>(); };
  CHECK(rated(two) > rated(one));
  CHECK(rated(two) < 10 * rated(one));
}

TEST_CASE("machines, compare and simulate tell the sets of drives of a machine", "[cli]") {
  const TemporaryFolder folder;
  const std::string machine = machine_with_two_sets(folder);
  const Outcome described = run({"machines", machine});
  CHECK(described.out.find("on 1 of ssd2") != std::string::npos);
  CHECK(described.out.find("ssd2.read") != std::string::npos);
  const Words problem = {"--model", "gpt-tiny", "--machine",  machine,
                         "--batch", "8",        "--sequence", "64"};
  const Outcome simulated =
      run(Words{"simulate", "--policy", "fuyou", "--micro-batch", "2"} + problem);
  INFO(simulated.err);
  REQUIRE(simulated.exit_code == 0);
  CHECK(simulated.out.find("\n  ssd2 ") != std::string::npos);
  CHECK(simulated.out.find("ssd2.write") != std::string::npos);
  // Where drives are what a step waits for, the first set alone is slower.
  const Words slow = {"--set", "ssd.read=9MB/s", "ssd.write=6MB/s", "ssd2.read=3MB/s",
                      "ssd2.write=2MB/s"};
  const auto seconds = [&](const Words& more) {
    const Outcome outcome = run(
        Words{"simulate", "--policy", "fuyou", "--micro-batch", "2", "--json"} + problem + more);
    REQUIRE(outcome.exit_code == 0);
    return json::parse(outcome.out)["step_seconds"].get<double>();
  };
  CHECK(seconds(slow) < 0.9 * seconds(slow + Words{"ssd2.count=0"}));
}
