#include "experiments/watch/closing_table.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "base/units.hpp"
#include "experiments/watch/training_line.hpp"

namespace spillway {

namespace {

std::string row(const std::string& name, const std::string& text) {
  return text.empty() ? "" : fmt::format("  {:<11} {}\n", name, text);
}

// The very first step of a start fills the pipeline.
std::optional<double> median_step_seconds(const RunHistory& history) {
  std::vector<double> seconds;
  for (const StepPoint& point : history.steps()) {
    if (point.step > history.start().first_step) seconds.push_back(point.seconds);
  }
  if (seconds.empty()) return {};
  const auto middle = seconds.begin() + static_cast<std::ptrdiff_t>(seconds.size() / 2);
  std::nth_element(seconds.begin(), middle, seconds.end());
  return *middle;
}

std::string evaluation_text(const std::vector<EvaluationPoint>& evaluations) {
  if (evaluations.empty()) return "";
  const auto best = std::min_element(
      evaluations.begin(), evaluations.end(),
      [](const EvaluationPoint& a, const EvaluationPoint& b) { return a.loss < b.loss; });
  return fmt::format(
      "{:.4f} first, {:.4f} last, {:.4f} best (after step {}), perplexity {:.2f} last",
      evaluations.front().loss, evaluations.back().loss, best->loss, best->step,
      evaluations.back().perplexity);
}

std::string loss_text(const std::vector<StepPoint>& steps) {
  const auto best =
      std::min_element(steps.begin(), steps.end(),
                       [](const StepPoint& a, const StepPoint& b) { return a.loss < b.loss; });
  return fmt::format("{:.4f} first, {:.4f} last, {:.4f} best (step {})", steps.front().loss,
                     steps.back().loss, best->loss, best->step + 1);
}

std::string step_time_text(const RunHistory& history) {
  const auto measured = median_step_seconds(history);
  const auto predicted = history.start().predicted_step_seconds;
  if (!measured) return "";
  std::string text = format_seconds(*measured) + " (median)";
  if (predicted && *predicted > 0) {
    const double error = *measured / *predicted - 1;
    text += fmt::format(", {:.0f} % {} than the predicted {}", 100 * std::abs(error),
                        error < 0 ? "less" : "more", format_seconds(*predicted));
  }
  return text;
}

std::string memory_text(const TrainingUse& use) {
  std::string text;
  for (const TrainingUse::Memory& memory : use.memory) {
    if (!(memory.planned_bytes > 0)) continue;
    text += fmt::format("{}{} {} of {} planned", text.empty() ? "" : ", ", memory.tier,
                        format_bytes(memory.used_bytes), format_bytes(memory.planned_bytes));
  }
  return text;
}

std::string drives_text(const TrainingUse& use) {
  std::string text;
  if (use.rated_bytes > 0 && use.bytes_written > 0)
    text = fmt::format("{:.3g} % of what they are rated to be written",
                       100 * use.bytes_written / use.rated_bytes);
  for (const DriveHealth& drive : use.after.drives) {
    std::string one = drive.device;
    const auto same = std::find_if(use.before.drives.begin(), use.before.drives.end(),
                                   [&](const DriveHealth& b) { return b.device == drive.device; });
    if (drive.bytes_written) one += ": " + format_bytes(*drive.bytes_written) + " in its life";
    if (drive.bytes_written && same != use.before.drives.end() && same->bytes_written)
      one += fmt::format(", {} since the start",
                         format_bytes(std::max(0.0, *drive.bytes_written - *same->bytes_written)));
    if (drive.life_used) one += fmt::format(", {:.0f} % of its life used", 100 * *drive.life_used);
    text += (text.empty() ? "" : "; ") + one;
  }
  return text;
}

}  // namespace

std::string closing_table(const RunHistory& history, const TrainingUse& use) {
  const std::vector<StepPoint>& steps = history.steps();
  const RunHistory::Start& start = history.start();
  if (steps.empty()) return "";
  double seconds = 0, evaluating = 0, read = 0, written = 0;
  for (const StepPoint& point : steps) {
    seconds += point.seconds;
    read += point.ssd_bytes_read;
    written += point.ssd_bytes_written;
  }
  for (const EvaluationPoint& point : history.evaluations()) evaluating += point.seconds;
  const double tokens = static_cast<double>(steps.size()) * start.tokens_per_step;
  std::string speed;
  if (seconds > 0) {
    speed = brief_number(tokens / seconds) + " tokens/s";
    if (start.model_flops > 0 && start.device_flops > 0)
      speed += fmt::format(", MFU {:.1f} %", 100 * static_cast<double>(steps.size()) *
                                                 start.model_flops / seconds / start.device_flops);
  }
  std::string table;
  table += row("steps", fmt::format("{} of {}, {} tokens", history.steps_done(), start.steps,
                                    brief_number(tokens)));
  table += row("loss", loss_text(steps));
  table += row("evaluation", evaluation_text(history.evaluations()));
  table += row("time", evaluating > 0 ? fmt::format("{} training, {} evaluating",
                                                    format_clock(seconds), format_clock(evaluating))
                                      : format_clock(seconds) + " training");
  table += row("speed", speed);
  table += row("step", step_time_text(history));
  table += row("memory", memory_text(use));
  std::string ssd;
  if (read + written > 0)
    ssd = fmt::format("{} read, {} written by steps", format_bytes(read), format_bytes(written));
  // The history has the steps of runs before this one, too.
  if (use.bytes_written > 0)
    ssd += fmt::format("{}{} written in all by this run, with its first state and commits",
                       ssd.empty() ? "" : "; ", format_bytes(use.bytes_written));
  if (!ssd.empty()) table += row("ssd", ssd);
  return table + row("drives", drives_text(use));
}

}  // namespace spillway
