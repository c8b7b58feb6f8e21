// A run of several ranks that goes on otherwise: with another number of them, another policy, in
// another place, or after something was killed while it changed.
#include <signal.h>
#include <sys/stat.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <chrono>
#include <functional>
#include <thread>

#include "tests/cli/train/ranks.hpp"

using namespace spillway::test;
using nlohmann::json;
using Words = std::vector<std::string>;
namespace fs = std::filesystem;

namespace {

Words resumed(const std::string& path, int steps) {
  return {"train", "--run", path, "--resume", "--steps", std::to_string(steps), "--quiet"};
}

std::string hash_of(const fs::path& path) {
  return last_event(path)["weights_hash"].get<std::string>();
}

// Below `directory`, all files of stores. One that is empty is nobody's: its maker was killed
// before it said whose it is.
std::vector<fs::path> store_files(const fs::path& directory) {
  std::vector<fs::path> files;
  std::error_code none;
  for (const auto& entry : fs::recursive_directory_iterator(directory, none))
    if (entry.path().filename().string().starts_with("spillway-") && entry.file_size(none) > 0)
      files.push_back(entry.path());
  return files;
}

// Every store below `ssd` is of one of so many ranks, and each of these has one.
void check_stores(const fs::path& ssd, int ranks) {
  std::vector<int> records(static_cast<std::size_t>(ranks));
  for (const fs::path& file : store_files(ssd)) {
    INFO(file);
    const std::string folder = file.parent_path().filename();
    REQUIRE(folder.starts_with("rank-"));
    const auto rank = static_cast<std::size_t>(std::stoi(folder.substr(5)));
    REQUIRE(rank < records.size());
    records[rank] += file.filename().string().starts_with("spillway-commit") ? 1 : 0;
  }
  for (const int count : records) CHECK(count == 1);
}

std::uint64_t inode_of(const fs::path& path) {
  struct stat status {};
  return ::stat(path.c_str(), &status) == 0 ? status.st_ino : 0;
}

// What has happened to a run when it is killed while two ranks become four.
struct Moment {
  const char* name;
  std::function<bool(const fs::path& run)> has_come;
};

bool has_record(const fs::path& run, int rank) {
  const fs::path folder = run / "ssd" / ("rank-" + std::to_string(rank));
  std::error_code none;
  return fs::exists(folder / "spillway-commit.bin", none) ||
         fs::exists(folder / "spillway-commit-b.bin", none);
}

// As the run of two ranks is now.
std::vector<Moment> moments_of(const fs::path& run) {
  const auto changed = [run](const char* name) {
    return [before = inode_of(run / name), name](const fs::path& now) {
      return inode_of(now / name) != before;
    };
  };
  return {{"a new rank has a folder",
           [](const fs::path& now) { return fs::exists(now / "ssd/rank-3"); }},
          {"a new rank has committed", [](const fs::path& now) { return has_record(now, 3); }},
          {"all have, and the folder is written", changed("model.toml")},
          {"the folder names the new stores", changed("run.json")}};
}

}  // namespace

