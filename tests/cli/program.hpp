// Runs the real program, as a user would: arguments, standard output and error, exit code, files
// left behind.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

namespace spillway::test {

// An empty folder of its own, removed with all that is in it.
class TemporaryFolder {
 public:
  TemporaryFolder();
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }
  std::string operator/(const std::string& name) const { return (path_ / name).string(); }
  // Writes a file in it and returns its path.
  std::string write(const std::string& name, const std::string& text) const;
  // Everything below it, relative, sorted.
  std::vector<std::string> listing() const;

 private:
  std::filesystem::path path_;
};

// A small file system mounted for as long as this lives. Needs the right to mount: check mounted().
class SmallDisk {
 public:
  SmallDisk(const std::filesystem::path& folder, const std::string& size, bool read_only = false);
  ~SmallDisk();
  SmallDisk(const SmallDisk&) = delete;
  SmallDisk& operator=(const SmallDisk&) = delete;

  bool mounted() const { return why_not_.empty(); }
  const std::string& why_not() const { return why_not_; }

 private:
  std::filesystem::path folder_;
  std::string why_not_;
};

// While it lives, programs keep what they measure for next time below `path`; else each of them has
// an empty place of its own.
class KeptMeasurements {
 public:
  explicit KeptMeasurements(const std::string& path);
  ~KeptMeasurements();
  KeptMeasurements(const KeptMeasurements&) = delete;
  KeptMeasurements& operator=(const KeptMeasurements&) = delete;
};

// While it lives, programs are refused io_uring with this errno, as a container's seccomp profile
// does. Where the kernel takes no such filter, they end at once with exit code 126.
class RefusedIoUring {
 public:
  explicit RefusedIoUring(unsigned error_number);
  ~RefusedIoUring();
  RefusedIoUring(const RefusedIoUring&) = delete;
  RefusedIoUring& operator=(const RefusedIoUring&) = delete;
};

// While it lives, programs are started by another one, which is found as a shell would: mpirun,
// with its options.
class StartedBy {
 public:
  explicit StartedBy(const std::vector<std::string>& words);
  ~StartedBy();
  StartedBy(const StartedBy&) = delete;
  StartedBy& operator=(const StartedBy&) = delete;
};

// What standard output of the program is.
enum class Output { file, full_device, pipe_without_reader, closed };

struct Outcome {
  int exit_code = -1;  // -1: it was ended by a signal
  int signal = 0;      // that signal; SIGKILL after a time-out
  std::string out, err;

  // Standard output as one JSON value and nothing else; throws otherwise.
  nlohmann::json json() const { return nlohmann::json::parse(out); }
  std::vector<nlohmann::json> json_lines() const;
};

// One running program. Killed, with all it started, when this goes.
class Program {
 public:
  explicit Program(const std::vector<std::string>& arguments, Output output = Output::file);
  ~Program();
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  // Standard output so far.
  std::string output() const;
  std::string errors() const;  // standard error so far
  void send(int signal) const;
  pid_t process() const { return child_; }
  bool running();
  // Waits for its end; kills it after five minutes.
  Outcome wait();

 private:
  bool reap(bool block);

  TemporaryFolder files_;
  pid_t child_ = -1;
  std::optional<int> status_;
};

// Runs to the end.
Outcome run(const std::vector<std::string>& arguments, Output output = Output::file);

// Fails the running test unless the program printed exactly one message and one hint, holding these
// texts.
void check_complaint(const Outcome& outcome, int exit_code, const std::string& message,
                     const std::string& hint);
// The same, and nothing else at all: no output, no other line on standard error.
void check_refusal(const Outcome& outcome, int exit_code, const std::string& message,
                   const std::string& hint);

// The options of `  hint: --gpu-memory 29351936B ... would make it fit; or ...`: the first remedy.
std::vector<std::string> settings_in_hint(const Outcome& outcome);

std::vector<std::string> lines_of(const std::string& text);
std::string read_file(const std::filesystem::path& path);
std::vector<std::string> operator+(std::vector<std::string> left,
                                   const std::vector<std::string>& right);

// The losses in metrics.jsonl of a run, by step; fails the running test where a step is there
// twice.
std::map<std::int64_t, double> recorded_losses(const std::filesystem::path& run);

// Arguments of the smallest useful runs.
std::vector<std::string> tiny_problem();  // --model gpt-tiny and a small workload
// Trains on FOLDER/text.txt, which it writes, or on `data`, into FOLDER/run.
std::vector<std::string> tiny_training(const TemporaryFolder& folder, const std::string& data = "");
// FOLDER/NAME, with a model of random weights that are drawn from `seed`.
std::string exported_model(const TemporaryFolder& folder, const std::string& name,
                           const std::string& seed, const std::string& model = "gpt-tiny");

}  // namespace spillway::test
