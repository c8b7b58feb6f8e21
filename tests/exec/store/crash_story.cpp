#include "tests/exec/store/crash_story.hpp"

#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <memory>
#include <optional>
#include <random>
#include <sstream>
#include <thread>

#include "exec/store/store_check.hpp"
#include "tests/exec/child.hpp"
#include "tests/exec/io/fault_drive.hpp"
#include "tests/exec/io/rings.hpp"
#include "tests/policies/random_policy.hpp"

namespace spillway::test {

namespace {

namespace fs = std::filesystem;

constexpr std::chrono::seconds limit(12);  // an incarnation takes tens of milliseconds
constexpr std::int64_t steps = 12;
constexpr MomentWidth widths[] = {MomentWidth::fp32, MomentWidth::bf16};  // of AdamW's moments

std::uint64_t bits(double value) { return std::bit_cast<std::uint64_t>(value); }

// One process of a training, as it is to be.
struct Incarnation {
  TrainingOptions training;
  std::string policy;                     // for messages
  std::uint64_t seed = 0;                 // of its drive
  FaultPlan plan;                         // of its drive
  bool has_drive = false;                 // else the machine's own
  bool over_threads = false;              // rings of threads; else what io_uring does
  std::optional<std::uint64_t> kill_at;   // what it says n times is the last it says, more or less
  std::chrono::microseconds kill_late{};  // after that
  std::int64_t stop_at = -1;              // a stop is requested once so many steps are reported
};

// What it said until its end.
struct Diary {
  bool constructed = false;
  std::int64_t first = 0, reported = 0, committed = -1;
  int generation = -1;                                         // of the store that it made known
  std::vector<std::pair<std::int64_t, std::uint64_t>> losses;  // step, bits
  std::optional<std::uint64_t> hash;
  std::int64_t done = -1;
  std::uint64_t requests = 0;
  bool struck = false;  // by a fault, and not ended by it
};

Diary read_diary(const std::string& said) {
  Diary diary;
  std::istringstream in(said);
  for (std::string what; in >> what;) {
    if (what == "first") {
      in >> diary.first;
      diary.constructed = true;
      diary.reported = diary.first;
    } else if (what == "store") {
      in >> diary.generation;
    } else if (what == "step") {
      std::int64_t step = 0;
      std::uint64_t loss = 0;
      in >> step >> loss;
      diary.losses.emplace_back(step, loss);
      diary.reported = step + 1;
    } else if (what == "commit") {
      in >> diary.committed;
    } else if (what == "requests") {
      in >> diary.requests;
    } else if (what == "struck") {
      diary.struck = true;
    } else if (what == "done") {
      std::uint64_t hash = 0;
      in >> diary.done >> hash;
      diary.hash = hash;
    } else {
      FAIL("an unknown word: " << what);
    }
  }
  return diary;
}

// In the child: trains, and says what a run's folder would be told.
void live(Incarnation incarnation, const std::function<void(const std::string&)>& write) {
  std::uint64_t said = 0;
  const auto say = [&](const std::string& text) {
    write(text);
    if (incarnation.kill_at && said++ == *incarnation.kill_at) {
      std::thread([late = incarnation.kill_late] {
        std::this_thread::sleep_for(late);
        ::kill(::getpid(), SIGKILL);
      }).detach();
    }
  };
  say("");
  FaultDrive drive(incarnation.seed, incarnation.plan);
  // At the end, and where an exception is on its way out.
  const std::shared_ptr<void> at_end(nullptr, [&](void*) {
    if (drive.has_struck()) write("struck\n");
  });
  incarnation.training.make_ring =
      incarnation.has_drive
          ? drive.rings(incarnation.over_threads)
          : factory_of(incarnation.over_threads ? IoMethod::threads : IoMethod::uring);
  Training training(incarnation.training);
  say(fmt::format("first {}\n", training.first_step()));
  if (training.commit_interval() > 0) {
    // As the program does: it is written down where the store is, then the one before may go.
    say(fmt::format("store {}\n", training.store_location().generation));
    training.remove_previous_store();
  }
  const TrainingResult result = training.run(
      [&](const StepResult& step) {
        say(fmt::format("step {} {}\n", step.step, bits(step.loss)));
        if (step.step + 1 == incarnation.stop_at) training.request_stop();
      },
      nullptr,
      [&](std::int64_t version) {
        say(fmt::format("commit {}\nrequests {}\n", version, drive.requests()));
      });
  say(fmt::format("done {} {}\n", result.steps, result.weights_hash));
}

// The choices of a story, and where its training stands.
class Story {
 public:
  Story(const Workbench& bench, MomentWidth width, const Losses& undisturbed, std::uint64_t seed,
        Trouble trouble, Moments& moments)
      : bench_(bench),
        width_(width),
        undisturbed_(undisturbed),
        trouble_(trouble),
        random_(seed),
        moments_(moments) {
    for (const char* name : {"d0", "d1", "d2"}) {
      const fs::path directory = bench_.root() / name;
      fs::remove_all(directory);
      fs::create_directories(directory);
      all_.push_back(directory);
    }
    directories_ = {all_[0], all_[1]};
    const std::uint64_t which = seed;
    ++moments.stories;
    if (which % 4 != 3) policy_ = crash_policies()[(which - which / 4) % crash_policies().size()];
    policy_seed_ = random_();
    choose_sets();
  }

