// Folders of runs that are copied, moved, put back and linked, through the program: each command as
// a user would type it.
#include <signal.h>
#include <sys/stat.h>

#include <catch2/catch.hpp>
#include <cstdlib>
#include <filesystem>

#include "tests/cli/program.hpp"

using namespace spillway::test;
using nlohmann::json;
using Words = std::vector<std::string>;
namespace fs = std::filesystem;

namespace {

const Words on_ssd = {"--policy", "greedysnake:optimizer_ssd=1,snake=off", "--no-export", "--json"};

void shell(const std::string& command) {
  INFO(command);
  REQUIRE(std::system(command.c_str()) == 0);
}

Words resume(const std::string& run) { return {"train", "--resume", "--run", run, "--json"}; }

std::int64_t committed(const std::string& run_or_ssd) {
  const Outcome outcome = run({"store", "inspect", run_or_ssd, "--json"});
  INFO(outcome.err);
  REQUIRE(outcome.exit_code == 0);
  const json store = outcome.json()["stores"][0];
  CHECK(store["bad_chunks"].empty());
  return store["step"];
}

json end_of(const Outcome& outcome) {
  INFO(outcome.err);
  REQUIRE(outcome.exit_code == 0);
  return outcome.json_lines().back();
}

// What a run of six steps that nothing happened to ends with.
std::string hash_of_whole(const TemporaryFolder& folder, const Words& arguments) {
  return end_of(run(arguments + Words{"--steps", "6", "--run", folder / "whole"}))["weights_hash"];
}

}  // namespace

TEST_CASE("a copied run goes on with its own state, and leaves the original alone", "[store]") {
  const TemporaryFolder folder;
  const Words arguments = tiny_training(folder) + on_ssd;
  const std::string hash = hash_of_whole(folder, arguments);
  end_of(run(arguments + Words{"--steps", "3"}));
  for (const std::string way : {"cp -r", "cp -a", "cp -r --reflink=auto"}) {
    INFO(way);
    shell(way + " " + folder / "run" + " " + folder / "backup");
    const Outcome copy = run(resume(folder / "backup") + Words{"--steps", "6"});
    CHECK(end_of(copy)["weights_hash"] == hash);
    CHECK_THAT(copy.err, Catch::Contains("a copy of") && Catch::Contains("a run of its own") &&
                             Catch::Contains("its text: " + folder / "text.txt"));
    CHECK(committed(folder / "backup") == 6);
    CHECK(committed(folder / "run") == 3);
    // Also where it moves its state elsewhere, or removes it.
    fs::create_directories(folder / "drive");
    end_of(run(resume(folder / "backup") +
               Words{"--steps", "7", "--ssd", folder / "drive", "--remove-store"}));
    CHECK(fs::is_empty(folder / "drive"));
    CHECK(committed(folder / "run") == 3);
    fs::remove_all(folder / "backup");
  }
  CHECK(end_of(run(resume(folder / "run") + Words{"--steps", "6"}))["weights_hash"] == hash);
}

TEST_CASE("a run that was moved, or put back from a backup, goes on and can be inspected",
          "[store]") {
  const TemporaryFolder folder;
  const Words arguments = tiny_training(folder) + on_ssd;
  const std::string hash = hash_of_whole(folder, arguments);
  end_of(run(arguments + Words{"--steps", "2"}));
  shell("mv " + folder / "run" + " " + folder / "renamed");
  CHECK(committed(folder / "renamed") == 2);
  end_of(run(resume(folder / "renamed") + Words{"--steps", "3"}));
  shell("cp -a " + folder / "renamed" + " " + folder / "backup");
  end_of(run(resume(folder / "renamed") + Words{"--steps", "5"}));
  shell("rm -r " + folder / "renamed" + " && mv " + folder / "backup" + " " + folder / "renamed");
  CHECK(committed(folder / "renamed") == 3);
  CHECK(end_of(run(resume(folder / "renamed") + Words{"--steps", "6"}))["weights_hash"] == hash);
}

TEST_CASE("state outside of the folder that two runs claim is refused with both names", "[store]") {
  const TemporaryFolder folder;
  for (const char* name : {"a", "b", "own"}) fs::create_directory(folder / name);
  const Words arguments = tiny_training(folder) + on_ssd;
  const std::string hash = hash_of_whole(folder, arguments);
  end_of(run(arguments + Words{"--steps", "3", "--ssd", folder / "a" + "," + folder / "b"}));
  shell("cp -r " + folder / "run" + " " + folder / "twin");
  const Outcome refused = run(resume(folder / "twin") + Words{"--steps", "6"});
  check_refusal(refused, 2, "belongs to two runs", "--ssd");
  CHECK_THAT(refused.err, Catch::Contains(folder / "run") && Catch::Contains(folder / "twin"));
  check_refusal(run({"store", "remove", folder / "twin"}), 2, folder / "run", "of that folder");
  CHECK(committed(folder / "run") == 3);
  // With directories of its own the copy is filled from there, and is a run of its own.
  CHECK(end_of(run(resume(folder / "twin") +
                   Words{"--steps", "6", "--ssd", folder / "own"}))["weights_hash"] == hash);
  CHECK(committed(folder / "twin") == 6);
  CHECK(committed(folder / "run") == 3);
  // A run that takes over has it; then the other one is refused.
  shell("cp -r " + folder / "run" + " " + folder / "heir");
  end_of(run(resume(folder / "heir") + Words{"--steps", "4", "--take-over"}));
  check_refusal(run(resume(folder / "run") + Words{"--steps", "6"}), 2, folder / "heir", "--ssd");
  // Once that is gone there is only one; but it may have been renamed.
  shell("mv " + folder / "heir" + " " + folder / "heir2");
  check_refusal(run(resume(folder / "run") + Words{"--steps", "6"}), 2, folder / "heir",
                "--take-over");
  check_refusal(run({"store", "remove", folder / "run"}), 2, "nothing was removed",
                "of that folder");
  CHECK(committed(folder / "heir2") == 4);
  shell("rm -r " + folder / "heir2");
  CHECK(end_of(run(resume(folder / "run") +
                   Words{"--steps", "6", "--take-over"}))["weights_hash"] == hash);
}

