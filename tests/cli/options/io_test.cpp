// `--io`, and training where io_uring is refused: which ring the store has is said in a line, and
// changes neither a number nor what is on the drives.
#include <signal.h>

#include <catch2/catch.hpp>
#include <cerrno>
#include <thread>

#include "exec/io/io_choice.hpp"
#include "tests/cli/program.hpp"

using namespace spillway::test;
using nlohmann::json;
using Words = std::vector<std::string>;

namespace {

// 40 steps whose optimizer state rests on the ssd, each committed.
Words training(const TemporaryFolder& folder, const std::string& run) {
  return tiny_training(folder) + Words{"--policy",    "greedysnake:optimizer_ssd=1,snake=off",
                                       "--no-export", "--steps",
                                       "40",          "--run",
                                       folder / run};
}

// Kills it once some steps are committed.
Outcome killed(const Words& arguments) {
  Program program(arguments);
  while (program.running() &&
         program.output().find("{\"event\":\"commit\",\"step\":5") == std::string::npos)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  program.send(SIGKILL);
  return program.wait();
}

const json threads_of_training = {{"method", "threads"}, {"threads", 16}};

json refused(const char* why) {
  json io = threads_of_training;
  io["io_uring_refused"] = why;
  return io;
}

bool is_refused_to_all() { return spillway::usual_io().method == spillway::IoMethod::threads; }

void check_same(const TemporaryFolder& folder, const Outcome& rest, const Outcome& whole) {
  INFO(rest.err);
  REQUIRE(rest.exit_code == 0);
  CHECK(recorded_losses(folder / "run") == recorded_losses(folder / "whole"));
  CHECK(rest.json_lines().back()["weights_hash"] == whole.json_lines().back()["weights_hash"]);
}

}  // namespace

TEST_CASE("Where io_uring is refused training works, is killed and goes on to the same numbers") {
  struct Refusal {
    unsigned error_number;
    const char* why;
  };
  const Refusal refusal = GENERATE(Refusal{EPERM, "Operation not permitted"},
                                   Refusal{ENOSYS, "Function not implemented"});
  INFO(refusal.why);
  const TemporaryFolder folder;
  const Outcome whole = run(training(folder, "whole") + Words{"--json"});  // as it is here
  REQUIRE(whole.exit_code == 0);
  if (!is_refused_to_all()) CHECK(whole.json_lines().front()["io"] == json{{"method", "io_uring"}});
  {
    const RefusedIoUring refused_io_uring(refusal.error_number);
    const Outcome first = killed(training(folder, "run") + Words{"--json"});
    INFO(first.err);
    REQUIRE(first.signal == SIGKILL);
    CHECK(json::parse(lines_of(first.out).front())["io"] == refused(refusal.why));
    CHECK(first.err.empty());  // it is normal: no warning
    CHECK(run({"store", "inspect", folder / "run"}).exit_code == 0);
    const Outcome rest = run({"train", "--resume", "--run", folder / "run", "--json"});
    CHECK(rest.json_lines().front()["io"] == refused(refusal.why));
    CHECK(rest.json_lines().front()["first_step"] >= 5);
    check_same(folder, rest, whole);
  }
}

TEST_CASE("A run goes on over another ring than it began with, to the same numbers") {
  const TemporaryFolder folder;
  const Outcome whole = run(training(folder, "whole") + Words{"--json", "--io", "threads"});
  REQUIRE(whole.exit_code == 0);
  CHECK(whole.json_lines().front()["io"] == threads_of_training);
  const bool threads_first = GENERATE(true, false);
  const char* const first = threads_first || is_refused_to_all() ? "threads" : "uring";
  const char* const second = !threads_first || is_refused_to_all() ? "threads" : "uring";
  INFO(first << ", then " << second);
  REQUIRE(killed(training(folder, "run") + Words{"--json", "--io", first}).signal == SIGKILL);
  check_same(folder, run({"train", "--resume", "--run", folder / "run", "--json", "--io", second}),
             whole);
}

TEST_CASE("What --io was given is not kept: a run goes on where io_uring is refused") {
  if (is_refused_to_all()) {
    WARN("skipped: io_uring is refused here");
    return;
  }
  const TemporaryFolder folder;
  REQUIRE(killed(training(folder, "run") + Words{"--json", "--io", "uring"}).signal == SIGKILL);
  const RefusedIoUring refused_io_uring(EPERM);
  const Outcome rest = run({"train", "--resume", "--run", folder / "run", "--json"});
  INFO(rest.err);
  CHECK(rest.exit_code == 0);
}

