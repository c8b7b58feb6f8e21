#include "tests/exec/run/run_story.hpp"

#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <optional>
#include <random>
#include <sstream>

#include "exec/run/run_folder.hpp"
#include "exec/store/store_check.hpp"
#include "tests/exec/child.hpp"
#include "tests/exec/io_test_support.hpp"

namespace spillway::test {

namespace {

constexpr std::chrono::seconds limit(20);

// How a run is to be made to go on.
struct Going {
  fs::path folder;
  bool is_new = false, take_over = false;
  TrainingOptions training;     // ssd: as given; empty where it is the run's own
  std::int64_t killed_at = -1;  // once so many steps are committed
};

// In a process of its own, as the program does it.
void go(Going going, const std::function<void(const std::string&)>& say) {
  std::optional<RunFolder> folder;
  std::vector<fs::path> ssd = going.training.ssd;
  if (going.is_new) {
    folder.emplace(RunFolder::create(going.folder.string(), "tiny"));
  } else {
    folder.emplace(RunFolder::open(going.folder.string(), going.take_over));
    ResumeState state = folder->resume({ssd, going.take_over, {}});
    going.training.resume = std::move(state.point);
    ssd = state.ssd;
  }
  if (ssd.empty()) ssd = {folder->make_ssd_folder()};
  going.training.ssd = ssd;
  going.training.run = folder->identity();
  going.training.keep_store = going.training.may_be_done = true;
  if (going.is_new) folder->save();
  Training training(going.training);
  folder->keep();
  folder->remember_store(training.store_location());
  training.remove_previous_store();
  say(fmt::format("commit {}\n", training.first_step()));
  const auto check = [&](std::int64_t committed) {
    if (going.killed_at >= 0 && committed >= going.killed_at) ::kill(::getpid(), SIGKILL);
  };
  check(training.first_step());
  const TrainingResult result = training.run([](const StepResult&) {}, nullptr,
                                             [&](std::int64_t committed) {
                                               say(fmt::format("commit {}\n", committed));
                                               check(committed);
                                             });
  folder->saved().complete = true;
  folder->save();
  say(fmt::format("done {} {}\n", result.steps, result.weights_hash));
}

// A run as the model knows it.
struct ModelRun {
  fs::path folder;
  std::uint64_t seed = 1;
  std::int64_t committed = 0;
  int state = 0;         // which state it goes on from: several folders may claim one
  bool inside = true;    // the state is in the folder
  bool damaged = false;  // the user removed what it needs
  bool copy = false;     // its state outside belongs to the folder that it was copied from
};

class Story {
 public:
  Story(const Workbench& bench, const std::vector<std::uint64_t>& hashes, std::uint64_t seed,
        Deeds& deeds)
      : bench_(bench),
        hashes_(hashes),
        random_(seed),
        deeds_(deeds),
        root_(bench.root() / "story") {
    fs::remove_all(root_);
    for (const char* name : {"d0", "d1", "d2", "d3"}) {
      fs::create_directories(root_ / name);
      drives_.push_back(root_ / name);
    }
    fs::create_directories(root_ / "mine");
    write_file(root_ / "mine/thesis", "years of work");
    write_file(root_ / "mine/photos", std::string(20000, 'p'));
  }

  void tell() {
    begin();
    const int deeds = 6 + static_cast<int>(below(6));
    for (int i = 0; i < deeds; ++i) {
      deed();
      look();
    }
    end();
  }

 private:
  std::uint64_t below(std::uint64_t count) { return random_() % count; }
  bool chance(double probability) {
    return static_cast<double>(random_() >> 11) * 0x1p-53 < probability;
  }
  fs::path new_name() { return root_ / fmt::format("run{}", ++names_); }
  void tell_of(const std::string& text) { history_ += text + "\n"; }
  bool shared(const ModelRun& run) const {
    return std::count_if(runs_.begin(), runs_.end(),
                         [&](const ModelRun& other) { return other.state == run.state; }) > 1;
  }

  TrainingOptions options(std::uint64_t seed) {
    constexpr const char* policies[] = {"resident", "greedysnake:snake=off,optimizer_ssd=1",
                                        "zero-offload"};
    TrainingOptions o = bench_.options(policies[below(std::size(policies))], 1, 16, 1);
    o.seed = seed;
    o.steps = RunStories::last_step;
    o.ssd.clear();
    o.guard_bytes = 0;
    o.stripe_bytes = 8192;
    o.durability = {DurabilityMode::on, 1};
    return o;
  }

