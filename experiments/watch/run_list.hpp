// What can be seen of runs from outside, without disturbing them: whether they are at work, and
// what their metrics tell.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/directory.hpp"
#include "experiments/watch/run_history.hpp"

namespace spillway {

enum class RunState : std::uint8_t {
  running,
  stopped,    // asked to, before its last step
  done,       // all of its steps
  crashed,    // it ended without saying so: killed, or by an error
  elsewhere,  // at work on another computer, or crashed there
  unknown     // it cannot be seen, for instance because it is another user's
};
std::string to_string(RunState state);

struct SeenRun {
  std::string name;  // of its folder
  RunState state = RunState::unknown;
  RunHistory history;
  std::optional<double> age_seconds;  // since its metrics have changed; nothing: it has none yet
};

// Reads what is new in a run's metrics.jsonl. Lines that are not whole yet wait; what a resumed run
// has replaced is read from its beginning.
class MetricsReader {
 public:
  explicit MetricsReader(Directory folder) : folder_(std::move(folder)) {}

  // Whole new lines, without their breaks. Throws as Directory::open() does; no file: no lines.
  std::vector<std::string> read();
  // How often the file was replaced or cut since the beginning.
  int replaced() const { return replaced_; }

 private:
  Directory folder_;
  FileDescriptor file_;
  std::uint64_t read_ = 0;
  std::string half_line_;
  int replaced_ = 0;
};

// The state of the run in `folder`, of which `history` tells.
RunState state_of(const Directory& folder, const RunHistory& history);

// Of one run. Of metrics that are longer than `most_bytes`, the beginning and the end are read.
// Throws InputError where there is no run in `folder`.
SeenRun look_at_run(const std::filesystem::path& folder,
                    std::uint64_t most_bytes = std::uint64_t{32} << 20);

// Of all runs in the folders of `folder`, those that have changed last first. Throws InputError
// where there is no such folder.
std::vector<SeenRun> look_at_runs(const std::filesystem::path& folder);

nlohmann::ordered_json to_json(const SeenRun& run);

}  // namespace spillway
