#include "tests/cli/program.hpp"

#include <fcntl.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <thread>
#include "test_paths.hpp"
#include "tests/refused_calls.hpp"

namespace spillway::test {

namespace fs = std::filesystem;

namespace {

// A program that takes longer hangs: the slowest take half a minute on a machine that is idle.
constexpr std::chrono::minutes longest_run{5};

std::vector<std::string> started_by;
std::optional<std::string> kept_measurements;
std::optional<unsigned> io_uring_refusal;

// Replaces a descriptor of the child by a file. Only what may be called between fork and exec.
void redirect(int descriptor, const char* path, int flags) {
  const int opened = ::open(path, flags, 0600);
  if (opened < 0 || ::dup2(opened, descriptor) < 0) ::_exit(126);
  if (opened != descriptor) ::close(opened);
}

void set_output(Output output, const char* file) {
  switch (output) {
    case Output::file:
      return redirect(STDOUT_FILENO, file, O_WRONLY | O_CREAT | O_TRUNC);
    case Output::full_device:
      return redirect(STDOUT_FILENO, "/dev/full", O_WRONLY);
    case Output::closed:
      ::close(STDOUT_FILENO);
      return;
    case Output::pipe_without_reader: {
      int ends[2];
      if (::pipe(ends) != 0 || ::dup2(ends[1], STDOUT_FILENO) < 0) ::_exit(126);
      ::close(ends[0]);
      ::close(ends[1]);
      return;
    }
  }
}

}  // namespace

TemporaryFolder::TemporaryFolder() {
  std::string name = (fs::temp_directory_path() / "spillway-cli-XXXXXX").string();
  if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error("cannot create " + name);
  path_ = name;
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

std::string TemporaryFolder::write(const std::string& name, const std::string& text) const {
  std::ofstream(path_ / name, std::ios::binary) << text;
  return *this / name;
}

std::vector<std::string> TemporaryFolder::listing() const {
  std::vector<std::string> names;
  for (const auto& entry : fs::recursive_directory_iterator(path_)) {
    names.push_back(entry.path().lexically_relative(path_).string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

SmallDisk::SmallDisk(const fs::path& folder, const std::string& size, bool read_only)
    : folder_(folder) {
  fs::create_directories(folder_);
  const std::string options = "size=" + size;
  if (::mount("tmpfs", folder_.c_str(), "tmpfs", read_only ? MS_RDONLY : 0, options.c_str()) != 0) {
    why_not_ = std::string("cannot mount a small file system: ") + std::strerror(errno);
  }
}

SmallDisk::~SmallDisk() {
  if (mounted()) ::umount2(folder_.c_str(), MNT_DETACH);
}

std::vector<nlohmann::json> Outcome::json_lines() const {
  std::vector<nlohmann::json> all;
  for (const std::string& line : lines_of(out)) all.push_back(nlohmann::json::parse(line));
  return all;
}

KeptMeasurements::KeptMeasurements(const std::string& path) { kept_measurements = path; }
KeptMeasurements::~KeptMeasurements() { kept_measurements.reset(); }

RefusedIoUring::RefusedIoUring(unsigned error_number) { io_uring_refusal = error_number; }
RefusedIoUring::~RefusedIoUring() { io_uring_refusal.reset(); }

StartedBy::StartedBy(const std::vector<std::string>& words) { started_by = words; }

StartedBy::~StartedBy() { started_by.clear(); }

Program::Program(const std::vector<std::string>& arguments, Output output) {
  std::vector<std::string> words = started_by;
  words.emplace_back(SPILLWAY_PROGRAM);
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  const std::string out = files_ / "out", err = files_ / "err";
  // What is tested here is the program with the CPU backend, also on a machine with a GPU.
  ::setenv("CUDA_VISIBLE_DEVICES", "", 1);
  ::setenv("XDG_CACHE_HOME", kept_measurements.value_or(files_ / "cache").c_str(), 1);
  child_ = ::fork();
  if (child_ < 0) throw std::runtime_error("cannot fork");
  if (child_ == 0) {
    ::setpgid(0, 0);
    ::signal(SIGINT, SIG_DFL);  // ignored where the tests run in the background
    redirect(STDIN_FILENO, "/dev/null", O_RDONLY);
    redirect(STDERR_FILENO, err.c_str(), O_WRONLY | O_CREAT | O_TRUNC);
    set_output(output, out.c_str());
    if (io_uring_refusal && !refuse_io_uring(*io_uring_refusal)) ::_exit(126);
    ::execvp(argv.front(), argv.data());
    ::_exit(127);
  }
  ::setpgid(child_, child_);
}

Program::~Program() {
  if (status_) return;
  ::kill(-child_, SIGKILL);
  ::waitpid(child_, nullptr, 0);
}

std::string Program::output() const { return read_file(files_.path() / "out"); }

std::string Program::errors() const { return read_file(files_.path() / "err"); }

void Program::send(int signal) const { ::kill(child_, signal); }

bool Program::running() { return !reap(false); }

bool Program::reap(bool block) {
  int status = 0;
  if (!status_ && ::waitpid(child_, &status, block ? 0 : WNOHANG) == child_) status_ = status;
  return status_.has_value();
}

Outcome Program::wait() {
  const auto deadline = std::chrono::steady_clock::now() + longest_run;
  while (!reap(false)) {
    if (std::chrono::steady_clock::now() > deadline) {
      ::kill(-child_, SIGKILL);
      reap(true);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  Outcome outcome;
  if (WIFEXITED(*status_)) outcome.exit_code = WEXITSTATUS(*status_);
  if (WIFSIGNALED(*status_)) outcome.signal = WTERMSIG(*status_);
  outcome.out = output();
  outcome.err = read_file(files_.path() / "err");
  return outcome;
}

Outcome run(const std::vector<std::string>& arguments, Output output) {
  return Program(arguments, output).wait();
}

void check_complaint(const Outcome& outcome, int exit_code, const std::string& message,
                     const std::string& hint) {
  INFO("standard error:\n" << outcome.err);
  CHECK(outcome.signal == 0);
  CHECK(outcome.exit_code == exit_code);
  const std::vector<std::string> lines = lines_of(outcome.err);
  const auto starting = [&](const char* start) {
    return std::count_if(lines.begin(), lines.end(),
                         [&](const std::string& line) { return line.rfind(start, 0) == 0; });
  };
  CHECK(starting("spillway: ") == 1);
  CHECK(starting("  hint: ") == 1);
  REQUIRE(lines.size() >= 2);
  CHECK_THAT(lines[lines.size() - 2], Catch::StartsWith("spillway: ") && Catch::Contains(message));
  CHECK_THAT(lines.back(), Catch::StartsWith("  hint: ") && Catch::Contains(hint));
}

void check_refusal(const Outcome& outcome, int exit_code, const std::string& message,
                   const std::string& hint) {
  check_complaint(outcome, exit_code, message, hint);
  INFO("standard error:\n" << outcome.err);
  CHECK(outcome.out.empty());
  CHECK(lines_of(outcome.err).size() == 2);
}

std::vector<std::string> settings_in_hint(const Outcome& outcome) {
  const std::string hint = lines_of(outcome.err).back(), start = "  hint: ";
  const std::size_t end = hint.find(" would make it fit");
  REQUIRE(hint.rfind(start, 0) == 0);
  REQUIRE(end != std::string::npos);
  std::istringstream words(hint.substr(start.size(), end - start.size()));
  std::vector<std::string> settings;
  for (std::string word; words >> word;) settings.push_back(word);
  return settings;
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

std::string read_file(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

std::vector<std::string> operator+(std::vector<std::string> left,
                                   const std::vector<std::string>& right) {
  left.insert(left.end(), right.begin(), right.end());
  return left;
}

std::vector<std::string> tiny_problem() {
  return {"--model", "gpt-tiny", "--batch", "2", "--sequence", "16"};
}

std::vector<std::string> tiny_training(const TemporaryFolder& folder, const std::string& data) {
  std::string text;
  while (text.size() < 4000) text += "It spills over, and still it runs. ";
  return std::vector<std::string>{"train"} + tiny_problem() +
         std::vector<std::string>{
             "--data",        data.empty() ? folder.write("text.txt", text) : data,
             "--run",         folder / "run",
             "--steps",       "2",
             "--policy",      "zero-infinity",
             "--gpu-memory",  "32MB",
             "--host-memory", "64MB"};
}

std::string exported_model(const TemporaryFolder& folder, const std::string& name,
                           const std::string& seed, const std::string& model) {
  const std::string of = folder / ("of-" + name);
  REQUIRE(run(tiny_training(folder) +
              std::vector<std::string>{"--model", model, "--run", of, "--seed", seed, "--quiet"})
              .exit_code == 0);
  REQUIRE(run({"export", of, "--out", folder / name}).exit_code == 0);
  return folder / name;
}

std::map<std::int64_t, double> recorded_losses(const std::filesystem::path& run) {
  std::map<std::int64_t, double> losses;
  std::ifstream in(run / "metrics.jsonl");
  for (std::string line; std::getline(in, line);) {
    const nlohmann::json event = nlohmann::json::parse(line);
    if (event["event"] == "step") REQUIRE(losses.emplace(event["step"], event["loss"]).second);
  }
  return losses;
}

}  // namespace spillway::test