  std::vector<fs::path> some_drives() {
    std::vector<fs::path> some = drives_;
    std::shuffle(some.begin(), some.end(), random_);
    some.resize(1 + below(2));
    return some;
  }

  // Runs it; returns why it was refused, empty where it was not.
  std::string carry_out(const Going& going, ModelRun& run) {
    tell_of(fmt::format("{} {} on [{}]{}{}", going.is_new ? "begin" : "go on",
                        going.folder.filename().string(), names_of(going.training.ssd),
                        going.killed_at >= 0 ? fmt::format(", killed at {}", going.killed_at) : "",
                        going.take_over ? ", taking over" : ""));
    const ChildEnd end = run_in_child([&](const auto& say) { go(going, say); }, limit);
    INFO(history_ << end.said << end.uncaught);
    REQUIRE_FALSE(end.timed_out);
    REQUIRE((end.signal == 0 || (end.signal == SIGKILL && going.killed_at >= 0)));
    std::istringstream said(end.said);
    for (std::string what; said >> what;) {
      said >> run.committed;
      if (what != "done") continue;
      std::uint64_t hash = 0;
      said >> hash;
      REQUIRE(run.committed == RunStories::last_step);
      REQUIRE(hash == hashes_[run.seed - 1]);
    }
    tell_of(end.uncaught.empty() ? fmt::format("  at step {}", run.committed)
                                 : "  refused: " + end.uncaught);
    return end.uncaught;
  }
  static std::string names_of(const std::vector<fs::path>& paths) {
    std::string text;
    for (const fs::path& path : paths) text += path.filename().string() + " ";
    return text;
  }

  void count(const std::string& deed, bool refused) {
    ++(refused ? deeds_.refused : deeds_.done)[deed];
  }

  void begin() {
    ModelRun run;
    run.folder = new_name();
    run.seed = 1 + below(RunStories::trainings);
    Going going{run.folder, true, false, options(run.seed), -1};
    run.inside = chance(0.5);
    if (!run.inside) going.training.ssd = some_drives();
    going.killed_at = 1 + static_cast<std::int64_t>(below(4));
    const std::string refused = carry_out(going, run);
    count("begin", !refused.empty());
    if (!refused.empty()) {
      // Another run has its state there.
      REQUIRE((refused.find("another training") != std::string::npos));
      REQUIRE_FALSE(fs::exists(run.folder));
      return;
    }
    run.state = ++states_;
    runs_.push_back(run);
  }

  // What a run may be told to do that has to succeed, unless its state is claimed by another
  // folder.
  void go_on() {
    ModelRun& run = runs_[below(runs_.size())];
    if (run.damaged) return;
    Going going{run.folder, false, chance(0.1), options(run.seed), -1};
    if (chance(0.6) && run.committed < RunStories::last_step)
      going.killed_at = run.committed + 1 + static_cast<std::int64_t>(below(2));
    if (chance(0.3)) going.training.ssd = some_drives();
    const bool was_shared = shared(run);
    const ModelRun before = run;
    const std::string refused = carry_out(going, run);
    count("go on", !refused.empty());
    INFO(history_);
    if (!refused.empty()) {
      const bool two = refused.find("belongs to two runs") != std::string::npos;
      const bool taken =
          refused.find("another training") != std::string::npos ||
          refused.find("a copy needs SSD directories of its own") != std::string::npos;
      REQUIRE((two || taken));
      if (two) {
        REQUIRE((was_shared || run.copy));
        REQUIRE(refused.find(run.folder.filename().string()) != std::string::npos);
      }
      if (taken) REQUIRE_FALSE(going.training.ssd.empty());
      REQUIRE(run.committed == before.committed);
      return;
    }
    REQUIRE(run.committed >= before.committed);
    run.copy = false;
    // Its state is now where it was told to be; others that claimed the same state may have lost it
    // to the one that it belongs to.
    const StateOfRun state = state_of(run);
    if (!going.training.ssd.empty()) {
      run.inside = false;
      for (const fs::path& d : state.point.location.directories)
        run.inside |= d.parent_path() == run.folder;
    }
    if (!was_shared) return;
    settle_claims(run, before);
  }

  // Of several folders with one state outside of them: the one that has gone on has it, or has made
  // itself another one. The others may still have theirs, if it was left alone.
  void settle_claims(ModelRun& run, const ModelRun& before) {
    const int old = run.state;
    run.state = ++states_;
    for (ModelRun& other : runs_) {
      if (other.state != old || &other == &run) continue;
      if (other.inside) continue;
      try {
        const StateOfRun theirs = state_of(other);
        // Still there: unchanged, or the very one that has gone on.
        const std::int64_t step = theirs.point.record.version;
        INFO(history_);
        REQUIRE((step == before.committed || step == run.committed));
        if (same_place(theirs, state_of(run))) other.state = run.state;
        other.committed = step;
      } catch (const InputError&) {
        other.damaged = true;  // moved away by the run that it belongs to
      }
    }
  }
  static bool same_place(const StateOfRun& a, const StateOfRun& b) {
    return a.point.location == b.point.location;
  }

