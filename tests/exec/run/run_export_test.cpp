// Exporting a run at work: what is exported is a whole step, the run trains on as if nobody had
// read, and is held back before it overwrites what is read.
#include "exec/run/run_export.hpp"

#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <fstream>
#include <sstream>
#include <thread>

#include "base/errors.hpp"
#include "exec/run/export_lock.hpp"
#include "exec/run/kept_checkpoints.hpp"
#include "exec/run/run_folder.hpp"
#include "tests/exec/io_test_support.hpp"
#include "tests/exec/training_support.hpp"

namespace spillway::test {
namespace {

constexpr std::int64_t steps = 400;

std::string bytes_of_file(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  REQUIRE(file);
  return text.str();
}

TrainingOptions durable(const Workbench& bench, const std::string& policy) {
  TrainingOptions options = bench.options(policy, 2, 16, 1);
  options.guard_bytes = 0;
  options.durability = {DurabilityMode::on, 1};
  options.steps = steps;
  return options;
}

// The weights that training to `step` and no further ends with.
std::string weights_of(const Workbench& bench, TrainingOptions options, std::int64_t step) {
  options.steps = step;
  options.ssd = {bench.root() / "other"};
  fs::create_directories(options.ssd[0]);
  Training training(options);
  training.run([](const StepResult&) {}, nullptr);
  training.export_model(Directory(bench.root()));
  return bytes_of_file(bench.root() / "model.safetensors");
}

// A run in a folder, training on a thread of its own.
class RunAtWork {
 public:
  RunAtWork(const Workbench& bench, TrainingOptions options)
      : folder_(RunFolder::create((bench.root() / "run").string(), "m")),
        lock_(folder_.directory()) {
    std::ofstream(folder_.file(RunFolder::model)) << model_to_toml(options.problem.model);
    options.run = folder_.identity();
    options.may_overwrite = [this](std::int64_t) {
      if (lock_.nobody_reads()) return true;
      ++held_back;
      return false;
    };
    training_ = std::make_unique<Training>(options);
    folder_.keep();
    folder_.remember_store(training_->store_location());
    thread_ = std::thread([this] {
      hash_ = training_
                  ->run([](const StepResult&) {}, nullptr,
                        [this](std::int64_t step) { committed = step; })
                  .weights_hash;
      ended = true;
    });
  }
  ~RunAtWork() { wait(); }
  std::uint64_t wait() {
    if (thread_.joinable()) thread_.join();
    return hash_;
  }

  std::atomic<std::int64_t> committed = 0;
  std::atomic<int> held_back = 0;
  std::atomic<bool> ended = false;

