#include "experiments/sweep/phases_plot.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "experiments/plots/text_size.hpp"

namespace spillway {

namespace {

constexpr const char* no_result = "✕";
constexpr double plot_height = 360;

double total_of(const PhaseBar& bar) {
  return bar.seconds ? std::accumulate(bar.seconds->begin(), bar.seconds->end(), 0.0) : 0;
}

// Three digits, never an exponent.
std::string total_text(const PhaseBar& bar, double divisor) {
  if (!bar.seconds) return no_result;
  const double total = total_of(bar) / divisor;
  return (total >= 1000 ? fmt::format("{:.0f}", total) : fmt::format("{:.3g}", total)) +
         (bar.extrapolated ? "*" : "");
}

struct Group {
  std::string text;
  double first = 0, last = 0;  // places of its bars
};

// Bars at 1, 2, 3 ..., with a place left empty between groups.
std::vector<Group> groups_of(const std::vector<PhaseBar>& bars, std::vector<double>& places) {
  std::vector<Group> groups;
  for (const PhaseBar& bar : bars) {
    const double next = places.empty() ? 1 : places.back() + 1;
    if (groups.empty() || groups.back().text != bar.group) {
      const double first = groups.empty() ? next : next + 1;
      groups.push_back({bar.group, first, first});
      places.push_back(first);
    } else {
      groups.back().last = next;
      places.push_back(next);
    }
  }
  return groups;
}

// The name of each group above its bars, and a line to the next.
void add_groups(Picture& picture, PictureParts& parts, const std::vector<Group>& groups,
                double slot) {
  for (std::size_t g = 0; g < groups.size(); ++g) {
    const auto& [text, first, last] = groups[g];
    if (text.empty()) continue;
    const auto lines = wrapped(text, (last - first + 1.9) * slot - 8, tick_font);
    parts.room_above =
        std::max(parts.room_above, line_height(tick_font) * static_cast<double>(lines.size()));
    for (std::string& label :
         labels_above(lines, (first + last) / 2, plot_height, tick_font, "center"))
      picture.commands.push_back(std::move(label));
    if (g + 1 < groups.size()) {
      picture.commands.push_back(fmt::format(
          "set arrow from first {0:g}, graph 0 to first {0:g}, graph 1 nohead linewidth 0.8 "
          "dashtype 3 linecolor rgb grey",
          last + 1));
    }
  }
}

}  // namespace

void draw_phases(Picture& picture, PictureParts parts, const std::vector<PhaseBar>& bars) {
  double largest = 0;
  for (const PhaseBar& bar : bars) largest = std::max(largest, total_of(bar));
  const AxisScale scale = readable_scale("s", largest);
  std::vector<double> places;
  const std::vector<Group> groups = groups_of(bars, places);
  const AxisRange x{0.2, places.back() + 0.8, false};
  // Not more than there will be: labels beside the y axis take the rest.
  const double slot = (canvas_width - 200) / (x.high - x.low);

  std::vector<Tick> names;
  std::vector<std::string> totals;
  double widest = 0;
  for (std::size_t i = 0; i < bars.size(); ++i) {
    names.push_back({places[i], x.place(places[i]), bars[i].name});
    totals.push_back(total_text(bars[i], scale.divisor));
    widest = std::max(widest, text_width(totals.back(), small_font));
    picture.data += fmt::format("{:g}", places[i]);
    for (const double seconds : bars[i].seconds.value_or(std::array<double, 3>{}))
      picture.data += fmt::format(" {:.9g}", seconds / scale.divisor);
    picture.data += "\n";
  }
  // Totals stand above their bars, upright where bars are narrow.
  const bool upright = widest + 4 > slot;
  const double room = (upright ? widest : line_height(small_font)) + 12;
  const double high = largest > 0 ? largest / scale.divisor : 1;
  const AxisRange y{0, high * plot_height / (plot_height - room), false};
  for (const auto* range : {&x, &y}) {
    for (std::string& command : range->commands(range == &x ? "x" : "y"))
      picture.commands.push_back(std::move(command));
  }
  for (std::size_t i = 0; i < bars.size(); ++i) {
    picture.commands.push_back(fmt::format(
        "set label {} at first {:g}, first {:.9g} {} font ',{:g}' front", gnuplot_text(totals[i]),
        places[i], total_of(bars[i]) / scale.divisor,
        upright ? "left rotate by 90 offset 0, 0.4" : "center offset 0, 0.6", small_font));
  }
  add_groups(picture, parts, groups, slot);
  parts.plot_height = plot_height;
  if (parts.y_label.empty()) parts.y_label = "step time (" + scale.unit + ")";
  parts.legend = {{"",
                   {{"forward", "#56B4E9", 0, 0, true},
                    {"backward", "#0072B2", 0, 0, true},
                    {"optimizer", "#F0E442", 0, 0, true}}}};
  PictureLayout(std::move(parts), round_ticks(y), names, true).add_to(picture);
}

}  // namespace spillway