  StateOfRun state_of(const ModelRun& run) const {
    const Directory folder(run.folder);
    return find_state(folder, SavedRun::load(folder));
  }

  void copy() {
    const ModelRun run = runs_[below(runs_.size())];
    ModelRun twin = run;
    twin.folder = new_name();
    constexpr const char* ways[] = {"cp -r", "cp -a", "cp -r --reflink=auto",
                                    "cp -r --no-preserve=all"};
    const std::string way = ways[below(std::size(ways))];
    tell_of(fmt::format("{} {} {}", way, run.folder.filename().string(),
                        twin.folder.filename().string()));
    REQUIRE(std::system(
                fmt::format("{} {} {}", way, run.folder.string(), twin.folder.string()).c_str()) ==
            0);
    twin.copy = !run.inside;
    if (run.inside) twin.state = ++states_;
    runs_.push_back(twin);
    count("copy", false);
  }

  void move() {
    ModelRun& run = runs_[below(runs_.size())];
    const fs::path to = new_name();
    tell_of(fmt::format("mv {} {}", run.folder.filename().string(), to.filename().string()));
    fs::rename(run.folder, to);
    run.folder = to;
    count("move", false);
  }

  // The folder is put back as it was some steps ago, with its state if that is inside.
  void put_back() {
    ModelRun& run = runs_[below(runs_.size())];
    if (run.damaged || (!run.inside && shared(run))) return;
    const fs::path backup = new_name();
    tell_of("back up " + run.folder.filename().string());
    REQUIRE(std::system(fmt::format("cp -a {} {}", run.folder.string(), backup.string()).c_str()) ==
            0);
    const ModelRun then = run;
    Going going{run.folder, false, false, options(run.seed), -1};
    going.killed_at = std::min(run.committed + 1, RunStories::last_step);
    carry_out(going, run);
    tell_of("put back");
    fs::remove_all(run.folder);
    fs::rename(backup, run.folder);
    if (run.inside) run.committed = then.committed;
    // Its state knows it as the folder in that place: renamed before it goes on, it could be a
    // copy.
    if (!run.inside) run.copy = true;
    count("put back", false);
  }

  void remount() {
    const std::size_t which = below(drives_.size());
    const fs::path to = root_ / fmt::format("mount{}", ++names_);
    tell_of(
        fmt::format("rename {} to {}", drives_[which].filename().string(), to.filename().string()));
    // All runs that have state there are told, one by one, where it is now.
    std::vector<std::pair<std::size_t, StateOfRun>> there;
    for (std::size_t i = 0; i < runs_.size(); ++i) {
      if (runs_[i].damaged || runs_[i].inside) continue;
      StateOfRun state = state_of(runs_[i]);
      const auto& all = state.point.location.directories;
      if (std::find(all.begin(), all.end(), drives_[which]) != all.end())
        there.emplace_back(i, std::move(state));
    }
    fs::rename(drives_[which], to);
    const fs::path from = std::exchange(drives_[which], to);
    for (auto& [index, state] : there) {
      ModelRun& run = runs_[index];
      Going going{run.folder, false, false, options(run.seed), -1};
      std::string refused = carry_out(going, run);
      INFO(history_);
      REQUIRE(refused.find("is missing") != std::string::npos);
      going.training.ssd = state.point.location.directories;
      std::replace(going.training.ssd.begin(), going.training.ssd.end(), from, to);
      if (chance(0.5)) std::reverse(going.training.ssd.begin(), going.training.ssd.end());
      const bool was_shared = shared(run);
      refused = carry_out(going, run);
      if (!was_shared && !run.copy) REQUIRE(refused == "");
      if (!refused.empty()) {
        // Of two that claim it one is told; the other one cannot find it any more.
        run.damaged = true;
      }
    }
    count("remount", false);
  }

