// Who may write to the files and directories that Spillway is given, and to nothing else, cannot
// have it read, empty or change what is not theirs (docs/security.md).
#include <sys/stat.h>
#include <sys/statfs.h>
#include <unistd.h>

#include <bit>
#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>

#include "tests/cli/program.hpp"

using namespace spillway::test;
using nlohmann::json;
using Words = std::vector<std::string>;
namespace fs = std::filesystem;

namespace {

const Words on_ssd = {"--policy", "greedysnake:optimizer_ssd=1,snake=off", "--no-export", "--json"};
const std::string precious = "years of work";

Words resume(const std::string& run) { return {"train", "--resume", "--run", run, "--json"}; }

void train(const Words& arguments) {
  const Outcome outcome = run(arguments);
  INFO(outcome.err);
  REQUIRE(outcome.exit_code == 0);
}

// What run.json of the folder holds, changed.
void forge(const std::string& folder, const std::function<void(json&)>& change) {
  json saved = json::parse(read_file(folder + "/run.json"));
  change(saved);
  std::ofstream(folder + "/run.json") << saved.dump();
}

// Every file below a folder, with what it holds.
std::map<std::string, std::string> contents(const fs::path& folder) {
  std::map<std::string, std::string> all;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (entry.is_regular_file()) all[entry.path().string()] = read_file(entry.path());
  }
  return all;
}

}  // namespace

TEST_CASE("What run.json says of what to write over, to remove or to take is not obeyed",
          "[store]") {
  const TemporaryFolder folder;
  const std::string thesis = folder.write("thesis.json", precious);
  train(tiny_training(folder) + on_ssd);
  forge(folder / "run", [&](json& saved) {
    saved["options"]["trace"] = {thesis};
    for (const char* flag : {"overwrite", "remove_store", "take_over", "help", "quiet"})
      saved["options"][flag] = {"true"};
    saved["options"]["run"] = {folder / "elsewhere"};
    saved["options"]["no_such_option"] = {"1"};
  });
  train(resume(folder / "run") + Words{"--steps", "4"});
  CHECK(read_file(thesis) == precious);
  CHECK_FALSE(fs::exists(folder / "elsewhere"));
  CHECK(fs::exists(folder / "run/ssd/spillway-store-0.bin"));
}

TEST_CASE("A folder that names the state of another run as its own cannot use or remove it",
          "[store]") {
  const TemporaryFolder folder;
  train(tiny_training(folder) + on_ssd);
  const auto before = contents(folder / "run/ssd");
  const std::string forged = folder / "forged";
  fs::create_directory(forged);
  fs::copy(folder / "run/run.json", forged + "/run.json");
  const auto refused = [&] {
    check_refusal(run({"store", "remove", forged}), 2, "nothing was removed", "store remove");
    const Outcome outcome = run(resume(forged) + Words{"--steps", "4"});
    check_refusal(outcome, 2, "belongs to two runs", "--ssd");
    CHECK_THAT(outcome.err, Catch::Contains(folder / "run") && Catch::Contains(forged));
    CHECK(contents(folder / "run/ssd") == before);
  };
  SECTION("by its path") {
    forge(forged, [&](json& saved) { saved["store"]["directories"] = {folder / "run/ssd"}; });
    refused();
  }
  SECTION("by its path, as what a removal has left") {
    forge(forged, [&](json& saved) {
      saved["store"]["directories"] = {folder / "run/ssd"};
      saved["not_resumable"] = "its store was removed on purpose";
    });
    check_refusal(run({"store", "remove", forged}), 2, "nothing was removed", "store remove");
    CHECK(contents(folder / "run/ssd") == before);
  }
  SECTION("by a link in the folder") {
    fs::create_directory_symlink(folder / "run/ssd", forged + "/ssd");
    refused();
  }
  SECTION("as its own home, too") {
    struct stat status {};
    struct statfs system {};
    REQUIRE(::stat(forged.c_str(), &status) == 0);
    REQUIRE(::statfs(forged.c_str(), &system) == 0);
    forge(forged, [&](json& saved) {
      saved["store"]["directories"] = {folder / "run/ssd"};
      saved["home"]["path"] = forged;
      saved["home"]["inode"] = status.st_ino;
      saved["home"]["file_system"] = std::bit_cast<std::uint64_t>(system.f_fsid);
    });
    refused();
    // As one that has committed nothing yet, whose new store takes the place of the old.
    forge(forged, [&](json& saved) { saved["store"] = nullptr; });
    const Outcome outcome =
        run(resume(forged) + Words{"--steps", "4", "--ssd", folder / "run/ssd"});
    INFO(outcome.err);
    CHECK(outcome.exit_code == 2);
    CHECK(contents(folder / "run/ssd") == before);
  }
}

