#include "base/errors.hpp"

#include <catch2/catch.hpp>

#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <string>

using namespace spillway;

namespace {

struct Outcome {
  int status = 0;
  std::string standard_error;
};

// Runs `body` in a child process, as it is expected to abort.
template <class Body>
Outcome run_in_child(Body body) {
  std::array<int, 2> pipe_ends{};
  REQUIRE(pipe(pipe_ends.data()) == 0);
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    dup2(pipe_ends[1], STDERR_FILENO);
    std::signal(SIGABRT, SIG_DFL);  // not Catch's reporter
    body();
    _exit(0);
  }
  close(pipe_ends[1]);
  Outcome outcome;
  std::array<char, 256> chunk{};
  for (ssize_t n = 0; (n = read(pipe_ends[0], chunk.data(), chunk.size())) > 0;) {
    outcome.standard_error.append(chunk.data(), static_cast<std::size_t>(n));
  }
  close(pipe_ends[0]);
  REQUIRE(waitpid(child, &outcome.status, 0) == child);
  return outcome;
}

}  // namespace

TEST_CASE("an input error says file:line: what, and line 0 leaves the line out") {
  const InputError with_line("machine.toml", 7, "gpu.flops is missing", "add it");
  CHECK(std::string(with_line.what()) == "machine.toml:7: gpu.flops is missing");
  CHECK(with_line.hint() == "add it");
  CHECK(std::string(InputError("machine.toml", 0, "is empty").what()) == "machine.toml: is empty");
  CHECK(InputError("no place").hint().empty());
}

TEST_CASE("every error of ours is an Error, so one handler sees hint and text") {
  const auto caught = [](auto error) -> std::string {
    try {
      throw error;
    } catch (const Error& base) {
      return std::string(base.what()) + "|" + base.hint();
    }
  };
  CHECK(caught(InputError("a", "b")) == "a|b");
  CHECK(caught(FitError("c", "d")) == "c|d");
  CHECK(caught(MachineError("e", "f")) == "e|f");
}

TEST_CASE("an errno brings its meaning and a remedy, and a given hint wins") {
  const MachineError full = MachineError::from_errno("write /mnt/a", ENOSPC);
  CHECK(std::string(full.what()) == "write /mnt/a: No space left on device");
  CHECK(full.hint() == "the disk is full: free space there or name another directory");
  CHECK(MachineError::from_errno("open x", EACCES).hint() ==
        MachineError::from_errno("open x", EPERM).hint());
  CHECK(MachineError::from_errno("open x", ENOSPC, "use /tmp").hint() == "use /tmp");
  CHECK(MachineError::from_errno("ioctl", ENOTTY).hint().empty());
}

TEST_CASE("a broken invariant aborts in every build and says where and what") {
  const Outcome broken = run_in_child([] {
    const int layers = 3;
    SPILLWAY_ASSERT(layers == 4, "layer count");
  });
  REQUIRE(WIFSIGNALED(broken.status));
  CHECK(WTERMSIG(broken.status) == SIGABRT);
  CHECK(broken.standard_error.find("internal error: layers == 4 is false at") != std::string::npos);
  CHECK(broken.standard_error.find("errors_test.cpp") != std::string::npos);
  CHECK(broken.standard_error.find(": layer count") != std::string::npos);

  const Outcome kept = run_in_child([] { SPILLWAY_ASSERT(1 + 1 == 2); });
  CHECK(WIFEXITED(kept.status));
  CHECK(kept.standard_error.empty());
}