  // Something of the user's lies under a name that Spillway uses, or a trap for it.
  void trap() {
    ModelRun& run = runs_[below(runs_.size())];
    if (run.damaged) return;
    const fs::path thesis = root_ / "mine/thesis";
    std::vector<fs::path> places = {run.folder / "metrics.jsonl", run.folder / "run.lock",
                                    run.folder / "ssd", run.folder / "run.json.new"};
    for (const fs::path& drive : drives_) {
      for (const char* name : {"spillway-store-0.bin", "spillway-store-1-b.bin",
                               "spillway-commit.bin", "spillway-commit-b.bin"})
        places.push_back(drive / name);
    }
    const fs::path place = places[below(places.size())];
    if (fs::exists(fs::symlink_status(place))) return;
    const std::uint64_t kind = below(4);
    tell_of(fmt::format("trap {} at {}", kind, place.string()));
    if (kind == 0) fs::create_symlink(thesis, place);
    if (kind == 1) fs::create_hard_link(thesis, place);
    if (kind == 2) REQUIRE(::mkfifo(place.c_str(), 0600) == 0);
    if (kind == 3) write_file(place, "notes of the user");
    Going going{run.folder, false, false, options(run.seed), -1};
    if (chance(0.5)) going.training.ssd = {place.parent_path()};
    if (going.training.ssd == std::vector<fs::path>{run.folder}) going.training.ssd.clear();
    if (run.committed < RunStories::last_step) going.killed_at = run.committed + 1;
    const ModelRun before = run;
    const bool was_shared = shared(run);
    const std::string refused = carry_out(going, run);
    count("trap", !refused.empty());
    if (refused.empty() && !going.training.ssd.empty()) run.inside = false;
    INFO(history_);
    if (kind == 3) {
      // run.lock has no contents that could be lost, and is written over.
      if (place.filename() != "run.lock") REQUIRE(read_file(place) == "notes of the user");
    }
    REQUIRE(fs::exists(fs::symlink_status(place)));
    fs::remove(place);
    if (refused.empty()) run.copy = false;
    if (refused.empty() && was_shared) settle_claims(run, before);
  }

  void remove_run() {
    if (runs_.size() < 2) return;
    const std::size_t which = below(runs_.size());
    tell_of("rm -r " + runs_[which].folder.filename().string());
    fs::remove_all(runs_[which].folder);
    runs_.erase(runs_.begin() + static_cast<std::ptrdiff_t>(which));
    count("remove", false);
  }

  void deed() {
    using Deed = void (Story::*)();
    constexpr Deed deeds[] = {&Story::begin,   &Story::go_on, &Story::go_on,     &Story::go_on,
                              &Story::copy,    &Story::copy,  &Story::move,      &Story::put_back,
                              &Story::remount, &Story::trap,  &Story::remove_run};
    if (runs_.empty()) return begin();
    (this->*deeds[below(std::size(deeds))])();
  }

  // Whatever happened, this is still there.
  void look() {
    INFO(history_);
    REQUIRE(read_file(root_ / "mine/thesis") == "years of work");
    REQUIRE(read_file(root_ / "mine/photos") == std::string(20000, 'p'));
    for (const ModelRun& run : runs_) {
      if (run.damaged) continue;
      INFO("looking at " << run.folder);
      const StateOfRun state = state_of(run);
      REQUIRE(state.point.record.version >= run.committed);
      if (!shared(run)) REQUIRE(state.point.record.version <= run.committed + 1);
      if (chance(0.3)) REQUIRE(check_store(state.point, [](auto, auto) {}).empty());
    }
  }

  void end() {
    for (ModelRun& run : runs_) {
      if (run.damaged || shared(run)) continue;
      Going going{run.folder, false, run.copy, options(run.seed), -1};
      const std::string refused = carry_out(going, run);
      INFO(history_);
      REQUIRE(refused == "");
      REQUIRE(run.committed == RunStories::last_step);
    }
    look();
  }

  const Workbench& bench_;
  const std::vector<std::uint64_t>& hashes_;
  std::mt19937_64 random_;
  Deeds& deeds_;
  fs::path root_;
  std::vector<fs::path> drives_;
  std::vector<ModelRun> runs_;
  int names_ = 0, states_ = 0;
  std::string history_;
};

}  // namespace

RunStories::RunStories() : bench_(folder_for_many_runs()) {
  for (std::uint64_t seed = 1; seed <= trainings; ++seed) {
    TrainingOptions options = bench_.options("resident", 1, 16, 1);
    options.seed = seed;
    options.steps = last_step;
    options.guard_bytes = 0;
    Training training(options);
    hashes_.push_back(training.run([](const StepResult&) {}, nullptr).weights_hash);
  }
}

void RunStories::tell(std::uint64_t seed) {
  INFO("story " << seed);
  Story(bench_, hashes_, seed, deeds_).tell();
}

}  // namespace spillway::test