TEST_CASE("a copy without its state does not take that of the original", "[store]") {
  const TemporaryFolder folder;
  const Words arguments = tiny_training(folder) + on_ssd;
  const std::string hash = hash_of_whole(folder, arguments);
  end_of(run(arguments + Words{"--steps", "3"}));
  shell("cp -r " + folder / "run" + " " + folder / "copy && rm -r " + folder / "copy/ssd");
  const Words there = {"--ssd", folder / "run/ssd", "--steps", "6"};
  check_refusal(run(resume(folder / "copy") + there), 2, "belongs to two runs", "--ssd");
  CHECK(committed(folder / "run") == 3);
  // Filled from there, into directories of its own: it can only be told where both are.
  CHECK(end_of(run(resume(folder / "run") + Words{"--steps", "6"}))["weights_hash"] == hash);
}

TEST_CASE("a copy that could not be filled can still take over, once the original is gone",
          "[store]") {
  const TemporaryFolder folder;
  fs::create_directory(folder / "a");
  const SmallDisk disk(folder.path() / "small", "100k");
  if (!disk.mounted()) {
    WARN(disk.why_not());
    return;
  }
  const Words arguments =
      tiny_training(folder) + Words{"--policy", "resident", "--no-export", "--json"};
  const std::string hash = hash_of_whole(folder, arguments);
  end_of(run(arguments + Words{"--steps", "3", "--ssd", folder / "a"}));
  shell("cp -r " + folder / "run" + " " + folder / "twin");
  CHECK(run(resume(folder / "twin") + Words{"--steps", "6", "--ssd", folder / "small"}).exit_code ==
        1);
  shell("rm -r " + folder / "run");
  CHECK(end_of(run(resume(folder / "twin") +
                   Words{"--steps", "6", "--take-over"}))["weights_hash"] == hash);
  CHECK(committed(folder / "twin") == 6);
}

TEST_CASE("SSD directories that are mounted under other names, in any order, are recognised",
          "[store]") {
  const TemporaryFolder folder;
  for (const char* name : {"a", "b"}) fs::create_directory(folder / name);
  const Words arguments = tiny_training(folder) + on_ssd;
  const std::string hash = hash_of_whole(folder, arguments);
  end_of(run(arguments + Words{"--steps", "3", "--ssd", folder / "a" + "," + folder / "b"}));
  fs::rename(folder / "a", folder / "x");
  fs::rename(folder / "b", folder / "y");
  check_refusal(run(resume(folder / "run") + Words{"--steps", "6"}), 2, "is missing", "--ssd");
  const std::uintmax_t inode_count = 3;
  CHECK(end_of(run(resume(folder / "run") +
                   Words{"--steps", "6", "--ssd",
                         folder / "y" + "," + folder / "x"}))["weights_hash"] == hash);
  // In place: nothing was made anew beside it.
  CHECK(static_cast<std::uintmax_t>(std::distance(fs::directory_iterator(folder / "x"), {}) +
                                    std::distance(fs::directory_iterator(folder / "y"), {})) ==
        inode_count);
  CHECK(committed(folder / "run") == 6);
}

TEST_CASE("a folder that was copied while its run was at work is refused, or goes on exactly",
          "[store]") {
  const TemporaryFolder folder;
  const Words arguments = tiny_training(folder) + on_ssd;
  const Outcome whole = run(arguments + Words{"--steps", "30", "--run", folder / "whole"});
  const json expected = end_of(whole)["weights_hash"];
  int refused = 0, exact = 0;
  {
    Program program(arguments + Words{"--steps", "30"});
    for (int i = 0; i < 3 && program.running(); ++i) {
      while (program.running() &&
             lines_of(program.output()).size() < 6 + 12 * static_cast<std::size_t>(i)) {
      }
      std::system(
          ("cp -r " + folder / "run" + " " + folder / ("copy" + std::to_string(i)) + " 2>/dev/null")
              .c_str());
    }
    program.wait();
  }
  for (int i = 0; i < 3; ++i) {
    const std::string copy = folder / ("copy" + std::to_string(i));
    if (!fs::exists(copy + "/run.json")) continue;
    const Outcome outcome = run(resume(copy));
    INFO(outcome.err);
    if (outcome.exit_code == 0) {
      CHECK(outcome.json_lines().back()["weights_hash"] == expected);
      ++exact;
    } else {
      CHECK((outcome.exit_code == 1 || outcome.exit_code == 2));
      ++refused;
    }
  }
  CHECK(refused + exact > 0);
  CHECK(committed(folder / "run") == 30);
}

