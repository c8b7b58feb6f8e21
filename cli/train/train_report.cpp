#include "cli/train/train_report.hpp"

#include <fmt/format.h>

#include "cli/text/output.hpp"
#include "experiments/watch/training_line.hpp"

namespace spillway::cli {

void Events::write(const nlohmann::ordered_json& event) {
  const std::string line = records_.write(event);
  if (!to_output_) return;
  fmt::print("{}\n", line);
  flush_output();
}

void StepLine::show(const RunHistory& history) {
  if (history.steps().empty()) return;
  const std::int64_t done = history.steps().back().step + 1;
  progress_.show(training_line(history, progress_.width()),
                 done == 1 || done == history.start().steps);
}

}  // namespace spillway::cli
