#include "experiments/questions/knee_plot.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "experiments/plots/plot_axis.hpp"

namespace spillway {

namespace {

bool is_size(const KneeCurve& curve) {
  return curve.resource == "host.memory" || curve.resource == "gpu.memory";
}
bool is_count(const KneeCurve& curve) { return curve.resource == "ssd.count"; }

double x_of(const KneeCurve& curve, double value) { return is_size(curve) ? value / 1e9 : value; }

std::string x_label(const KneeCurve& curve) {
  const std::string label = resource_label(curve.resource);
  if (is_count(curve)) return label;
  return label + (is_size(curve) ? " (GB)" : " (times what it is)");
}

bool is_drawn(const KneeCurve& curve) {
  return std::count_if(curve.points.begin(), curve.points.end(),
                       [](const KneePoint& point) { return point.fits(); }) >= 2;
}

std::string panel_title(const KneeCurve& curve, double threshold) {
  const std::string label = resource_label(curve.resource);
  if (!curve.knee) return fmt::format("{}: every step to {} pays", label, curve.points.back().text);
  return fmt::format("{}: from {} on, no step gains {:g} %", label, curve.points[*curve.knee].text,
                     100 * threshold);
}

// Ticks at values that are far enough apart to be read.
std::string ticks_of(const KneeCurve& curve) {
  const double low = x_of(curve, curve.points.front().value);
  const double high = x_of(curve, curve.points.back().value);
  const auto place = [&](double x) {
    return is_count(curve) ? (x - low) / (high - low) : std::log(x / low) / std::log(high / low);
  };
  constexpr double least_distance = 0.09;
  std::vector<double> ticks;
  for (const KneePoint& point : curve.points) {
    const double x = x_of(curve, point.value);
    if (ticks.empty() || place(x) - place(ticks.back()) >= least_distance) ticks.push_back(x);
  }
  return set_ticks("x", ticks);
}

std::string range_of(const KneeCurve& curve) {
  const double low = x_of(curve, curve.points.front().value);
  const double high = x_of(curve, curve.points.back().value);
  if (is_count(curve)) return fmt::format("set xrange [{:g}:{:g}]", low - 0.5, high + 0.5);
  return fmt::format("set xrange [{:g}:{:g}]", low * 0.93, high * 1.07);
}

std::string mark_of(const KneeCurve& curve) {
  if (!curve.knee) return " ";
  return fmt::format(
      "set arrow from first {0:g}, graph 0 to first {0:g}, graph 1 nohead dashtype (4, 4) "
      "linecolor rgb black",
      x_of(curve, curve.points[*curve.knee].value));
}

std::string block_of(const KneeCurve& curve) {
  std::string block;
  for (const KneePoint& point : curve.points) {
    if (point.fits())
      block += fmt::format("{:.9g} {:.9g}\n", x_of(curve, point.value), point.tokens_per_second);
  }
  return block + "\n\n";
}

}  // namespace

bool has_curves(const Knees& knees) {
  return std::any_of(knees.curves.begin(), knees.curves.end(), is_drawn);
}

std::string resource_label(const std::string& resource) {
  if (resource == "pcie") return "link between host and GPU";
  if (resource == "gpu") return "GPU compute rate";
  if (resource == "cpu") return "CPU optimizer rate";
  if (resource == "dram") return "DRAM bandwidth";
  return column_label(resource);
}

Picture knee_picture(const Knees& knees, const std::string& title, const std::string& settings,
                     const std::string& name) {
  Picture picture{name, "knee", {}, ""};
  std::vector<std::string> titles, labels, logarithmic, ticks, ranges, marks;
  std::string now;
  double most = 0;
  for (const KneeCurve& curve : knees.curves) {
    if (!is_drawn(curve)) continue;
    titles.push_back(unmarked(panel_title(curve, knees.threshold)));
    labels.push_back(unmarked(x_label(curve)));
    logarithmic.emplace_back(is_count(curve) ? "" : "x");
    ticks.push_back(ticks_of(curve));
    ranges.push_back(range_of(curve));
    marks.push_back(mark_of(curve));
    picture.data += block_of(curve);
    const KneePoint& point = curve.points[curve.now];
    now += fmt::format("{:.9g} {:.9g}\n\n\n", x_of(curve, point.value), point.tokens_per_second);
    most = std::max(most, curve.most_tokens_per_second);
  }
  picture.data += now;
  const std::size_t columns = titles.size() > 1 ? 2 : 1;
  const std::size_t rows = (titles.size() + columns - 1) / columns;
  auto& variables = picture.variables;
  variables.emplace_back("title_text", title_of(title, settings));
  variables.emplace_back("legend_at", "0.98");
  variables.emplace_back("height", std::to_string(110 + 290 * rows));
  variables.emplace_back("panels", std::to_string(titles.size()));
  variables.emplace_back("panel_rows", std::to_string(rows));
  variables.emplace_back("panel_columns", std::to_string(columns));
  variables.emplace_back("most", fmt::format("{:.9g}", most));
  variables.emplace_back("panel_titles", text_array(titles));
  variables.emplace_back("x_labels", text_array(labels));
  variables.emplace_back("logarithmic", text_array(logarithmic));
  variables.emplace_back("x_ticks", text_array(ticks));
  variables.emplace_back("x_ranges", text_array(ranges));
  variables.emplace_back("marks", text_array(marks));
  return picture;
}

}  // namespace spillway
