#include "experiments/questions/knee_plot.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "experiments/plots/picture_layout.hpp"
#include "experiments/plots/plot_axis.hpp"

namespace spillway {

namespace {

constexpr std::array<const char*, 7> line_colours = {"#0072B2", "#D55E00", "#009E73", "#CC79A7",
                                                     "#56B4E9", "#E69F00", "#000000"};
constexpr int knee_point = 64;  // a hollow square, as gnuplot numbers points

// Times what the machine has.
double times_now(const KneeCurve& curve, const KneePoint& point) {
  return point.value / curve.points[curve.now].value;
}

bool is_drawn(const KneeCurve& curve) {
  return std::count_if(curve.points.begin(), curve.points.end(),
                       [](const KneePoint& point) { return point.fits(); }) >= 2;
}

// "number of SSDs, now 12: stops paying at 6"
std::string legend_text(const KneeCurve& curve) {
  return fmt::format(
      "{}, now {}: {}", resource_label(curve.resource), curve.points[curve.now].text,
      curve.knee ? "stops paying at " + curve.points[*curve.knee].text : no_knee_text(curve));
}

std::string block_of(const KneeCurve& curve, double divisor) {
  std::string block;
  for (const KneePoint& point : curve.points) {
    if (point.fits())
      block += fmt::format("{:.9g} {:.9g} {}\n", times_now(curve, point),
                           point.tokens_per_second / divisor, point.is_extrapolated ? 1 : 0);
  }
  return block + "\n\n";
}

// A square around the knee.
std::string knee_mark(const KneeCurve& curve, double divisor, const std::string& colour) {
  const KneePoint& knee = curve.points[*curve.knee];
  return fmt::format(
      "set label '' at first {:.9g}, first {:.9g} front point pointtype {} pointsize 2.2 linewidth "
      "2 linecolor rgb '{}'",
      times_now(curve, knee), knee.tokens_per_second / divisor, knee_point, colour);
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
  Picture picture{name, "lines", {}, {}, "", ""};
  double least = 1, most = 1, fastest = 0;
  bool any_extrapolated = false;
  for (const KneeCurve& curve : knees.curves) {
    if (!is_drawn(curve)) continue;
    for (const KneePoint& point : curve.points) {
      if (!point.fits()) continue;
      least = std::min(least, times_now(curve, point));
      most = std::max(most, times_now(curve, point));
      fastest = std::max(fastest, point.tokens_per_second);
      any_extrapolated = any_extrapolated || point.is_extrapolated;
    }
  }
  const AxisScale scale = readable_scale("", fastest);
  LegendGroup legend;
  std::vector<std::string> colours;
  std::vector<std::string> marks;
  for (const KneeCurve& curve : knees.curves) {
    if (!is_drawn(curve)) continue;
    const std::string colour = line_colours[colours.size() % line_colours.size()];
    picture.data += block_of(curve, scale.divisor);
    legend.entries.push_back({legend_text(curve), colour, 1, 7});
    colours.push_back(colour);
    if (curve.knee) marks.push_back(knee_mark(curve, scale.divisor, colour));
  }
  PictureParts parts;
  parts.title = title;
  parts.settings = settings;
  parts.legend = {legend};
  parts.x_label = "times what the machine has";
  parts.y_label =
      scale.unit.empty() ? "throughput (tokens/s)" : "throughput (" + scale.unit + " tokens/s)";
  parts.note = fmt::format(
      "Squares: no more of it that was tried gains {:g} % from there.{}", 100 * knees.threshold,
      any_extrapolated ? " Hollow points rest on extrapolated bandwidths." : "");
  const AxisRange x{least / 1.1, most * 1.1, true};
  const AxisRange y{0, fastest / scale.divisor * 1.08, false};
  picture.commands = x.commands("x");
  for (std::string& command : y.commands("y")) picture.commands.push_back(std::move(command));
  std::vector<double> ticks;
  for (const double tick : {0.0625, 0.125, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0}) {
    if (tick >= x.low && tick <= x.high) ticks.push_back(tick);
  }
  for (std::string& mark : marks) picture.commands.push_back(std::move(mark));
  PictureLayout(std::move(parts), round_ticks(y), ticks_at(ticks, x), false).add_to(picture);
  const std::string count = std::to_string(colours.size());
  const auto same = [&](const char* value) {
    return fmt::format("[{}] = [{}]", count,
                       fmt::join(std::vector<std::string>(colours.size(), value), ", "));
  };
  picture.variables.emplace_back("series", count);
  picture.variables.emplace_back("colours", text_array(colours));
  picture.variables.emplace_back("dashes", same("1"));
  picture.variables.emplace_back("points", same("7"));
  return picture;
}

}  // namespace spillway