TEST_CASE("ranks: another number of ranks goes on with the state of those before, bit by bit",
          "[store]") {
  if (ranks_are_skipped()) return;
  const TemporaryFolder folder;
  const Words one_in_two = {"--gradient-groups", "2", "--policy", "resident", "--quiet"};
  const auto train = [&](int ranks, const Words& words) {
    Outcome outcome;
    if (ranks > 1) {
      const StartedBy by(mpirun(ranks));
      outcome = run(words);
    } else {
      outcome = run(words);
    }
    INFO(outcome.err);
    REQUIRE(outcome.exit_code == 0);
    return outcome;
  };
  const auto go_on = [&](const std::string& name, int ranks, int steps, const Words& more) {
    return train(ranks, Words{"train", "--run", folder / name, "--resume", "--steps",
                              std::to_string(steps)} +
                            more);
  };
  const auto hash = [&](const std::string& name) {
    return last_event(folder / name)["weights_hash"].get<std::string>();
  };
  train(1, rank_training(folder, "one", 6) + one_in_two);

  // Two ranks, then one that adds up in as many groups, then two again: as if it were one all
  // along.
  train(2, rank_training(folder, "two", 2) + Words{"--policy", "zero-infinity", "--quiet"});
  const Outcome by_one = go_on("two", 1, 4, {"--gradient-groups", "2", "--policy", "resident"});
  CHECK(by_one.err.find("from step 2 on with 1 rank, before that with 2 ranks") !=
        std::string::npos);
  // The store of the rank that there is no more is gone, and an export reads the one that is left.
  CHECK(fs::is_empty(folder / "two/ssd/rank-1"));
  train(1, {"export", folder / "two", "--out", folder / "out"});
  go_on("two", 2, 6, {});
  CHECK(hash("two") == hash("one"));
  CHECK(recorded_losses(folder / "two") == recorded_losses(folder / "one"));
  CHECK(read_file(folder / "two/model.safetensors") == read_file(folder / "one/model.safetensors"));

  // Whoever had the state before, four ranks make the same of it.
  train(1, rank_training(folder, "from-one", 3) + one_in_two);
  train(2, rank_training(folder, "from-two", 3) + Words{"--policy", "zero-infinity", "--quiet"});
  for (const char* name : {"from-one", "from-two"}) {
    go_on(name, 4, 6, {"--policy", "zero-infinity"});
    CHECK(hash(name) != hash("one"));  // in four groups since
  }
  CHECK(hash("from-two") == hash("from-one"));
  CHECK(recorded_losses(folder / "from-two") == recorded_losses(folder / "from-one"));
  // And fewer of them. Of one process's store, in the folder above, nothing is left.
  for (const char* name : {"from-one", "from-two"}) go_on(name, 2, 8, {});
  CHECK(hash("from-two") == hash("from-one"));
  for (const char* name : {"from-one", "from-two"}) {
    for (const auto& entry : fs::directory_iterator(folder / name + "/ssd")) {
      INFO(entry.path());
      CHECK(entry.is_directory());
      const bool is_used =
          entry.path().filename() == "rank-0" || entry.path().filename() == "rank-1";
      CHECK(fs::is_empty(entry.path()) != is_used);
    }
  }
}

TEST_CASE("ranks: a change of their number that is killed at any moment is made again",
          "[store][slow]") {
  if (ranks_are_skipped()) return;
  const TemporaryFolder folder;
  succeed(2, rank_training(folder, "base", 2) + Words{"--durability", "step", "--quiet"});
  fs::copy(folder / "base", folder / "whole", fs::copy_options::recursive);
  succeed(2, resumed(folder / "whole", 3));
  succeed(4, resumed(folder / "whole", 6));
  for (std::size_t at = 0; at < 4; ++at) {
    for (const bool all : {true, false}) {
      const std::string path = folder / ("killed-" + std::to_string(at) + (all ? "-all" : "-one"));
      fs::copy(folder / "base", path, fs::copy_options::recursive);
      // A copy becomes a run of its own, whose folder then says so.
      succeed(2, resumed(path, 3));
      const Moment moment = moments_of(path)[at];
      INFO(moment.name << (all ? ", all are killed" : ", one is killed"));
      bool was_there = false;
      {
        const StartedBy by(mpirun(4));
        Program program(resumed(path, 6));
        std::vector<pid_t> ranks;
        while (program.running() && ranks.empty()) ranks = ranks_of(program.process(), 4);
        while (program.running() && !was_there) was_there = moment.has_come(path);
        for (std::size_t rank = 0; rank < ranks.size(); ++rank)
          if (all || rank == 1) ::kill(ranks[rank], SIGKILL);
        program.wait();
        for (const pid_t rank : ranks) REQUIRE_FALSE(is_there(rank));
      }
      CHECK(was_there);
      // Whoever comes next finds one or the other.
      const int next = at % 2 == 0 ? 4 : 2;
      succeed(next, resumed(path, 4));
      check_stores(fs::path(path) / "ssd", next);
      succeed(4, resumed(path, 6));
      check_stores(fs::path(path) / "ssd", 4);
      if (next == 4) CHECK(hash_of(path) == hash_of(folder / "whole"));
    }
  }
}

