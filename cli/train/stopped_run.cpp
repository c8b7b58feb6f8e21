#include "cli/train/stopped_run.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

namespace spillway::cli {

std::string shell_word(const std::string& text) {
  constexpr std::string_view harmless = "_-./,:=+@%";
  const bool plain = !text.empty() && std::all_of(text.begin(), text.end(), [&](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           harmless.find(c) != std::string_view::npos;
  });
  if (plain) return text;
  std::string quoted = "'";
  for (const char c : text) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return quoted + "'";
}

StoppedRun stopped_run(const TrainingResult& result, const Training& training, std::int64_t wanted,
                       const std::filesystem::path& run, const std::filesystem::path& weights) {
  StoppedRun stopped;
  stopped.steps = result.steps;
  stopped.wanted = wanted;
  stopped.run = run;
  stopped.weights = weights;
  if (training.commit_interval() > 0) {
    stopped.committed = result.steps;
    stopped.store = training.store_location().directories;
  } else if (const auto& previous = training.previous_store()) {
    stopped.committed = training.first_step();
    stopped.store = previous->directories;
  }
  return stopped;
}

std::string what_was_kept(const StoppedRun& stopped) {
  std::string text = fmt::format("stopped after {} of {} steps", stopped.steps, stopped.wanted);
  if (stopped.committed) {
    std::string places;
    for (const std::filesystem::path& directory : stopped.store)
      places += (places.empty() ? "" : ", ") + directory.string();
    return text +
           fmt::format(
               "; step {} is committed in {}\n  to go on: spillway train --resume --run {}\n",
               *stopped.committed, places, shell_word(stopped.run.string()));
  }
  text += ": with --durability off there is nothing to resume from\n  ";
  if (stopped.weights.empty()) return text + "and with --no-export no weights were written\n";
  return text + fmt::format("the weights so far are in {}\n", stopped.weights.string());
}

}  // namespace spillway::cli