  void tell() {
    constexpr int most_crashes = 8;
    for (int i = 0; done_ < 0; ++i) {
      if (i > 0) change();
      next(i < most_crashes);
    }
    REQUIRE(hash_ == undisturbed_.weights_hash);
  }

 private:
  std::uint64_t below(std::uint64_t count) { return random_() % count; }
  bool chance(double probability) {
    return static_cast<double>(random_() >> 11) * 0x1p-53 < probability;
  }

  void change() {
    if (chance(0.4)) {
      policy_ = chance(0.3) ? "" : crash_policies()[below(crash_policies().size())];
      policy_seed_ = random_();
    }
    if (chance(0.3)) {
      std::shuffle(all_.begin(), all_.end(), random_);
      directories_.assign(all_.begin(), all_.begin() + 1 + static_cast<std::ptrdiff_t>(below(3)));
      sets_.clear();
    }
    if (chance(0.4)) choose_sets();
  }

  // All directories on one set of drives, or the first of them on one and the others on another.
  void choose_sets() {
    sets_.clear();
    if (directories_.size() < 2 || chance(0.4)) return;
    sets_ = {1, static_cast<std::uint32_t>(directories_.size() - 1)};
    speeds_ = random_();
  }

  Incarnation choose(bool may_crash) {
    Incarnation one;
    TrainingOptions& training = one.training = bench_.options(policy_, 2, 16, 2);
    one.policy = policy_;
    if (policy_.empty()) {
      one.policy = fmt::format("random policy {}", policy_seed_);
      const RandomPolicyOptions random{policy_seed_, true};
      training.policy = "resident";
      training.make_policy = [random] { return make_random_policy(random); };
    }
    training.problem.workload.moments = width_;
    training.steps = steps;
    training.ssd = directories_;
    if (!sets_.empty()) put_on_sets(training, sets_, speeds_);
    training.guard_bytes = 0;
    training.stripe_bytes = 8192;  // so that a store this small lies on all of its drives
    constexpr int runs[] = {0, 1, 3, 5};
    training.steps_per_run = runs[below(std::size(runs))];
    constexpr std::int64_t intervals[] = {1, 1, 1, 2, 3, 5, 0};
    training.durability = {DurabilityMode::on, intervals[below(std::size(intervals))]};
    if (chance(0.05)) training.durability = {};
    one.seed = random_();
    one.has_drive = chance(0.7);
    one.over_threads = chance(0.5);
    if (chance(0.3)) one.plan.chances = {0.1, 0.05, 0.05, 0.05, 0.05};
    if (chance(0.3)) one.plan.most_latency = std::chrono::microseconds(100);
    if (chance(0.3)) one.plan.sync_latency = std::chrono::milliseconds(3);
    if (chance(0.15)) one.stop_at = static_cast<std::int64_t>(1 + below(steps));
    if (may_crash) choose_end(one);
    return one;
  }

  void choose_fault(Incarnation& one) {
    constexpr Fault faults[] = {Fault::io_error,     Fault::no_space, Fault::short_transfer,
                                Fault::interrupted,  Fault::again,    Fault::flipped_read,
                                Fault::flipped_write};
    one.has_drive = true;
    one.plan.volatile_cache = chance(0.5);
    const std::uint64_t most = chance(0.2) ? 60 : most_requests_ + 10;
    FaultPlan::Once once{faults[below(std::size(faults))], below(most), place()};
    // Syncs can only fail or be put off, and records are not read.
    const bool of_transfers = once.fault == Fault::no_space ||
                              once.fault == Fault::short_transfer ||
                              once.fault == Fault::flipped_write;
    if (once.fault == Fault::flipped_read ||
        (of_transfers && once.where != FaultPlan::Where::last_file)) {
      once.where = FaultPlan::Where::anywhere;
    }
    one.plan.once = once;
  }
  FaultPlan::Where place() {
    using Where = FaultPlan::Where;
    constexpr Where places[] = {Where::anywhere, Where::sync, Where::last_file,
                                Where::last_file_sync};
    return places[below(std::size(places))];
  }

