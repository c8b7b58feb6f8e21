// What `train` says while it runs: events for programs, one line for people.
#pragma once

#include <array>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "cli/progress.hpp"
#include "exec/executor.hpp"
#include "exec/file_descriptor.hpp"
#include "policies/schedule.hpp"

namespace spillway::cli {

// Writes events to metrics.jsonl of the run and, if asked, to standard output: one JSON object a
// line. Throws MachineError when one cannot be written.
class Events {
 public:
  // `first_step`: events of it and of later steps that are in the file already, from before a
  // crash, are dropped; what is before them stays.
  // `durable`: what is written has reached the drive when write() returns, so that no step is
  // committed whose event a power cut could lose.
  Events(const std::filesystem::path& file, bool to_output, std::int64_t first_step = 0,
         bool durable = false);
  void write(const nlohmann::ordered_json& event);

 private:
  std::filesystem::path path_;
  std::ofstream file_;
  FileDescriptor descriptor_;  // of the same file, to sync it; none where that is not asked for
  bool to_output_;
};

// Step, loss, speed, time left, and what each link carries.
class StepLine {
 public:
  StepLine(std::int64_t steps, const Schedule& schedule, bool enabled);
  void show(const StepResult& step);
  void finish() { progress_.finish(); }

 private:
  std::int64_t steps_;
  double tokens_;
  double seconds_ = 0;
  std::array<double, lane_count> bytes_{};
  Progress progress_;
};

}  // namespace spillway::cli
