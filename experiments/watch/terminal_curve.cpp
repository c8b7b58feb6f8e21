#include "experiments/watch/terminal_curve.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace spillway {

namespace {

constexpr std::size_t scale_width = 9;  // "  1.2345 "
constexpr std::size_t least_width = scale_width + 16, least_rows = 3;

}  // namespace

std::vector<std::string> loss_curve(const RunHistory& history, std::size_t width,
                                    std::size_t rows) {
  const std::vector<StepPoint>& steps = history.steps();
  if (steps.size() < 2 || width < least_width || rows < least_rows) return {};
  const std::size_t columns = width - scale_width;
  double low = steps.front().loss_average, high = low;
  for (const StepPoint& point : steps) {
    low = std::min(low, point.loss_average);
    high = std::max(high, point.loss_average);
  }
  for (const EvaluationPoint& point : history.evaluations()) {
    low = std::min(low, point.loss);
    high = std::max(high, point.loss);
  }
  if (!(high > low)) high = low + std::max(1e-6, 1e-6 * std::abs(low));
  const std::int64_t first = steps.front().step;
  std::int64_t last = steps.back().step;
  if (!history.evaluations().empty()) last = std::max(last, history.evaluations().back().step);
  std::vector<std::string> lines(rows, std::string(columns, ' '));
  const auto mark = [&](std::int64_t step, double value, char sign) {
    const double along = static_cast<double>(std::max<std::int64_t>(0, step - first)) /
                         static_cast<double>(last - first);
    // By halves, for the difference of two losses may be more than a number can be.
    const double share = (high / 2 - value / 2) / (high / 2 - low / 2);
    const double down = std::isfinite(share) ? std::clamp(share, 0.0, 1.0) : 0;
    const auto column =
        static_cast<std::size_t>(std::lround(along * static_cast<double>(columns - 1)));
    const auto row = static_cast<std::size_t>(std::lround(down * static_cast<double>(rows - 1)));
    lines[row][column] = sign;
  };
  for (const StepPoint& point : steps) mark(point.step, point.loss_average, '*');
  for (const EvaluationPoint& point : history.evaluations()) mark(point.step, point.loss, 'o');
  for (std::size_t row = 0; row < rows; ++row) {
    const double down = static_cast<double>(row) / static_cast<double>(rows - 1);
    const double value = high * (1 - down) + low * down;
    lines[row] = fmt::format("{:>8.4f} ", value).substr(0, scale_width) + lines[row];
    lines[row].erase(lines[row].find_last_not_of(' ') + 1);
  }
  const std::string end = fmt::format("{}", last);
  lines.push_back(fmt::format("{:{}}{:<{}}{}", "", scale_width, first, columns - end.size(), end));
  return lines;
}

}  // namespace spillway