 private:
  RunFolder folder_;
  ExportLock lock_;
  std::unique_ptr<Training> training_;
  std::uint64_t hash_ = 0;
  std::thread thread_;
};

template <class Condition>
void wait_until(const Condition& condition) {
  while (!condition()) std::this_thread::sleep_for(std::chrono::microseconds(200));
}

}  // namespace

TEST_CASE("a run at work is held back before it overwrites what an export reads", "[store]") {
  // State in memory, which commits copy; on the ssd, where versions take turns; and both.
  for (const char* policy : {"resident", "greedysnake:optimizer_ssd=1,snake=off",
                             "greedysnake:optimizer_ssd=0.5,alpha=0.3"}) {
    INFO(policy);
    const Workbench bench(folder_for_many_runs());
    const TrainingOptions options = durable(bench, policy);
    RunAtWork run(bench, options);
    wait_until([&] { return run.committed >= 3 || run.ended; });
    RunExport request;
    request.run = (bench.root() / "run").string();
    request.out = bench.root() / "out";
    bool waited = false;
    request.files.progress = [&](std::uint64_t, std::uint64_t) {
      // In the midst of it, until the run would overwrite what is being read.
      if (!waited) wait_until([&] { return run.held_back > 0 || run.ended; });
      waited = true;
    };
    const ExportedRun exported = export_run(request);
    CHECK(run.held_back > 0);
    REQUIRE(exported.step);
    CHECK(*exported.step < steps);
    const std::uint64_t hash = run.wait();
    CHECK(bytes_of_file(bench.root() / "out/model.safetensors") ==
          weights_of(bench, options, *exported.step));
    TrainingOptions undisturbed = options;
    undisturbed.ssd = {bench.root() / "other"};
    undisturbed.overwrite = true;
    CHECK(Training(undisturbed).run([](const StepResult&) {}, nullptr).weights_hash == hash);
  }
}

TEST_CASE("an export that is given up leaves nothing, and holds nothing", "[store]") {
  const Workbench bench(folder_for_many_runs());
  RunAtWork run(bench, durable(bench, "resident"));
  wait_until([&] { return run.committed >= 1 || run.ended; });
  RunExport request;
  request.run = (bench.root() / "run").string();
  request.files.progress = [](std::uint64_t, std::uint64_t) { throw MachineError("given up"); };
  CHECK_THROWS_WITH(export_run(request), "given up");
  run.wait();
  CHECK(run.committed == steps);
  for (const auto& entry : fs::directory_iterator(bench.root() / "run"))
    CHECK_THAT(entry.path().filename().string(), !Catch::Contains("model-step"));
}

TEST_CASE(
    "where the lock of an export did not hold, it begins again with a newer step, and says so",
    "[store]") {
  const Workbench bench(folder_for_many_runs());
  const TrainingOptions options = durable(bench, "greedysnake:optimizer_ssd=1,snake=off");
  RunAtWork run(bench, options);
  wait_until([&] { return run.committed >= 3 || run.ended; });
  RunExport request;
  request.run = (bench.root() / "run").string();
  request.out = bench.root() / "out";
  std::vector<std::string> notes;
  // A run of such short steps overwrites each newest commit before it is read: begun again at its
  // end.
  request.note = [&](const std::string& text) {
    notes.push_back(text);
    wait_until([&] { return run.ended.load(); });
  };
  // Another file under its name: the run asks the one that it has opened.
  fs::remove(bench.root() / "run/export.lock");
  bool waited = false;
  request.files.progress = [&](std::uint64_t, std::uint64_t) {
    if (!waited) wait_until([&] { return run.ended.load(); });
    waited = true;
  };
  const ExportedRun exported = export_run(request);
  run.wait();
  CHECK_FALSE(notes.empty());
  CHECK(exported.step == steps);
  CHECK(bytes_of_file(bench.root() / "out/model.safetensors") == weights_of(bench, options, steps));
}

TEST_CASE("of the steps to be kept the last few are there, whole, and the oldest goes last",
          "[store]") {
  const Workbench bench(folder_for_many_runs());
  const TrainingOptions options = durable(bench, "resident");
  const fs::path run = bench.root() / "run";
  RunAtWork at_work(bench, options);
  at_work.wait();
  fs::create_directories(run / "checkpoints/mine");
  fs::create_directories(run / "checkpoints/.step-000001.partial-0123456789abcdef");
  fs::create_directories(run / "checkpoints/.removed/half");
  for (const char* older : {"step-000100", "step-000200", "step-000300"})
    write_file(run / "checkpoints" / older / "model.safetensors", "");
  fs::create_directories(run / "checkpoints/step-000400");  // empty: none
  KeptCheckpoints kept(run, {2, 100}, make_usual_ring);
  CHECK_FALSE(fs::exists(run / "checkpoints/.removed"));
  CHECK_FALSE(fs::exists(run / "checkpoints/.step-000001.partial-0123456789abcdef"));
  CHECK(kept_steps(run) == std::vector<std::int64_t>{100, 200, 300});
  kept.committed(steps);
  kept.wait();
  const std::vector<KeptStep> news = kept.news();
  REQUIRE(news.size() == 1);
  CHECK(news[0].error == "");
  CHECK(news[0].folder == run / "checkpoints/step-000400");
  CHECK(kept_steps(run) == std::vector<std::int64_t>{300, 400});
  CHECK(fs::exists(run / "checkpoints/mine"));
  CHECK(bytes_of_file(run / "checkpoints/step-000400/model.safetensors") ==
        weights_of(bench, options, steps));
  // What cannot be written is said, and all that was there stays.
  kept.committed(500);
  kept.wait();
  CHECK_THAT(kept.news().at(0).error, Catch::Contains("500"));
  CHECK(kept_steps(run) == std::vector<std::int64_t>{300, 400});
  // Neither one that is there nor one that is not to be kept.
  kept.committed(300);
  kept.committed(399);
  kept.wait();
  CHECK(kept.news().empty());
}

}  // namespace spillway::test
