// What `train` says while it runs: events for programs, one line for people.
#pragma once

#include <array>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/directory.hpp"
#include "cli/text/progress.hpp"
#include "exec/run/executor.hpp"
#include "policies/schedule/schedule.hpp"

namespace spillway::cli {

// Writes events to metrics.jsonl of the run and, if asked, to standard output: one JSON object a
// line. Throws MachineError when one cannot be written.
class Events {
 public:
  // `first_step`: events of it and of later steps that are in the file already, from before a
  // crash, are dropped; what is before them stays.
  // `durable`: what is written has reached the drive when write() returns, so that no step is
  // committed whose event a power cut could lose.
  // Throws InputError when something else lies under that name.
  Events(const Directory& folder, const std::string& name, bool to_output,
         std::int64_t first_step = 0, bool durable = false);
  void write(const nlohmann::ordered_json& event);

 private:
  std::filesystem::path path_;
  FileDescriptor file_;
  bool to_output_, durable_;
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
