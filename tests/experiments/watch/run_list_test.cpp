// Runs seen from outside: their states, and metrics that are still being written.
#include "experiments/watch/run_list.hpp"

#include <catch2/catch.hpp>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/errors.hpp"
#include "exec/run/run_lock.hpp"
#include "tests/temporary_folder.hpp"

namespace spillway {
namespace {

namespace fs = std::filesystem;
using Lines = std::vector<std::string>;

constexpr const char* begun =
    "{\"event\":\"start\",\"model\":\"gpt-tiny\",\"policy\":\"resident\",\"steps\":9,"
    "\"workload\":{\"batch\":2,\"sequence\":16}}\n"
    "{\"event\":\"step\",\"step\":0,\"loss\":5.5,\"step_seconds\":0.5}\n"
    "{\"event\":\"evaluation\",\"step\":1,\"loss\":5.25}\n"
    "{\"event\":\"step\",\"step\":1,\"loss\":5.0,\"step_seconds\":0.5}\n";

// A folder as a run leaves it.
fs::path make_run(const fs::path& parent, const std::string& name, const std::string& metrics) {
  fs::create_directories(parent / name);
  std::ofstream(parent / name / "run.json") << "{}\n";
  std::ofstream(parent / name / "metrics.jsonl") << metrics;
  return parent / name;
}

void append(const fs::path& file, const std::string& text) {
  std::ofstream(file, std::ios::app) << text;
}

}  // namespace

TEST_CASE("The state of a run follows from its lock and its last event") {
  const test::TemporaryFolder folder;
  const std::string started = begun;
  const fs::path run = make_run(folder.path(), "run", started);
  CHECK(look_at_run(run).state == RunState::crashed);
  append(run / "metrics.jsonl", "{\"event\":\"end\",\"steps\":2,\"interrupted\":true}\n");
  CHECK(look_at_run(run).state == RunState::stopped);
  {
    const RunLock lock(Directory(run), this_computer());
    CHECK(look_at_run(run).state == RunState::running);
    CHECK(look_at_run(run).state == RunState::running);  // looking does not change it
    CHECK_THROWS_AS(RunLock(Directory(run), this_computer()), MachineError);
  }
  append(run / "metrics.jsonl", started + "{\"event\":\"end\",\"steps\":9}\n");
  CHECK(look_at_run(run).state == RunState::done);
  // A crash leaves its name in the file, and no lock.
  std::ofstream(run / "run.lock") << this_computer().host << "\nprocess 1\n";
  append(run / "metrics.jsonl", started);
  CHECK(look_at_run(run).state == RunState::crashed);
  const Surroundings shared{"another-host", [](int) { return true; }};
  CHECK(run_at_work(Directory(run), shared) == AtWork::elsewhere);
}

TEST_CASE("Runs are listed with what they have come to, and broken ones do not hide the others") {
  const test::TemporaryFolder folder;
  make_run(folder.path(), "one", begun);
  make_run(folder.path(), "empty", "");
  make_run(folder.path(), "broken",
           "no JSON\n{\"event\":\"step\",\"step\":\n\n[[[[\n" + std::string(begun) +
               "{\"event\":\"step\",\"st");
  make_run(folder.path(), "linked", "");
  fs::remove(folder / "linked/metrics.jsonl");
  fs::create_symlink("/etc/passwd", folder / "linked/metrics.jsonl");
  fs::create_directory(folder / "no-run");
  const std::vector<SeenRun> runs = look_at_runs(folder.path());
  Lines names;
  for (const SeenRun& run : runs) {
    names.push_back(run.name);
    if (run.name == "one" || run.name == "broken") {
      const nlohmann::json json = to_json(run);
      CHECK(json["state"] == "crashed");
      CHECK(json["model"] == "gpt-tiny");
      CHECK(json["policy"] == "resident");
      CHECK(json["steps_done"] == 2);
      CHECK(json["steps"] == 9);
      CHECK(json["loss"] == 5.0);
      CHECK(json["evaluation_loss"] == 5.25);
      CHECK(json["tokens_per_second"] == Approx(64));
      CHECK(json["age_seconds"] >= 0.0);
    }
    if (run.name == "linked") CHECK(run.state == RunState::unknown);
    if (run.name == "empty") CHECK(to_json(run)["loss"].is_null());
  }
  std::sort(names.begin(), names.end());
  CHECK(names == Lines{"broken", "empty", "linked", "one"});
  CHECK_THROWS_AS(look_at_runs(folder / "not-there"), InputError);
  CHECK_THROWS_AS(look_at_run(folder / "no-run"), InputError);
}

TEST_CASE("Of very long metrics the beginning and the end are read") {
  const test::TemporaryFolder folder;
  std::string metrics = begun;
  for (int i = 2; i < 3000; ++i)
    metrics += "{\"event\":\"step\",\"step\":" + std::to_string(i) +
               ",\"loss\":4.5,\"step_seconds\":0.5}\n";
  const fs::path run = make_run(folder.path(), "run", metrics);
  const SeenRun part = look_at_run(run, 10'000);
  CHECK(part.history.start().model == "gpt-tiny");
  CHECK(part.history.steps_done() == 3000);
  CHECK(part.history.steps().size() < 400);
  CHECK(look_at_run(run).history.steps().size() == 3000);
}

TEST_CASE("Metrics are read as they grow, by whole lines, and anew where a run has replaced them") {
  const test::TemporaryFolder folder;
  MetricsReader reader{Directory(folder.path())};
  const fs::path file = folder / "metrics.jsonl";
  CHECK(reader.read().empty());
  append(file, "one\ntw");
  CHECK(reader.read() == Lines{"one"});
  CHECK(reader.read().empty());
  append(file, "o\n\nthree\n");
  CHECK(reader.read() == Lines{"two", "", "three"});
  CHECK(reader.replaced() == 0);
  append(file, "half");
  CHECK(reader.read().empty());
  append(folder / "next", "one\n");
  fs::rename(folder / "next", file);
  CHECK(reader.read() == Lines{"one"});
  CHECK(reader.replaced() == 1);
  fs::resize_file(file, 0);
  append(file, "1\n");
  CHECK(reader.read() == Lines{"1"});
  // A line without an end is not kept in memory.
  append(file, std::string(5'000'000, 'x'));
  CHECK(reader.read().empty());
  append(file, "\nnext\n");
  const Lines lines = reader.read();
  REQUIRE(lines.size() == 2);
  CHECK(lines[0].size() < 2'000'000);
  CHECK(lines[1] == "next");
}

}  // namespace spillway