TEST_CASE("Training says in one line how it reads and writes, and nothing where it has no store") {
  const TemporaryFolder folder;
  const auto lines_about_io = [](const Outcome& outcome) {
    REQUIRE(outcome.exit_code == 0);
    Words found;
    for (const std::string& line : lines_of(outcome.out))
      if (line.find("I/O: ") != std::string::npos) found.push_back(line);
    return found;
  };
  CHECK(lines_about_io(
            run(tiny_training(folder) + Words{"--run", folder / "1", "--io", "threads"})) ==
        Words{"  I/O: 16 threads with pread and pwrite"});
  {
    const RefusedIoUring refused_io_uring(EPERM);
    CHECK(lines_about_io(run(tiny_training(folder) + Words{"--run", folder / "2"})) ==
          Words{"  I/O: 16 threads with pread and pwrite (io_uring: Operation not permitted)"});
  }
  if (!is_refused_to_all())
    CHECK(lines_about_io(run(tiny_training(folder) + Words{"--run", folder / "3"})) ==
          Words{"  I/O: io_uring"});
  const Words in_memory = {"--policy", "resident", "--durability", "off", "--run"};
  CHECK(lines_about_io(run(tiny_training(folder) + in_memory + Words{folder / "4"})).empty());
  const Outcome events = run(tiny_training(folder) + in_memory + Words{folder / "5", "--json"});
  CHECK(events.json_lines().front()["io"].is_null());
}

TEST_CASE(
    "io_uring that is asked for and refused is an error with a remedy, and leaves nothing behind") {
  const TemporaryFolder folder;
  const Words arguments = tiny_training(folder) + Words{"--io", "uring"};
  const RefusedIoUring refused_io_uring(EPERM);
  const Words before = folder.listing();
  const Outcome outcome = run(arguments);
  check_refusal(outcome, 1, "--io uring: cannot use io_uring: Operation not permitted",
                "kernel.io_uring_disabled");
  CHECK_THAT(outcome.err, Catch::Contains("seccomp") && Catch::Contains("--io threads"));
  CHECK(folder.listing() == before);
  check_refusal(run({"calibrate", "--out", folder / "machine.toml", "--io", "uring"}), 1,
                "--io uring: cannot use io_uring", "--io threads");
  check_refusal(run({"bench", "ssd", "--ssd", folder.path().string(), "--io", "uring"}), 1,
                "--io uring: cannot use io_uring", "--io threads");
  check_refusal(run({"train", "--io", "aio"}), 2, "--io", "train --help");
}

TEST_CASE("calibrate measures the drive through the ring that it names in the machine file",
          "[slow]") {
  const TemporaryFolder folder;
  std::filesystem::create_directory(folder / "ssd");
  const RefusedIoUring refused_io_uring(EPERM);
  const Outcome measured =
      run({"calibrate", "--model", "gpt-tiny", "--batch", "1", "--sequence", "16", "--samples",
           "10", "--ssd", folder / "ssd", "--out", folder / "machine.toml"});
  INFO(measured.err);
  REQUIRE(measured.exit_code == 0);
  CHECK_THAT(
      measured.out,
      Catch::Contains("I/O: 16 threads with pread and pwrite (io_uring: Operation not permitted)"));
  CHECK_THAT(read_file(folder / "machine.toml"),
             Catch::Contains("16 threads with pread and pwrite, 256 KiB to 16 MiB, one lane"));
}

TEST_CASE("bench ssd has threads beside io_uring in the same rounds, and alone where it is refused",
          "[slow]") {
  const TemporaryFolder folder;
  const Words arguments = {"bench",     "ssd",  "--ssd", folder.path().string(), "--rounds", "2",
                           "--seconds", "0.05", "--json"};
  const auto names_of = [](const json& figures) {
    Words names;
    for (const json& figure : figures) names.push_back(figure["name"]);
    return names;
  };
  if (!is_refused_to_all()) {
    for (const char* const io : {"auto", "threads"}) {
      INFO(io);
      const Outcome both = run(arguments + Words{"--io", io});
      INFO(both.err);
      REQUIRE(both.exit_code == 0);
      const json figures = both.json()["figures"];
      REQUIRE(names_of(figures) == Words{"ssd/read", "ssd/read-threads", "ssd/write",
                                         "ssd/write-threads", "ssd/mixed", "ssd/mixed-threads"});
      for (const json& figure : figures) CHECK(figure["ratios"].size() == 2);
      CHECK_THAT(figures[0]["what"].get<std::string>(),
                 Catch::Contains(std::string(io) == "auto" ? "io_uring" : "16 threads"));
      CHECK_THAT(figures[1]["what"].get<std::string>(), Catch::Contains("16 threads"));
      CHECK(figures[1]["roofline_what"] == "the same lanes over io_uring");
      CHECK(figures[1]["target"]["least_ratio"] == 0.85);
    }
  }
  const RefusedIoUring refused_io_uring(EPERM);
  const Outcome alone = run(arguments);
  INFO(alone.err);
  REQUIRE(alone.exit_code == 0);
  const json figures = alone.json()["figures"];
  REQUIRE(names_of(figures) == Words{"ssd/read", "ssd/write", "ssd/mixed"});
  for (const json& figure : figures) {
    CHECK(figure["target"].is_null());
    CHECK_THAT(figure["note"].get<std::string>(), Catch::Contains("refused"));
    CHECK_THAT(figure["what"].get<std::string>(),
               Catch::Contains("16 threads with pread and pwrite (io_uring: Operation"));
  }
  CHECK(folder.listing().empty());
}