TEST_CASE("ranks: a run goes on with other policies, again and again", "[store][slow]") {
  if (ranks_are_skipped()) return;
  const TemporaryFolder folder;
  const std::string path = folder / "run";
  succeed(2, rank_training(folder, "run", 1) +
                 Words{"--durability", "step", "--policy", "resident", "--quiet"});
  for (int step = 2; step <= 7; ++step) {
    INFO(step);
    succeed(2,
            resumed(path, step) + Words{"--policy", step % 2 == 0 ? "zero-infinity" : "resident"});
    check_stores(fs::path(path) / "ssd", 2);
  }
  succeed(2, rank_training(folder, "whole", 7) + Words{"--policy", "resident", "--quiet"});
  CHECK(hash_of(path) == hash_of(folder / "whole"));
}

TEST_CASE("ranks: a run that was moved, put back or copied goes on with all of its stores",
          "[store]") {
  if (ranks_are_skipped()) return;
  const TemporaryFolder folder;
  succeed(2, rank_training(folder, "base", 2) + Words{"--durability", "step", "--quiet"});
  fs::copy(folder / "base", folder / "backup", fs::copy_options::recursive);
  succeed(2, resumed(folder / "base", 4));
  const std::string whole = hash_of(folder / "base");
  // The folder of the backup is a copy of a run that is still there.
  const Outcome copied =
      succeed(2, {"train", "--run", folder / "backup", "--resume", "--steps", "3"});
  CHECK_THAT(copied.err, Catch::Contains("from here on a run of its own"));
  fs::rename(folder / "backup", folder / "moved");
  fs::copy(folder / "moved", folder / "kept", fs::copy_options::recursive);
  fs::remove_all(folder / "moved");
  fs::copy(folder / "kept", folder / "moved", fs::copy_options::recursive);
  succeed(2, resumed(folder / "moved", 4));
  CHECK(hash_of(folder / "moved") == whole);
  check_stores(folder / "moved/ssd", 2);
  // With one rank's store missing, the answer names it.
  fs::remove_all(folder / "kept/ssd/rank-1");
  const Outcome without = run_by(2, resumed(folder / "kept", 4));
  CHECK(without.exit_code != 0);
  CHECK_THAT(without.err, Catch::Contains("rank-1"));
}

TEST_CASE("ranks: what is elsewhere is taken over and removed, as is all of a run", "[store]") {
  if (ranks_are_skipped()) return;
  const TemporaryFolder folder;
  const std::string path = folder / "run";
  const Words durable = {"--durability", "step", "--quiet"};
  for (const char* name : {"one", "two", "three"}) fs::create_directory(folder / name);
  succeed(2, rank_training(folder, "run", 2) + durable +
                 Words{"--ssd", (folder / "one") + "," + (folder / "two")});
  const json stores = run({"store", "inspect", path, "--json"}).json()["stores"];
  REQUIRE(stores.size() == 2);
  for (int rank = 0; rank < 2; ++rank) {
    CHECK(stores[static_cast<std::size_t>(rank)]["rank"] == rank);
    CHECK(stores[static_cast<std::size_t>(rank)]["verified"] == true);
  }
  // One process, in other directories: nothing stays in those before.
  succeed(1, resumed(path, 3) + Words{"--ssd", folder / "three"});
  CHECK(store_files(folder / "one").empty());
  CHECK(store_files(folder / "two").empty());
  CHECK_FALSE(store_files(folder / "three").empty());
  succeed(2, resumed(path, 4) + Words{"--ssd", folder / "one"});
  CHECK(store_files(folder / "three").empty());
  check_stores(folder / "one", 2);
  const Outcome removed = run({"store", "remove", path});
  INFO(removed.err);
  CHECK(removed.exit_code == 0);
  CHECK(store_files(folder / "one").empty());
}

TEST_CASE("ranks: groups of micro-batches are as many as the ranks, whatever is asked") {
  if (ranks_are_skipped()) return;
  const TemporaryFolder folder;
  const Outcome four = run_by(2, rank_training(folder, "two", 2) + Words{"--gradient-groups", "4"});
  CHECK(four.exit_code == 2);
  CHECK_THAT(four.err, Catch::Contains("2 ranks add up gradients in as many groups"));
  CHECK_FALSE(fs::exists(folder / "two"));
}
