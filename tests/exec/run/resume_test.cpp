// Committed training goes on bit for bit: after a stop, under any policy, placement or stripe set.

#include <catch2/catch.hpp>
#include <vector>

#include "base/errors.hpp"
#include "exec/run/training.hpp"
#include "tests/exec/io_test_support.hpp"
#include "tests/exec/training_support.hpp"

namespace spillway {
namespace {

namespace fs = std::filesystem;
using test::PartOfTraining;
using test::train_until;
using test::Workbench;

TrainingOptions durable(const Workbench& bench, const std::string& policy,
                        std::int64_t interval = 1) {
  TrainingOptions options = bench.options(policy);
  options.durability = {DurabilityMode::on, interval};
  options.guard_bytes = 0;
  options.steps = 60;
  return options;
}

TrainingOptions undisturbed(const Workbench& bench) {
  TrainingOptions options = durable(bench, "resident");
  options.durability = {};
  return options;
}

const std::vector<std::string>& policies() {
  static const std::vector<std::string> all = {
      "resident",
      "zero-offload",
      "zero-infinity",
      "zero-infinity:pipeline_read=on,pipeline_write=on,max_reuse_distance=0",
      "deep-optimizer-states",
      "fuyou",
      "fuyou:optimizer=serial",
      "greedysnake:snake=off,optimizer_ssd=1,alpha=0.3",
      "greedysnake:snake=off,optimizer_ssd=0.5,checkpoints_ssd=1,parameters_ssd=0.5,alpha=0.2"};
  return all;
}

void check_tail(const PartOfTraining& whole, const PartOfTraining& tail) {
  REQUIRE(tail.first + static_cast<std::int64_t>(tail.losses.size()) ==
          static_cast<std::int64_t>(whole.losses.size()));
  for (std::size_t i = 0; i < tail.losses.size(); ++i) {
    INFO("step " << tail.first + static_cast<std::int64_t>(i));
    REQUIRE(tail.losses[i] == whole.losses[static_cast<std::size_t>(tail.first) + i]);
  }
  CHECK(tail.hash == whole.hash);
}

TEST_CASE("durability changes no number, and every step is committed in order", "[store]") {
  const Workbench bench;
  const PartOfTraining plain = train_until(undisturbed(bench));
  for (const std::string& policy : policies()) {
    INFO(policy);
    const PartOfTraining outcome = train_until(durable(bench, policy));
    CHECK(outcome.losses == plain.losses);
    CHECK(outcome.hash == plain.hash);
    REQUIRE(!outcome.commits.empty());
    CHECK(outcome.commits.back() == 60);
    for (std::size_t i = 1; i < outcome.commits.size(); ++i)
      CHECK(outcome.commits[i] > outcome.commits[i - 1]);
    // All done: nothing is left behind.
    CHECK(files_of(outcome.location).empty());
  }
}

TEST_CASE(
    "a stop ends after the running step, which is committed, and resuming goes on bit for bit",
    "[store]") {
  const Workbench bench;
  const PartOfTraining whole = train_until(undisturbed(bench));
  for (const std::string& policy : policies()) {
    for (const std::int64_t interval : {1, 7}) {
      INFO(policy << ", a commit every " << interval << " steps");
      TrainingOptions options = durable(bench, policy, interval);
      const PartOfTraining head = train_until(options, 9);
      REQUIRE(head.steps >= 9);
      REQUIRE(head.steps < options.steps);  // tiny steps: lanes run ahead of the report
      CHECK(head.commits.back() == head.steps);
      CHECK(head.losses.size() == static_cast<std::size_t>(head.steps));
      options.resume = find_resume_point(head.location);
      CHECK(options.resume->record.version == head.steps);
      const PartOfTraining tail = train_until(options);
      CHECK(tail.location == head.location);  // opened again, not copied
      check_tail(whole, tail);
    }
  }
}

TEST_CASE("a training goes on under another policy, placement and stripe set", "[store]") {
  const Workbench bench;
  const PartOfTraining whole = train_until(undisturbed(bench));
  const auto& all = policies();
  TrainingOptions options = durable(bench, all[0]);
  PartOfTraining last = train_until(options, 2);
  for (std::size_t i = 1; i < all.size(); ++i) {
    INFO(all[i - 1] << " goes on as " << all[i]);
    options = durable(bench, all[i], 1 + static_cast<std::int64_t>(i % 3));
    if (i % 3 == 1) options.ssd = {bench.root() / "ssd-a"};
    if (i % 3 == 2) options.ssd = {bench.root() / "ssd-b", bench.root() / "ssd-a"};
    const StoreLocation before = last.location;
    options.resume = find_resume_point(before);
    last = train_until(options, last.steps + 1);
    if (!(last.location == before)) CHECK(files_of(before).empty());
    REQUIRE(last.first == options.resume->record.version);
    for (std::size_t step = 0; step < last.losses.size(); ++step) {
      REQUIRE(last.losses[step] == whole.losses[static_cast<std::size_t>(last.first) + step]);
    }
  }
  options.resume = find_resume_point(last.location);
  check_tail(whole, train_until(options));
}

TEST_CASE("a resumed training must have the same numbers", "[store]") {
  const Workbench bench;
  TrainingOptions options = durable(bench, "fuyou");
  const PartOfTraining head = train_until(options, 3);
  options.resume = find_resume_point(head.location);
  const auto refused = [&](const TrainingOptions& other) {
    return test::message_of<InputError>([&] { Training training(other); });
  };
  TrainingOptions other = options;
  other.seed = 2;
  CHECK_THAT(refused(other), Catch::Contains("seed is 2") && Catch::Contains("has 1"));
  other = options;
  other.optimizer.learning_rate = 1;
  CHECK_THAT(refused(other), Catch::Contains("learning_rate"));
  other = options;
  other.problem.model.layers = 2;
  CHECK_THAT(refused(other), Catch::Contains("model is"));
  other = options;
  other.steps = 3;
  CHECK_THAT(refused(other), Catch::Contains("larger steps"));
  // And a new training does not write over it.
  other = durable(bench, "fuyou");
  // What the drives refuse is refused before the device takes any memory.
  other.make_device = [](const Problem&, std::uint64_t, std::uint64_t) -> std::unique_ptr<Device> {
    throw std::logic_error("the device was made first");
  };
  CHECK_THAT(refused(other), Catch::Contains("holds another training, committed at step"));
  other.make_device = {};
  other.overwrite = true;
  CHECK(train_until(other).losses.size() == 60);
}

TEST_CASE("a store reached by another name is not written over by what is resumed from it",
          "[store]") {
  const Workbench bench;
  TrainingOptions options = durable(bench, "fuyou");
  options.ssd = {bench.root() / "ssd-a"};
  const PartOfTraining head = train_until(options, 3);
  fs::create_directory_symlink(bench.root() / "ssd-a", bench.root() / "alias");
  options.ssd = {bench.root() / "alias"};
  options.policy = "zero-infinity";  // laid out otherwise: it has to be moved
  options.resume = find_resume_point(head.location);
  const PartOfTraining tail = train_until(options);
  CHECK(tail.first == head.steps);
  CHECK(tail.location.generation == 1);
}

TEST_CASE("a stripe that belongs to another training is left alone", "[store]") {
  const Workbench bench;
  for (const char* name : {"first", "other"}) fs::create_directory(bench.root() / name);
  TrainingOptions options = durable(bench, "fuyou");
  options.ssd = {bench.root() / "first", bench.root() / "ssd-b"};
  options.stripe_bytes = 8192;
  const PartOfTraining kept = train_until(options, 3);
  // Another one, whose second stripe would be the same file; also where its first directory holds
  // what a run without commits left behind.
  TrainingOptions intruder = options;
  intruder.seed = 9;
  intruder.ssd = {bench.root() / "other", bench.root() / "ssd-b"};
  for (const bool left_over : {false, true}) {
    if (left_over) {
      SsdStoreOptions without_commits;
      without_commits.keep = true;
      const SsdStore store({bench.root() / "other"}, 8192, without_commits);
    }
    CHECK_THAT(test::message_of<InputError>([&] { Training training(intruder); }),
               Catch::Contains("belongs to another training"));
  }
  options.resume = find_resume_point(kept.location);
  const PartOfTraining rest = train_until(options);
  CHECK(rest.first == kept.steps);
}

TEST_CASE("bytes of steps are all that schedules move, what is delayed beyond them, too") {
  const Workbench bench;
  TrainingOptions options = bench.options("greedysnake:snake=off,optimizer_ssd=1,alpha=0.3");
  options.steps = 25;
  Training training(options);
  std::uint64_t read = 0, written = 0, delayed = 0;
  for (std::int64_t version = 0; version < options.steps;) {
    const Schedule& schedule = training.schedules().next(version);
    for (const Task& task : schedule.tasks()) {
      if (task.kind == TaskKind::read) read += task.bytes;
      if (task.kind == TaskKind::write) written += task.bytes;
      if (task.kind == TaskKind::write && task.step >= schedule.steps()) delayed += task.bytes;
    }
    version += schedule.steps();
  }
  CHECK(delayed > 0);
  std::uint64_t told_read = 0, told_written = 0;
  training.run(
      [&](const StepResult& step) {
        told_read += step.ssd_bytes_read;
        told_written += step.ssd_bytes_written;
      },
      nullptr);
  CHECK(told_read == read);
  CHECK(told_written == written);
}

TEST_CASE("commits write what rests in memory and a record, and nothing where all is on the ssd",
          "[store]") {
  const Workbench bench;
  for (const bool on_ssd : {true, false}) {
    TrainingOptions options =
        durable(bench, on_ssd ? "greedysnake:optimizer_ssd=1,snake=off" : "resident");
    options.steps = 10;
    std::uint64_t by_schedule = 0, records = 0;
    {
      Training training(options);
      training.run([&](const StepResult& step) { by_schedule += step.ssd_bytes_written; }, nullptr);
      records = training.bytes_written_by_commits();
      CHECK((training.bytes_copied_per_commit() == 0) == on_ssd);
    }
    TrainingOptions plain = options;
    plain.durability = {};
    std::uint64_t without = 0;
    Training training(plain);
    training.run([&](const StepResult& step) { without += step.ssd_bytes_written; }, nullptr);
    CHECK(by_schedule == without);  // the policy's own traffic does not grow
    const std::uint64_t state = 12 * static_cast<std::uint64_t>(options.problem.model.parameters());
    if (on_ssd) {
      CHECK(records <= 10 * 65536);
    } else {
      CHECK(records >= state);
    }
  }
}

}  // namespace
}  // namespace spillway