  void choose_end(Incarnation& one) {
    if (trouble_ == Trouble::faults) return choose_fault(one);
    if (one.has_drive && chance(0.8)) {
      one.plan.volatile_cache = true;
      if (chance(0.5)) one.plan.cache_bytes = std::uint64_t{1} << 16;
      // Requests of the longest incarnation so far, or of the start only.
      const std::uint64_t most = chance(0.2) ? 60 : most_requests_ + 10;
      one.plan.once = FaultPlan::Once{Fault::power_cut, below(most), place()};
    } else {
      one.kill_at = chance(0.2) ? 0 : below(2 * steps + 2);
      one.kill_late = std::chrono::microseconds(below(*one.kill_at == 0 ? 30000 : 3000));
    }
  }

  void next(bool may_crash) {
    Incarnation one = choose(may_crash);
    if (location_) {
      const ResumePoint point = find_resume_point(*location_);
      INFO("resuming from step " << point.record.version << ", where " << committed_
                                 << " was committed and " << reported_ << " were reported");
      if (!corrupted_) REQUIRE(point.record.version >= committed_);
      // Whoever goes on has the results of all steps before.
      REQUIRE(point.record.version <= reported_);
      // What is lost is an interval whose commit was under way, and the step whose update waited.
      if (interval_ > 0 && !corrupted_) REQUIRE(point.record.version >= reported_ - interval_ - 1);
      if (chance(0.2) && !corrupted_) REQUIRE(check_store(point, [](auto, auto) {}).empty());
      one.training.resume = point;
      one.training.may_be_done = true;
    }
    INFO("before: " << history_);
    history_ += describe(one);
    INFO("now: " << describe(one));
    ChildEnd end = run_in_child([&](const auto& say) { live(one, say); }, limit);
    // What an incarnation without a record has left, or one that had no time to write it.
    if (end.uncaught.find("belongs to another training") != std::string::npos) {
      one.training.overwrite = true;
      end = run_in_child([&](const auto& say) { live(one, say); }, limit);
    }
    INFO("it said: " << end.said);
    REQUIRE_FALSE(end.timed_out);
    REQUIRE((end.signal == 0 || end.signal == SIGKILL));
    const Diary diary = read_diary(end.said);
    moments_.faults += diary.struck;
    const bool faulty = one.plan.once && one.plan.once->fault != Fault::power_cut;
    const bool flips = faulty && one.plan.once->fault == Fault::flipped_write;
    corrupted_ |= flips;
    if (end.uncaught != "") {
      const bool stops = faulty && (one.plan.once->fault == Fault::io_error ||
                                    one.plan.once->fault == Fault::no_space);
      INFO(end.uncaught);
      REQUIRE((stops || corrupted_));
      check_failure(end.uncaught);
      ++moments_.stopped;
      if (!faulty && !flips) {  // a healthy drive, on which committed state is not what was written
        ++moments_.lost;
        done_ = steps;
        hash_ = undisturbed_.weights_hash;
        return;
      }
    }
    if (end.signal == SIGKILL) count(one, diary);
    check(one, diary);
    if (diary.done == steps || (end.finished && one.training.durability.on())) {
      REQUIRE(diary.hash.has_value());
    }
    if (diary.done == steps) {
      done_ = steps;
      hash_ = *diary.hash;
    }
  }

  // "WHAT of FILE at OFFSET failed: WHY | REMEDY"
  static void check_failure(const std::string& message) {
    const auto has = [&](const char* part) { return message.find(part) != std::string::npos; };
    REQUIRE((has("spillway-store-") || has("spillway-commit")));
    REQUIRE((has("offset ") || has("sync of ")));
    const std::size_t bar = message.find(" | ");
    REQUIRE(bar != std::string::npos);
    REQUIRE(message.size() > bar + 10);
  }

