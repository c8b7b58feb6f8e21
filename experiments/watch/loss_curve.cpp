#include "experiments/watch/loss_curve.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <utility>
#include <vector>

#include "base/text.hpp"

namespace spillway {

namespace {

constexpr double picture_width = 960, picture_height = 520;
constexpr double left = 76, right = picture_width - 24;
constexpr std::size_t most_points = 800;  // of a line

// Colours are plain, so that viewers which know no media queries show the light picture.
constexpr const char* style = R"(<style>
  text { font-family: system-ui, sans-serif; font-size: 13px; fill: #1f2430; }
  .title { font-size: 16px; font-weight: 600; } .end { text-anchor: end; } .middle { text-anchor: middle; }
  .soft { fill: #6b7280; } .paper { fill: #ffffff; } circle { fill: #c2410c; }
  path { fill: none; stroke-linejoin: round; } .grid { stroke: #e3e6ec; stroke-width: 1; }
  .loss { stroke: #a9c1ea; stroke-width: 1.2; } .average { stroke: #1d4fb8; stroke-width: 2; }
  .evaluation { stroke: #c2410c; stroke-width: 1.6; } .rate { stroke: #0f766e; stroke-width: 1.6; }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6e9ef; } .soft { fill: #9aa3b2; } .paper { fill: #14171d; } circle { fill: #fb923c; }
    .grid { stroke: #2c323d; } .loss { stroke: #3c5687; } .average { stroke: #8ab4ff; }
    .evaluation { stroke: #fb923c; } .rate { stroke: #2dd4bf; }
  }
</style>
)";

struct Range {
  double low = std::numeric_limits<double>::infinity(), high = -low;

  bool empty() const { return low > high; }
  void take(double value) {
    low = std::min(low, value);
    high = std::max(high, value);
  }
  // Some room above and below; never of no height.
  Range with_room() const {
    const double room = high > low ? 0.04 * (high - low) : std::max(std::abs(high) * 0.05, 1e-6);
    return {low - room, high + room};
  }
};

// A part of the picture with a scale each way.
struct Panel {
  double top = 0, bottom = 0;
  double last_step = 1;
  Range values;

  double x(double step) const { return left + (right - left) * step / last_step; }
  double y(double value) const {
    return bottom - (bottom - top) * (value - values.low) / (values.high - values.low);
  }
};

// 1, 2 or 5 times a power of ten, so that about `wanted` of them fill the range.
double tick_distance(double range, double wanted) {
  const double raw = range / wanted;
  const double power = std::pow(10.0, std::floor(std::log10(raw)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (factor * power >= raw * 0.999) return factor * power;
  }
  return 10 * power;
}

std::string in_xml(const std::string& text) {
  std::string out;
  for (const char c : printable(text)) {
    if (c == '<') {
      out += "&lt;";
    } else if (c == '&') {
      out += "&amp;";
    } else {
      out += c;
    }
  }
  return out;
}

std::string text_at(double x, double y, const std::string& classes, const std::string& text) {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" class=\"{}\">{}</text>\n", x, y, classes,
                     in_xml(text));
}

std::string line_at(double x1, double y1, double x2, double y2) {
  return fmt::format("<path class=\"grid\" d=\"M{:.1f} {:.1f}L{:.1f} {:.1f}\"/>\n", x1, y1, x2, y2);
}

// Numbers of one scale, with as many digits as their distance asks for.
std::string scale_text(double value, double distance) {
  if (std::abs(value) < distance * 1e-6) value = 0;
  if (distance < 1e-3 || distance >= 1e6) return fmt::format("{:.3g}", value);
  const int digits = std::max(0, static_cast<int>(std::ceil(-std::log10(distance) - 1e-9)));
  return fmt::format("{:.{}f}", value, digits);
}

std::string value_scale(const Panel& panel, double wanted) {
  std::string text;
  const double distance = tick_distance(panel.values.high - panel.values.low, wanted);
  const double first = std::ceil(panel.values.low / distance);
  // Counted, since numbers of this size may have no neighbours this near.
  for (int n = 0; n < 50 && (first + n) * distance <= panel.values.high; ++n) {
    const double y = panel.y((first + n) * distance);
    text += line_at(left, y, right, y);
    text += text_at(left - 8, y + 4, "soft end", scale_text((first + n) * distance, distance));
  }
  return text;
}

std::string step_scale(const Panel& panel, bool with_text) {
  std::string text;
  const double distance = std::max(1.0, tick_distance(panel.last_step, 8));
  for (double step = 0; step <= panel.last_step; step += distance) {
    text += line_at(panel.x(step), panel.top, panel.x(step), panel.bottom);
    if (with_text)
      text += text_at(panel.x(step), panel.bottom + 20, "soft middle", fmt::format("{:.0f}", step));
  }
  return text;
}

using Points = std::vector<std::pair<double, double>>;  // step, value

// Of several points that fall on one place of the picture: the lowest and highest, or the last.
std::string path_of(const Panel& panel, const Points& points, const char* kind, bool ranges) {
  std::string d;
  const std::size_t bucket = (points.size() + most_points - 1) / most_points;
  const auto add = [&](const std::pair<double, double>& point) {
    d += fmt::format("{}{:.1f} {:.1f}", d.empty() ? 'M' : 'L', panel.x(point.first),
                     panel.y(point.second));
  };
  for (std::size_t i = 0; i < points.size(); i += bucket) {
    const auto begin = points.begin() + static_cast<std::ptrdiff_t>(i);
    const auto end =
        points.begin() + static_cast<std::ptrdiff_t>(std::min(points.size(), i + bucket));
    if (bucket == 1 || !ranges) {
      add(*(end - 1));
      continue;
    }
    const auto by_value = [](const auto& a, const auto& b) { return a.second < b.second; };
    auto [low, high] = std::minmax_element(begin, end, by_value);
    if (high < low) std::swap(low, high);
    add(*low);
    add(*high);
  }
  return d.empty() ? "" : fmt::format("<path class=\"{}\" d=\"{}\"/>\n", kind, d);
}

std::string legend_entry(double x, const char* kind, const std::string& text) {
  return fmt::format("<path class=\"{}\" d=\"M{:.1f} 50L{:.1f} 50\"/>\n", kind, x, x + 22) +
         text_at(x + 28, 54, "", text);
}

struct Lines {
  Points loss, average, evaluation, rate;
  double last_step = 1;
};

Lines lines_of(const RunHistory& history) {
  Lines lines;
  for (const StepPoint& point : history.steps()) {
    const auto step = static_cast<double>(point.step);
    lines.loss.emplace_back(step, point.loss);
    lines.average.emplace_back(step, point.loss_average);
    if (point.learning_rate) lines.rate.emplace_back(step, *point.learning_rate);
    lines.last_step = std::max(lines.last_step, step);
  }
  for (const EvaluationPoint& point : history.evaluations()) {
    lines.evaluation.emplace_back(static_cast<double>(point.step), point.loss);
    lines.last_step = std::max(lines.last_step, static_cast<double>(point.step));
  }
  return lines;
}

std::string drawn_losses(const Lines& lines, double bottom) {
  Range values;
  for (const Points* points : {&lines.loss, &lines.evaluation}) {
    for (const auto& [step, value] : *points) values.take(value);
  }
  if (values.empty()) return text_at(left, 120, "soft", "no step has ended yet");
  const Panel panel{72, bottom, lines.last_step, values.with_room()};
  std::string text = value_scale(panel, 6) + step_scale(panel, true);
  text += path_of(panel, lines.loss, "loss", true);
  text += path_of(panel, lines.average, "average", false);
  text += path_of(panel, lines.evaluation, "evaluation", false);
  const std::size_t every = 1 + lines.evaluation.size() / 200;
  for (std::size_t i = 0; i < lines.evaluation.size(); i += every) {
    text += fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3\"/>\n",
                        panel.x(lines.evaluation[i].first), panel.y(lines.evaluation[i].second));
  }
  return text;
}

std::string drawn_rate(const Lines& lines, double top, double bottom) {
  Range values;
  values.take(0);
  for (const auto& [step, value] : lines.rate) values.take(value);
  const Panel panel{top, bottom, lines.last_step, values.with_room()};
  return value_scale(panel, 2) + step_scale(panel, false) +
         path_of(panel, lines.rate, "rate", false);
}

}  // namespace

std::string loss_curve_svg(const RunHistory& history, const std::string& title) {
  const Lines lines = lines_of(history);
  const bool has_rate = !lines.rate.empty();
  const double bottom = has_rate ? 370 : picture_height - 46;
  std::string text = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0:.0f} {1:.0f}\" width=\"{0:.0f}\" "
      "height=\"{1:.0f}\" role=\"img\">\n<!-- drawn by spillway -->\n",
      picture_width, picture_height);
  text += fmt::format("<title>{}</title>\n", in_xml(title)) + style;
  text += fmt::format("<rect class=\"paper\" width=\"{:.0f}\" height=\"{:.0f}\"/>\n", picture_width,
                      picture_height);
  text += text_at(left, 28, "title", title);
  text += legend_entry(left, "loss", "loss") + legend_entry(left + 90, "average", "its average");
  if (!lines.evaluation.empty()) text += legend_entry(left + 220, "evaluation", "evaluation loss");
  if (has_rate) text += legend_entry(left + 380, "rate", "learning rate");
  text += drawn_losses(lines, bottom);
  if (has_rate) text += drawn_rate(lines, 408, picture_height - 46);
  text += text_at((left + right) / 2, picture_height - 14, "soft middle", "step");
  return text + "</svg>\n";
}

}  // namespace spillway
