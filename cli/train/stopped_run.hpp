// What a training that was interrupted has kept, in words.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "exec/run/training.hpp"

namespace spillway::cli {

struct StoppedRun {
  std::int64_t steps = 0, wanted = 0;        // done, and asked for
  std::optional<std::int64_t> committed;     // the step to resume from
  std::vector<std::filesystem::path> store;  // directories of the committed state
  std::filesystem::path run;                 // folder
  std::filesystem::path weights;             // empty: none were written
};

// What is left where a training into the folder `run` ends before its last step.
StoppedRun stopped_run(const TrainingResult& result, const Training& training, std::int64_t wanted,
                       const std::filesystem::path& run, const std::filesystem::path& weights);

// Two lines: what is kept and where, and how to go on.
std::string what_was_kept(const StoppedRun& stopped);

// As a shell takes it: in quotes where it needs them.
std::string shell_word(const std::string& text);

}  // namespace spillway::cli
