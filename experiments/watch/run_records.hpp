// What a run writes about itself while it trains: metrics.jsonl, of which every line is an event,
// and what is made of these lines: metrics.csv, an event file of TensorBoard's, loss.svg, and
// samples.txt.
//
// metrics.jsonl is what counts: once write() returns, an event is in it, and a training without it
// does not go on. The other files follow from it. They are made anew, from the lines that stay,
// where a training is resumed; a failure to write one is a warning.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/directory.hpp"
#include "experiments/watch/run_history.hpp"

namespace spillway {

class RunRecords {
 public:
  // `first_step`: events of it and of later steps that are there already, from before a crash, are
  // dropped; what is before them stays.
  // `durable`: what is written has reached the drive when write() returns, so that no step is
  // committed whose event a power cut could lose.
  // Throws InputError when something else lies under the name of metrics.jsonl.
  explicit RunRecords(const Directory& folder, std::int64_t first_step = 0, bool durable = false);
  RunRecords(const RunRecords&) = delete;
  RunRecords& operator=(const RunRecords&) = delete;
  ~RunRecords();

  // Returns the line of the event. Throws MachineError when metrics.jsonl cannot be written.
  std::string write(const nlohmann::ordered_json& event);

  // Of the whole run, as far as it is in the files.
  const RunHistory& history();
  // Files beside metrics.jsonl that could not be written, each once.
  const std::vector<std::string>& warnings() const { return warnings_; }

 private:
  void open_derived();
  void open_samples(const std::string& text);
  void write_derived(const nlohmann::json& event);
  void draw();
  template <class Action>
  void attempt(const std::string& name, const Action& action);

  Directory folder_;
  FileDescriptor metrics_, table_, tensorboard_, samples_;
  bool durable_, derived_open_ = false, curve_failed_ = false, curve_is_old_ = false;
  std::string tensorboard_name_;
  std::string before_;  // lines that stay, until the other files are made of them
  RunHistory history_;
  std::chrono::steady_clock::time_point drawn_{};
  std::vector<std::string> warnings_;
};

// The n-th start of a run, from 1 on, writes the n-th event file of TensorBoard's, with all that it
// has of the run, and empties those before.
std::string tensorboard_file(int start);

}  // namespace spillway