TEST_CASE("run.json that is nested without end, or no text at all, is refused", "[store]") {
  const TemporaryFolder folder;
  train(tiny_training(folder) + on_ssd);
  const std::string place = folder / "run/run.json";
  const auto refused = [&] {
    for (const Words& command : {resume(folder / "run"), Words{"store", "inspect", folder / "run"},
                                 Words{"store", "remove", folder / "run"}}) {
      const Outcome outcome = run(command);
      INFO(outcome.err);
      CHECK(outcome.signal == 0);
      CHECK(outcome.exit_code == 2);
    }
  };
  std::ofstream(place) << "{\"options\":" << std::string(1'000'000, '[');
  refused();
  std::ofstream(place) << std::string(100, '\0');
  refused();
  fs::resize_file(place, std::uintmax_t{1} << 40);  // a hole: takes no space
  refused();
  fs::remove(place);
  REQUIRE(::mkfifo(place.c_str(), 0600) == 0);
  refused();
  CHECK(fs::exists(folder / "run/ssd/spillway-store-0.bin"));
}

TEST_CASE("A commit record of a terabyte is refused", "[store]") {
  const TemporaryFolder folder;
  train(tiny_training(folder) + on_ssd);
  fs::resize_file(folder / "run/ssd/spillway-commit.bin", std::uintmax_t{1} << 40);
  for (const Words& command : {resume(folder / "run"), Words{"store", "inspect", folder / "run"}}) {
    const Outcome outcome = run(command);
    INFO(outcome.err);
    CHECK((outcome.exit_code == 0 || outcome.exit_code == 2));
  }
}

TEST_CASE("A trace of 20 GB is refused before it is read, as is a record with nothing in it",
          "[store]") {
  const TemporaryFolder folder;
  const std::string large = folder.write("large.json", "{");
  fs::resize_file(large, std::uintmax_t{20} << 30);
  check_refusal(run({"validate", large}), 2, "holds more than 2 GiB", "train");
  train(tiny_training(folder) + on_ssd);
  const std::string record = folder / "run/ssd/spillway-commit.bin";
  // Both slots say that they are as long as the file allows.
  constexpr std::uintmax_t bytes = std::uintmax_t{1} << 30;
  const std::string head = read_file(record).substr(0, 16384);
  fs::resize_file(record, bytes);
  const Outcome outcome = run({"store", "inspect", folder / "run"});
  INFO(outcome.err);
  CHECK(outcome.exit_code == 2);
}

TEST_CASE("Where the store is removed at the end, nothing is said of state on disk", "[store]") {
  const TemporaryFolder folder;
  const Outcome kept = run(tiny_training(folder) + Words{"--no-export"});
  CHECK_THAT(kept.out, Catch::Contains("to free it"));
  const Outcome removed = run(tiny_training(folder) +
                              Words{"--no-export", "--run", folder / "other", "--remove-store"});
  INFO(removed.err);
  CHECK(removed.exit_code == 0);
  CHECK_THAT(removed.out, !Catch::Contains("to free it"));
}

TEST_CASE("What a removal of a store that was broken off has left can be removed", "[store]") {
  const TemporaryFolder folder;
  train(tiny_training(folder) + on_ssd);
  const auto files = [&] { return std::distance(fs::directory_iterator(folder / "run/ssd"), {}); };
  REQUIRE(files() == 2);
  // As a crash leaves it after the first file.
  forge(folder / "run",
        [](json& saved) { saved["not_resumable"] = "its store was removed on purpose"; });
  fs::remove(folder / "run/ssd/spillway-commit.bin");
  check_refusal(run(resume(folder / "run") + Words{"--steps", "4"}), 2, "removed on purpose", "");
  CHECK(run({"store", "remove", folder / "run"}).exit_code == 0);
  CHECK(files() == 0);
}

TEST_CASE("A resumed run says which text it trains on", "[store]") {
  const TemporaryFolder folder;
  train(tiny_training(folder) + on_ssd);
  const std::string secret = folder.write("secret.txt", std::string(4000, 's'));
  forge(folder / "run", [&](json& saved) {
    saved["store"] = nullptr;
    saved["options"]["data"] = {secret};
  });
  const Outcome outcome = run({"train", "--resume", "--run", folder / "run"});
  INFO(outcome.err);
  CHECK_THAT(outcome.out, Catch::Contains("    " + secret));
}

TEST_CASE("A FIFO in the place of any file that is read is refused, not waited for", "[store]") {
  const TemporaryFolder folder;
  const std::string fifo = folder / "fifo.toml";
  REQUIRE(::mkfifo(fifo.c_str(), 0600) == 0);
  const Words workload = {"--batch", "2", "--sequence", "16", "--policy", "resident"};
  for (const Words& command :
       std::vector<Words>{Words{"estimate", "--model", fifo, "--machine", "testbed"} + workload,
                          Words{"estimate", "--model", "gpt-tiny", "--machine", fifo} + workload,
                          {"sweep", fifo, "--out", folder / "out"},
                          {"validate", fifo},
                          tiny_training(folder, fifo)}) {
    INFO(command[0]);
    const Outcome outcome = run(command);
    INFO(outcome.err);
    CHECK(outcome.signal == 0);
    CHECK(outcome.exit_code == 2);
    CHECK_THAT(outcome.err, Catch::Contains("fifo.toml"));
  }
}

