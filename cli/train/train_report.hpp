// What `train` says while it runs: events for programs, one line for people.
#pragma once

#include <cstddef>
#include <nlohmann/json.hpp>

#include "cli/text/progress.hpp"
#include "experiments/watch/run_records.hpp"

namespace spillway::cli {

// Events go to the files of the run (experiments/watch/run_records.hpp) and, if asked, to standard
// output: one JSON object a line.
class Events {
 public:
  // As RunRecords.
  Events(const Directory& folder, bool to_output, std::int64_t first_step, bool durable)
      : records_(folder, first_step, durable), to_output_(to_output) {}

  // Throws MachineError when the event cannot be written.
  void write(const nlohmann::ordered_json& event);
  const RunHistory& history() { return records_.history(); }
  const std::vector<std::string>& warnings() const { return records_.warnings(); }

 private:
  RunRecords records_;
  bool to_output_;
};

// Where the training is (experiments/watch/training_line.hpp), after each step.
class StepLine {
 public:
  explicit StepLine(bool enabled) : progress_(enabled) {}

  // The last step of `history` has just ended.
  void show(const RunHistory& history);
  void finish() { progress_.finish(); }

 private:
  Progress progress_;
};

}  // namespace spillway::cli
