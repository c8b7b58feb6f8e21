#include "experiments/watch/training_line.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "base/units.hpp"
#include "policies/machine/drive_sets.hpp"

namespace spillway {

std::string fitted_line(const std::vector<LineField>& fields, std::size_t width) {
  std::vector<std::size_t> by_rank(fields.size());
  for (std::size_t i = 0; i < fields.size(); ++i) by_rank[i] = i;
  std::stable_sort(by_rank.begin(), by_rank.end(),
                   [&](std::size_t a, std::size_t b) { return fields[a].rank < fields[b].rank; });
  std::vector<bool> taken(fields.size());
  std::size_t length = 0;
  for (const std::size_t i : by_rank) {
    if (fields[i].text.empty()) continue;
    const std::size_t longer = length + (length == 0 ? 0 : 2) + fields[i].text.size();
    if (longer > width) {
      if (length == 0) return fields[i].text.substr(0, width);
      break;  // a field of less importance does not stand in for one of more
    }
    taken[i] = true;
    length = longer;
  }
  std::string line;
  for (std::size_t i = 0; i < fields.size(); ++i) {
    if (taken[i]) line += (line.empty() ? "" : "  ") + fields[i].text;
  }
  return line;
}

std::string brief_number(double value) {
  const double size = std::abs(value);
  for (const auto& [unit, letter] :
       {std::pair(1e9, 'G'), std::pair(1e6, 'M'), std::pair(1e3, 'k')}) {
    // 999,950 is no 1000.0k
    if (size >= unit * 0.99995) {
      const double scaled = value / unit;
      return fmt::format("{:.{}f}{}", scaled,
                         std::abs(scaled) < 9.995   ? 2
                         : std::abs(scaled) < 99.95 ? 1
                                                    : 0,
                         letter);
    }
  }
  return fmt::format("{:.{}f}", value, size < 99.95 ? 1 : 0);
}

std::string format_clock(double seconds) {
  const auto whole = static_cast<long long>(std::clamp(seconds, 0.0, 1e15) + 0.5);
  if (whole >= 3600)
    return fmt::format("{}:{:02}:{:02}", whole / 3600, whole / 60 % 60, whole % 60);
  return fmt::format("{}:{:02}", whole / 60, whole % 60);
}

std::string training_line(const RunHistory& history, std::size_t width) {
  const RunHistory::Start& start = history.start();
  const StepPoint& step = history.steps().back();
  std::vector<LineField> fields;
  const auto add = [&](int rank, std::string text) { fields.push_back({std::move(text), rank}); };
  add(0, fmt::format("step {:>{}}/{}", step.step + 1, fmt::formatted_size("{}", start.steps),
                     start.steps));
  add(1, fmt::format("loss {:.4f}", step.loss));
  if (step.skipped) add(2, "skipped: gradient not finite");
  if (step.step > 0) add(5, fmt::format("average {:.4f}", step.loss_average));
  if (!history.evaluations().empty())
    add(6, fmt::format("evaluation {:.4f}", history.evaluations().back().loss));
  if (step.gradient_norm) add(8, fmt::format("norm {:.3g}", *step.gradient_norm));
  if (step.learning_rate) add(7, fmt::format("lr {:.2e}", *step.learning_rate));
  if (const auto speed = history.tokens_per_second())
    add(3, fmt::format("{} tokens/s", brief_number(*speed)));
  if (const auto mfu = history.mfu()) add(9, fmt::format("MFU {:.1f} %", 100 * *mfu));
  if (step.gpu_power_watts) add(12, fmt::format("{:.0f} W", *step.gpu_power_watts));
  if (step.gpu_clock_mhz) add(13, fmt::format("{:.0f} MHz", *step.gpu_clock_mhz));
  for (const char* tier : {"gpu", "host"}) {
    const auto bytes = start.memory_bytes.find(tier);
    if (bytes != start.memory_bytes.end() && bytes->second > 0)
      add(10, fmt::format("{} {}", tier, format_bytes(bytes->second)));
  }
  std::vector<std::pair<std::string, std::string>> links = {{"pcie.h2d", "h2d"},
                                                            {"pcie.d2h", "d2h"}};
  for (int set = 0; set < most_drive_sets; ++set) {
    links.emplace_back(drive_set_key(set, "read"), drive_set_name(set) + std::string(" r"));
    links.emplace_back(drive_set_key(set, "write"), "w");
  }
  for (const auto& [lane, name] : links) {
    const auto bytes = start.lane_bytes.find(lane);
    if (bytes == start.lane_bytes.end() || !(bytes->second > 0)) continue;
    add(11, fmt::format("{} {}", name,
                        format_bytes_per_second(bytes->second / history.average_step_seconds())));
  }
  add(4, fmt::format("ETA {}", format_clock(history.seconds_left())));
  return fitted_line(fields, width);
}

}  // namespace spillway