  void check(const Incarnation& one, const Diary& diary) {
    const std::int64_t base = one.training.resume ? one.training.resume->record.version : 0;
    if (diary.constructed) REQUIRE(diary.first == base);
    for (std::size_t i = 0; i < diary.losses.size(); ++i) {
      const auto& [step, loss] = diary.losses[i];
      INFO("step " << step);
      REQUIRE(step == base + static_cast<std::int64_t>(i));
      REQUIRE(loss == bits(undisturbed_.of_step[static_cast<std::size_t>(step)]));
    }
    most_requests_ = std::max(most_requests_, diary.requests);
    if (diary.generation < 0) return;  // nobody knows of its store, if it has one
    location_ = StoreLocation{one.training.ssd, static_cast<std::uint64_t>(diary.generation)};
    interval_ = one.training.durability.interval;
    committed_ = std::max(base, diary.committed);
    reported_ = diary.reported;
    if (!one.training.resume) REQUIRE(diary.committed <= steps);
  }

  void count(const Incarnation& one, const Diary& diary) {
    ++(one.plan.once ? moments_.power_cuts : moments_.kills);
    moments_.over_threads += one.over_threads;
    ++moments_.of_policy[policy_.empty() ? "random" : policy_];
    if (!location_ && diary.generation < 0) ++moments_.before_first_commit;
    if (!diary.constructed) ++moments_.starting;
  }

  static std::string describe(const Incarnation& one) {
    std::string text = one.policy + " on";
    for (const fs::path& directory : one.training.ssd) text += " " + directory.filename().string();
    text += one.training.durability.on()
                ? fmt::format(", a commit every {} steps", one.training.durability.interval)
                : ", no commits";
    text += fmt::format(", runs of {} steps", one.training.steps_per_run);
    if (one.over_threads) text += ", over threads";
    if (one.plan.once) {
      text += fmt::format(", {} at request {}, {}", to_string(one.plan.once->fault),
                          one.plan.once->at_request, static_cast<int>(one.plan.once->where));
    }
    if (one.kill_at)
      text += fmt::format(", killed {} us after event {}", one.kill_late.count(), *one.kill_at);
    if (one.stop_at >= 0) text += fmt::format(", stopped at {}", one.stop_at);
    return text + "\n";
  }

  const Workbench& bench_;
  const MomentWidth width_;
  const Losses& undisturbed_;
  const Trouble trouble_;
  std::mt19937_64 random_;
  Moments& moments_;
  std::vector<fs::path> all_, directories_;
  std::vector<std::uint32_t> sets_;  // of the directories; empty: one set
  std::uint64_t speeds_ = 0;         // of the sets
  std::string policy_;               // empty: random, of this seed
  std::uint64_t policy_seed_ = 0;
  std::string history_;

  std::optional<StoreLocation> location_;  // what a run's folder would know
  std::int64_t interval_ = 0, committed_ = 0, reported_ = 0;
  std::uint64_t most_requests_ = 150;
  bool corrupted_ = false;  // a write was flipped: what is committed may not be what was written
  std::int64_t done_ = -1;
  std::uint64_t hash_ = 0;
};

}  // namespace

const std::vector<std::string>& crash_policies() {
  static const std::vector<std::string> all = {
      "resident",
      "zero-offload",
      "zero-infinity:max_reuse_distance=0,parameters=ssd",
      "zero-infinity:pipeline_read=on,pipeline_write=on,max_reuse_distance=0",
      "deep-optimizer-states",
      "fuyou:swap=0.5,checkpoints_ssd=1",
      "fuyou:optimizer=serial",
      "greedysnake:snake=off,optimizer_ssd=1,alpha=0.3",
      "greedysnake:snake=off,optimizer_ssd=0.5,checkpoints_ssd=1,parameters_ssd=0.5,alpha=0.2"};
  return all;
}

CrashStories::CrashStories() : bench_(folder_for_many_runs()) {
  TrainingOptions options = bench_.options("resident", 2, 16, 2);
  options.steps = steps;
  for (const MomentWidth width : widths) {
    options.problem.workload.moments = width;
    undisturbed_[static_cast<std::size_t>(width)] = train_within_plan(options);
  }
}

void CrashStories::tell(std::uint64_t seed, Trouble trouble) {
  const MomentWidth width = widths[seed / 3 % std::size(widths)];
  Story(bench_, width, undisturbed_[static_cast<std::size_t>(width)], seed, trouble, moments_)
      .tell();
}

}  // namespace spillway::test
