#include "tests/cli/train/ranks.hpp"

#include <algorithm>
#include <catch2/catch.hpp>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <thread>

#include "test_paths.hpp"

namespace spillway::test {

namespace fs = std::filesystem;
using nlohmann::json;
using Words = std::vector<std::string>;

Words mpirun(int ranks) {
  // Tests may run as root, on fewer cores than ranks.
  ::setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 1);
  ::setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 1);
  return {"mpirun", "--oversubscribe", "--bind-to", "none", "-n", std::to_string(ranks)};
}

namespace {

// Why nothing can be tested here; empty where it can.
std::string why_not() {
  std::istringstream path(std::getenv("PATH") ? std::getenv("PATH") : "");
  for (std::string folder; std::getline(path, folder, ':');) {
    if (!fs::exists(fs::path(folder) / "mpirun")) continue;
    const fs::path module = fs::path(SPILLWAY_PROGRAM).parent_path() / "libspillway_mpi.so";
    return fs::exists(module) ? "" : "the build has no MPI module";
  }
  return "there is no mpirun (openmpi-bin)";
}

}  // namespace

bool ranks_are_skipped() {
  const std::string reason = why_not();
  if (!reason.empty()) WARN("skipped: " + reason);
  return !reason.empty();
}

Outcome run_by(int ranks, const Words& words) {
  if (ranks == 1) return run(words);
  const StartedBy by(mpirun(ranks));
  return run(words);
}

Outcome succeed(int ranks, const Words& words) {
  Outcome outcome = run_by(ranks, words);
  INFO(outcome.err);
  REQUIRE(outcome.exit_code == 0);
  return outcome;
}

Words rank_training(const TemporaryFolder& folder, const std::string& run, int steps) {
  Words words = tiny_training(folder);
  const auto at = std::find(words.begin(), words.end(), "--run");
  *(at + 1) = folder / run;
  return words + Words{"--steps", std::to_string(steps), "--batch",   "4", "--micro-batch",
                       "1",       "--gradient-clip",     "global=0.5"};
}

void check_stopped(Program& program, const fs::path& run) {
  const Outcome outcome = program.wait();
  INFO(outcome.err);
  const json end = last_event(run);
  REQUIRE(end["event"] == "end");
  CHECK(end["interrupted"] == true);
  CHECK(end["committed_step"] == end["steps"]);
}

json last_event(const fs::path& run) {
  json last;
  for (const std::string& line : lines_of(read_file(run / "metrics.jsonl")))
    last = json::parse(line);
  return last;
}

namespace {

// Empty where the process has ended meanwhile.
std::string text_of(const fs::path& file) {
  std::ostringstream text;
  std::ifstream in(file);
  text << in.rdbuf();
  return text.str();
}

}  // namespace

std::vector<pid_t> ranks_of(pid_t parent, int ranks) {
  std::vector<pid_t> found(static_cast<std::size_t>(ranks), 0);
  for (const auto& entry : fs::directory_iterator("/proc")) {
    const std::string name = entry.path().filename();
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    const std::string text = text_of(entry.path() / "stat");
    const std::size_t after = text.rfind(')');
    if (after == std::string::npos) continue;
    std::istringstream rest(text.substr(after + 1));
    std::string state;
    pid_t of = 0;
    rest >> state >> of;
    if (of != parent) continue;
    const std::string all = text_of(entry.path() / "environ");
    const std::string key = "OMPI_COMM_WORLD_RANK=";
    const std::size_t at = all.find(key);
    if (at == std::string::npos) continue;
    const auto rank = static_cast<std::size_t>(std::atoi(all.c_str() + at + key.size()));
    if (rank < found.size()) found[rank] = std::atoi(name.c_str());
  }
  const bool all = std::find(found.begin(), found.end(), 0) == found.end();
  return all ? found : std::vector<pid_t>();
}

bool is_there(pid_t process) {
  for (int tries = 0; tries < 100; ++tries) {
    std::ifstream file("/proc/" + std::to_string(process) + "/stat");
    std::string text;
    if (!std::getline(file, text)) return false;
    const std::size_t name_end = text.rfind(')');
    if (name_end != std::string::npos && text.size() > name_end + 2 && text[name_end + 2] == 'Z')
      return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  return true;
}

bool wait_for_commit(Program& program, const fs::path& run, int step) {
  while (program.running()) {
    std::error_code error;
    if (fs::exists(run / "metrics.jsonl", error)) {
      for (const std::string& line : lines_of(read_file(run / "metrics.jsonl"))) {
        const json event = json::parse(line, nullptr, false);
        if (!event.is_discarded() && event.value("event", "") == "commit" && event["step"] >= step)
          return true;
      }
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return false;
}

}  // namespace spillway::test