TEST_CASE("A sweep appends to its own journal only", "[store]") {
  const TemporaryFolder folder;
  const std::string file = folder.write(
      "s.toml",
      "[fixed]\nmodel = \"gpt-tiny\"\nmachine = \"testbed\"\nsequence = 16\nbatch = 2\n"
      "policy = \"resident\"\n[[axis]]\n\"ssd.count\" = [1, 2]\n");
  const std::string thesis = folder.write("thesis.txt", precious);
  const Words sweep = {"sweep", file, "--out", folder / "out"};
  // The journal's name holds that of this host.
  REQUIRE(run(sweep).exit_code == 0);
  const std::string name =
      "out/parts/" + fs::directory_iterator(folder / "out/parts")->path().filename().string();
  const std::string journal = folder / name;
  fs::remove(journal);
  const auto refused = [&](const std::string& message) {
    const Outcome outcome = run(sweep);
    INFO(outcome.err);
    CHECK(outcome.exit_code == 2);
    CHECK_THAT(outcome.err, Catch::Contains(message));
    CHECK(read_file(thesis) == precious);
    fs::remove(journal);
  };
  fs::create_symlink(thesis, journal);
  refused("is a symbolic link");
  fs::create_hard_link(thesis, journal);
  refused("hard links");
  REQUIRE(::mkfifo(journal.c_str(), 0600) == 0);
  refused("is a FIFO");
  for (const std::string& text : {precious, precious + "\nand more\n"}) {
    folder.write(name, text);
    const Outcome outcome = run(sweep);
    check_complaint(outcome, 2, "is not a journal of Spillway", "another --out");
    CHECK(read_file(journal) == text);
  }
  fs::remove(journal);
  CHECK(run(sweep).exit_code == 0);
  // Results and pictures take the place of a sweep's only.
  fs::create_directory(folder / "mine");
  folder.write("mine/results.csv", precious);
  check_refusal(run({"sweep", file, "--out", folder / "mine"}), 2, "holds no sweep",
                "a new folder");
  CHECK(read_file(folder / "mine/results.csv") == precious);
}

TEST_CASE("A run whose folder is replaced by a link while it trains writes to its own folder only",
          "[store]") {
  const TemporaryFolder folder;
  const Words outputs = {"run.json", "metrics.jsonl", "model.safetensors", "trace.json.gz"};
  fs::create_directory(folder / "theirs");
  for (const std::string& name : outputs) folder.write("theirs/" + name, precious);
  const auto before = contents(folder / "theirs");
  const auto train_replaced = [&](const Words& more) {
    Program program(tiny_training(folder) + Words{"--steps", "40", "--json"} + more);
    while (program.running() && lines_of(program.output()).size() < 4) {
    }
    fs::rename(folder / "run", folder / "moved");
    fs::create_directory_symlink(folder / "theirs", folder / "run");
    const Outcome outcome = program.wait();
    CHECK(contents(folder / "theirs") == before);
    return outcome;
  };
  for (const Words& how : {Words{"--policy", "resident", "--durability", "off"},
                           Words{"--policy", "zero-infinity", "--durability", "step"}}) {
    const Outcome outcome = train_replaced(how);
    INFO(outcome.err);
    CHECK(outcome.exit_code == 0);
    for (const std::string& name : outputs) CHECK(fs::exists(folder / "moved" + "/" + name));
    CHECK(recorded_losses(folder / "moved").size() == 40);
    const bool durable = how.back() == "step";
    const Outcome resumed = run(resume(folder / "moved") + Words{"--steps", "42"});
    INFO(resumed.err);
    CHECK(resumed.exit_code == (durable ? 0 : 2));
    CHECK(contents(folder / "theirs") == before);
    fs::remove(folder / "run");
    fs::remove_all(folder / "moved");
  }
}

TEST_CASE("The name of a model leads a run nowhere but below runs/", "[store]") {
  const TemporaryFolder folder;
  fs::create_directory(folder / "work");
  const std::string text = folder.write("t.txt", std::string(3000, 'a'));
  const fs::path before = fs::current_path();
  for (const std::string name : {"../../evil", "/tmp/../evil", "..", ".hidden", "-rf", "a/b"}) {
    INFO(name);
    const std::string model = folder.write(
        "m.toml", "[[model]]\nname = \"" + name +
                      "\"\nlayers = 1\nhidden = 32\nheads = 2\nvocabulary = 256\npositions = 64\n");
    fs::current_path(folder / "work");
    const Outcome outcome =
        run({"train", "--model", model, "--data", text, "--batch", "2", "--sequence", "16",
             "--steps", "1", "--policy", "resident", "--json", "--no-export"});
    fs::current_path(before);
    INFO(outcome.err);
    REQUIRE(outcome.exit_code == 0);
    REQUIRE(std::distance(fs::directory_iterator(folder / "work/runs"), {}) == 1);
    const std::string made = fs::directory_iterator(folder / "work/runs")->path().filename();
    CHECK(made.find_first_of(".-") != 0);
    CHECK(folder.listing().size() > 3);
    CHECK(std::distance(fs::directory_iterator(folder / "work"), {}) == 1);
    CHECK(std::distance(fs::directory_iterator(folder.path()), {}) == 3);  // text, model, work
    fs::remove_all(folder / "work/runs");
  }
}
