#include "experiments/speed/fio.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <nlohmann/json.hpp>

#include "base/errors.hpp"

extern char** environ;

namespace spillway {

namespace {

constexpr const char* install_hint = "install it: apt-get install fio";

struct Outcome {
  int status = 0;  // of waitpid
  std::string out, err;
};

std::string read_all(int descriptor) {
  std::string text;
  std::array<char, 4096> piece;
  while (true) {
    const ssize_t count = ::read(descriptor, piece.data(), piece.size());
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return text;
    text.append(piece.data(), static_cast<std::size_t>(count));
  }
}

struct Pipe {
  Pipe() {
    if (::pipe2(ends.data(), O_CLOEXEC) != 0)
      throw MachineError::from_errno("cannot make a pipe", errno);
  }
  ~Pipe() {
    close_end(0);
    close_end(1);
  }
  Pipe(const Pipe&) = delete;
  Pipe& operator=(const Pipe&) = delete;
  void close_end(std::size_t end) {
    if (ends[end] >= 0) ::close(std::exchange(ends[end], -1));
  }
  std::array<int, 2> ends{-1, -1};
};

// Runs `words` to its end; none where there is no such program.
std::optional<Outcome> run_program(std::vector<std::string> words) {
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  Pipe out, err;
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, out.ends[1], STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, err.ends[1], STDERR_FILENO);
  pid_t child = -1;
  const int failure =
      ::posix_spawnp(&child, arguments[0], &actions, nullptr, arguments.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  if (failure == ENOENT) return std::nullopt;
  if (failure != 0) throw MachineError::from_errno("cannot start " + words.front(), failure);
  out.close_end(1);
  err.close_end(1);
  Outcome outcome;
  // fio says at most a few lines on its error stream: no pipe fills up while the other is read.
  outcome.out = read_all(out.ends[0]);
  outcome.err = read_all(err.ends[0]);
  while (::waitpid(child, &outcome.status, 0) < 0) {
    if (errno != EINTR) throw MachineError::from_errno("cannot wait for " + words.front(), errno);
  }
  return outcome;
}

std::string joined(const std::vector<std::filesystem::path>& files) {
  std::string text;
  for (const auto& file : files) {
    // A colon separates names.
    for (const char letter : file.string())
      text += letter == ':' ? std::string("\\:") : std::string(1, letter);
    text += ':';
  }
  text.pop_back();
  return text;
}

}  // namespace

const char* to_string(DrivePattern pattern) {
  switch (pattern) {
    case DrivePattern::read:
      return "read";
    case DrivePattern::write:
      return "write";
    case DrivePattern::mixed:
      return "mixed";
  }
  bug("known pattern", __FILE__, __LINE__);
}

std::optional<std::string> fio_version() {
  const auto outcome = run_program({"fio", "--version"});
  if (!outcome || !WIFEXITED(outcome->status) || WEXITSTATUS(outcome->status) != 0)
    return std::nullopt;
  std::string version = outcome->out;
  while (!version.empty() && version.back() == '\n') version.pop_back();
  return version;
}

DriveThroughput run_fio(const FioJob& job, DrivePattern pattern) {
  const std::uint64_t each = job.bytes / job.files.size();
  std::vector<std::string> words = {
      "fio",
      "--output-format=json",
      "--ioengine=io_uring",
      "--direct=1",
      "--fixedbufs=1",
      "--registerfiles=1",
      "--thread=1",
      "--time_based=1",
      "--fallocate=none",
      "--allow_file_create=0",
      "--file_service_type=roundrobin:1",
      fmt::format("--runtime={}ms", static_cast<long>(job.seconds * 1000)),
      fmt::format("--bs={}", job.block_bytes),
      fmt::format("--iodepth={}", job.depth),
      "--filename=" + joined(job.files)};
  const auto add_job = [&](const char* direction, std::uint64_t begin, std::uint64_t bytes) {
    words.push_back(fmt::format("--name={}", direction));
    words.push_back(fmt::format("--rw={}", direction));
    words.push_back(fmt::format("--offset={}", begin));
    words.push_back(fmt::format("--size={}", bytes * job.files.size()));
  };
  const std::uint64_t half = each / 2 / job.block_bytes * job.block_bytes;
  if (pattern == DrivePattern::mixed) {
    add_job("read", 0, half);
    add_job("write", half, half);
  } else {
    add_job(to_string(pattern), 0, each / job.block_bytes * job.block_bytes);
  }
  const auto outcome = run_program(words);
  if (!outcome) throw MachineError("fio is not installed", install_hint);
  DriveThroughput rates;
  try {
    if (!WIFEXITED(outcome->status) || WEXITSTATUS(outcome->status) != 0)
      throw MachineError(outcome->err);
    const auto report = nlohmann::json::parse(outcome->out);
    for (const auto& entry : report.at("jobs")) {
      rates.read += entry.at("read").at("bw_bytes").get<double>();
      rates.write += entry.at("write").at("bw_bytes").get<double>();
    }
  } catch (const std::exception& error) {
    throw MachineError(fmt::format("fio failed: {} {}", error.what(), outcome->err),
                       "run it by hand on that directory to see why");
  }
  return rates;
}

}  // namespace spillway