TEST_CASE("no file of a run is opened through a link, and none but its own is written over",
          "[store]") {
  const TemporaryFolder folder;
  const Words arguments = tiny_training(folder) + on_ssd;
  const std::string thesis = folder.write("thesis.txt", "years of work");
  const auto untouched = [&] { return read_file(thesis) == "years of work"; };
  fs::create_directory(folder / "drive");
  // Links among the files of the store, symbolic and hard, and a FIFO.
  for (const char* name : {"spillway-store-0.bin", "spillway-commit.bin"}) {
    const std::string place = folder / "drive" + "/" + name;
    const Words train = arguments + Words{"--steps", "2", "--ssd", folder / "drive"};
    fs::create_symlink(thesis, place);
    check_refusal(run(train), 2, "is a symbolic link", "remove the link");
    fs::remove(place);
    fs::create_hard_link(thesis, place);
    check_refusal(run(train), 2, "names (hard links)", "a file of its own");
    fs::remove(place);
    REQUIRE(mkfifo(place.c_str(), 0600) == 0);
    check_refusal(run(train), 2, "is a FIFO", "another place");
    fs::remove(place);
    folder.write(std::string("drive/") + name, "the user's");
    check_refusal(run(train), 2, "not a file of", "move it away");
    CHECK(read_file(place) == "the user's");
    fs::remove(place);
  }
  CHECK(untouched());
  // A trace, and weights.
  fs::create_symlink(thesis, folder / "link.json");
  check_refusal(run(arguments + Words{"--steps", "2", "--trace", folder / "link.json"}), 2,
                "is a symbolic link", "remove the link");
  check_refusal(run(arguments + Words{"--steps", "2", "--trace", thesis}), 2,
                "is not a trace of Spillway's", "name another file");
  CHECK(untouched());
  end_of(run(tiny_training(folder) + Words{"--json"}));
  for (const char* name : {"metrics.jsonl", "model.safetensors", "run.json"}) {
    INFO(name);
    const std::string place = folder / "run" + "/" + name;
    if (fs::exists(place)) fs::rename(place, place + ".kept");
    fs::create_symlink(thesis, place);
    const Outcome outcome = run({"train", "--resume", "--run", folder / "run", "--steps", "4"});
    check_complaint(outcome, 2, "is a symbolic link", "remove the link");
    CHECK(fs::is_symlink(place));
    fs::remove(place);
    if (fs::exists(place + ".kept")) fs::rename(place + ".kept", place);
  }
  CHECK(untouched());
  // The folder of the state.
  fs::rename(folder / "run/ssd", folder / "elsewhere");
  fs::create_directory_symlink(folder / "elsewhere", folder / "run/ssd");
  CHECK(run({"store", "remove", folder / "run"}).exit_code == 0);
  CHECK(untouched());
}

TEST_CASE("state is for its user alone, everything else as the umask says", "[store]") {
  const TemporaryFolder folder;
  end_of(run(tiny_training(folder) +
             Words{"--policy", "greedysnake:optimizer_ssd=1,snake=off", "--json", "--steps", "2"}));
  const auto mode = [&](const char* name) {
    return fs::status(folder / "run" + "/" + name).permissions() & fs::perms::all;
  };
  const fs::perms own = fs::perms::owner_read | fs::perms::owner_write;
  for (const char* name :
       {"run.json", "run.lock", "ssd/spillway-store-0.bin", "ssd/spillway-commit.bin"}) {
    INFO(name);
    CHECK(mode(name) == own);
  }
  const mode_t mask = umask(0);
  umask(mask);
  for (const char* name : {"metrics.jsonl", "model.safetensors", "model.toml", "trace.json.gz"}) {
    INFO(name);
    CHECK(static_cast<unsigned>(mode(name)) == (0666u & ~mask));
  }
}

TEST_CASE("two runs that begin in the same second have folders of their own", "[store]") {
  const TemporaryFolder folder;
  const fs::path before = fs::current_path();
  fs::current_path(folder.path());
  const Words arguments = {
      "train",   "--model",  "gpt-tiny",   "--data", folder.write("t.txt", std::string(3000, 'a')),
      "--batch", "2",        "--sequence", "16",     "--steps",
      "1",       "--policy", "resident",   "--json", "--no-export"};
  {
    Program first(arguments), second(arguments), third(arguments);
    for (Program* program : {&first, &second, &third}) {
      const Outcome outcome = program->wait();
      INFO(outcome.err);
      CHECK(outcome.exit_code == 0);
    }
  }
  fs::current_path(before);
  CHECK(std::distance(fs::directory_iterator(folder / "runs"), {}) == 3);
}
