#include "experiments/sweep/sweep_plots.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <set>

#include "experiments/plots/picture_layout.hpp"
#include "experiments/plots/plot_axis.hpp"
#include "experiments/sweep/phases_plot.hpp"
#include "experiments/sweep/sweep_series.hpp"
#include "experiments/sweep/winners_plot.hpp"

namespace spillway {

namespace {

using Row = SweepRow;
constexpr std::size_t most_series = 24, most_labels = 48;
constexpr std::size_t most_columns = 20;  // of a map, whose cells hold a number
constexpr const char* narrow_down =
    "narrow it down to some values of an axis, e.g. where = { batch = 8 }";

std::string cell(double value) {
  return std::isfinite(value) ? fmt::format("{:.9g}", value) : "NaN";
}

std::string numbers_array(const std::vector<int>& values) {
  return fmt::format("[{}] = [{}]", values.size(), fmt::join(values, ", "));
}

AxisRange range_of_x(const std::vector<double>& sorted, bool log) {
  const double left = sorted.front(), right = sorted.back();
  if (log) return {left / 1.12, right * 1.12, true};
  const double margin = (right - left) * 0.04 + (right == left ? 0.5 : 0);
  return {left - margin, right + margin, false};
}

class Plotter {
 public:
  Plotter(const SweepPlan& plan, const SweepTable& table, const PlotRequest& request)
      : plan_(plan), request_(request), selection_(plan, table, request) {
    find_x();
    if (request_.kind != "winners") series_ = selection_.series();
    check_counts();
  }

  Picture picture() {
    picture_ = {request_.name, request_.kind, {}, {}, "", ""};
    parts_.title = request_.title.empty() ? plan_.file.name : request_.title;
    parts_.settings = selection_.settings();
    if (request_.kind == "winners") {
      draw_winners_map();
    } else if (request_.kind == "phases") {
      draw_phases_of_rows();
    } else {
      draw_lines();
    }
    return std::move(picture_);
  }

 private:
  bool is_roofline() const { return request_.kind == "roofline"; }
  bool has_result(const Row& row) const { return selection_.has_result(row); }

  // Positions on the x axis: the quantity itself, or 1, 2, 3 ... where it is none.
  void find_x() {
    if (request_.x.empty()) return;
    x_ = selection_.column(request_.x);
    double largest = 0;
    std::string unit;
    for (const Row* row : selection_.rows()) {
      const std::string& text = (*row)[*x_];
      if (std::find(x_texts_.begin(), x_texts_.end(), text) == x_texts_.end())
        x_texts_.push_back(text);
      const auto value = axis_value(text);
      x_is_quantity_ = x_is_quantity_ && value.has_value();
      if (value) unit = value->unit;
      if (value) largest = std::max(largest, value->number);
    }
    if (x_is_quantity_) x_scale_ = readable_scale(unit, largest);
  }

  double x_of(const Row& row) const {
    if (x_is_quantity_) return selection_.number(row, *x_) / x_scale_.divisor;
    const auto at = std::find(x_texts_.begin(), x_texts_.end(), row[*x_]);
    return static_cast<double>(at - x_texts_.begin()) + 1;
  }

  void check_counts() const {
    const auto require_labels = [&](std::size_t labels, std::size_t most) {
      if (labels > most)
        selection_.fail(fmt::format("{} labels are too many to read", labels), narrow_down);
    };
    if (request_.kind == "phases") require_labels(selection_.rows().size(), most_labels);
    if (request_.kind == "winners") {
      require_labels(x_texts_.size(), most_columns);
      std::set<std::string> rows;
      for (const Row* row : selection_.rows()) rows.insert((*row)[selection_.column(request_.y)]);
      require_labels(rows.size(), most_labels);
    }
    if (!x_is_quantity_) require_labels(x_texts_.size(), most_labels);
    if (request_.kind != "phases" && series_.size() > most_series)
      selection_.fail(fmt::format("{} series are too many to tell apart", series_.size()),
                      narrow_down);
  }

  // Those with a result somewhere.
  std::vector<SweepSeries> drawn() const {
    std::vector<SweepSeries> all;
    for (const SweepSeries& one : series_) {
      if (std::any_of(one.rows.begin(), one.rows.end(),
                      [&](const Row* row) { return has_result(*row); }))
        all.push_back(one);
    }
    return all;
  }

  static std::string axis_label(const std::string& own, const std::string& name,
                                const std::string& unit) {
    if (!own.empty()) return own;
    const std::string label = column_label(name);
    return unit.empty() ? label : label + " (" + unit + ")";
  }

  // The largest number of a column among points with a result; NaN where it holds none.
  double largest_of(std::size_t column) const {
    double largest = std::nan("");
    for (const Row* row : selection_.rows()) {
      const double value = selection_.number(*row, column);
      if (has_result(*row) && std::isfinite(value)) largest = std::fmax(largest, value);
    }
    return largest;
  }

  // The unit that a column's numbers are in: of a result by its name, of an axis as it is written.
  std::string unit_of(std::size_t column, const std::string& name) const {
    if (const std::string unit = unit_of_column(name); !unit.empty()) return unit;
    for (const Row* row : selection_.rows()) {
      if (const auto value = axis_value((*row)[column])) return value->unit;
    }
    return "";
  }

  void draw_lines() {
    std::vector<std::size_t> roofs;
    if (is_roofline()) {
      roofs = {selection_.column("roofs.io_tokens_per_second"),
               selection_.column("roofs.compute_tokens_per_second")};
    }
    const std::size_t y = selection_.column(request_.y);
    const double largest = largest_of(y);
    if (!(largest > 0)) {
      selection_.fail(fmt::format("{} holds no numbers", request_.y), "name another column as y");
    }
    const AxisScale scale = readable_scale(unit_of(y, request_.y), largest);
    const std::vector<SweepSeries> lines = drawn();
    double low = HUGE_VAL, high = 0;
    for (const SweepSeries& one : lines) {
      std::vector<const Row*> rows = one.rows;
      std::stable_sort(rows.begin(), rows.end(),
                       [&](const Row* a, const Row* b) { return x_of(*a) < x_of(*b); });
      for (const Row* row : rows) {
        const double value =
            has_result(*row) ? selection_.number(*row, y) / scale.divisor : std::nan("");
        picture_.data += fmt::format("{} {} {}", cell(x_of(*row)), cell(value),
                                     selection_.is_extrapolated(*row) ? 1 : 0);
        for (const std::size_t c : roofs)
          picture_.data += " " + cell(has_result(*row) ? selection_.number(*row, c) : std::nan(""));
        picture_.data += "\n";
        if (!std::isfinite(value)) continue;
        if (value > 0) low = std::min(low, value);
        high = std::max({high, value, is_roofline() ? selection_.number(*row, roofs.back()) : 0});
      }
      picture_.data += "\n\n";
    }
    add_styles(lines);
    parts_.x_label = axis_label(request_.x_label, request_.x, x_scale_.unit);
    parts_.y_label = axis_label(request_.y_label, request_.y, scale.unit);
    parts_.note = selection_.missing_note() + selection_.extrapolated_note("Hollow points");
    add_axes(low, high);
  }

  void add_styles(const std::vector<SweepSeries>& lines) {
    const std::vector<LineStyle> styles = line_styles(selection_, lines);
    std::vector<std::string> colours;
    std::vector<int> dashes, points;
    for (const LineStyle& style : styles) {
      colours.push_back(style.colour);
      dashes.push_back(style.dash);
      points.push_back(style.point);
    }
    auto& variables = picture_.variables;
    variables.emplace_back("series", std::to_string(lines.size()));
    variables.emplace_back("colours", text_array(colours));
    variables.emplace_back("dashes", numbers_array(dashes));
    variables.emplace_back("points", numbers_array(points));
    parts_.legend = legend_of(lines, styles);
    if (!is_roofline()) return;
    parts_.legend.push_back({"",
                             {{"compute roof", "#606060", 3, 0, false, 1.6},
                              {"I/O roof, in the policy's colour", "#000000", 2, 0, false, 1.4}}});
  }

  void add_axes(double low, double high) {
    const bool log_x = (request_.log_x || is_roofline()) && x_is_quantity_;
    const bool log_y = request_.log_y || is_roofline();
    std::vector<double> xs;
    for (const Row* row : selection_.rows()) xs.push_back(x_of(*row));
    std::sort(xs.begin(), xs.end());
    xs.erase(std::unique(xs.begin(), xs.end()), xs.end());
    const AxisRange x = range_of_x(xs, log_x && xs.front() > 0);
    const AxisRange y =
        log_y ? AxisRange{low / 1.3, high * 1.3, true} : AxisRange{0, high * 1.08, false};
    std::vector<Tick> x_ticks = ticks_at(xs, x);
    constexpr std::size_t most_ticks = 40;
    if (xs.size() > most_ticks) x_ticks = round_ticks(x);
    if (!x_is_quantity_) {
      for (std::size_t i = 0; i < x_texts_.size(); ++i) x_ticks[i].text = x_texts_[i];
    }
    picture_.commands = x.commands("x");
    for (std::string& command : y.commands("y")) picture_.commands.push_back(std::move(command));
    PictureLayout(parts_, round_ticks(y), x_ticks, !x_is_quantity_).add_to(picture_);
  }

  // What the rows say of each policy, by x and y.
  void draw_winners_map() {
    const std::size_t y = selection_.column(request_.y), policy = selection_.column("policy");
    const std::size_t throughput = selection_.column("tokens_per_second");
    std::vector<Contest> contests;
    for (const Row* row : selection_.rows()) {
      const double tokens = has_result(*row) ? selection_.number(*row, throughput) : 0;
      contests.push_back({(*row)[*x_], (*row)[y], (*row)[policy], tokens,
                          has_result(*row) && selection_.is_extrapolated(*row)});
    }
    parts_.x_label = axis_label(request_.x_label, request_.x, "");
    parts_.y_label = axis_label(request_.y_label, request_.y, "");
    draw_winners(picture_, std::move(parts_), contests, "spillway");
  }

  // Groups of bars: one for each x, in it one bar a series.
  void draw_phases_of_rows() {
    std::array<std::size_t, 3> phases{};
    for (std::size_t p = 0; p < phases.size(); ++p)
      phases[p] =
          selection_.column(std::array{"phases.forward", "phases.backward", "phases.optimizer"}[p]);
    std::vector<PhaseBar> bars;
    for (const std::string& group : x_ ? x_texts_ : std::vector<std::string>{""}) {
      for (const SweepSeries& one : series_) {
        for (const Row* row : one.rows) {
          if (x_ && (*row)[*x_] != group) continue;
          PhaseBar bar{x_ ? setting_text(request_.x, group) : "", one.name, {}, false};
          if (has_result(*row)) {
            bar.seconds.emplace();
            for (std::size_t p = 0; p < phases.size(); ++p)
              (*bar.seconds)[p] = selection_.number(*row, phases[p]);
            bar.extrapolated = selection_.is_extrapolated(*row);
          }
          bars.push_back(std::move(bar));
        }
      }
    }
    parts_.y_label = request_.y_label;
    parts_.note = selection_.missing_note("✕: no result") + selection_.extrapolated_note("*");
    draw_phases(picture_, std::move(parts_), bars);
  }

  const SweepPlan& plan_;
  const PlotRequest& request_;
  SweepSelection selection_;
  std::optional<std::size_t> x_;
  std::vector<std::string> x_texts_;  // distinct, in axis order
  bool x_is_quantity_ = true;
  AxisScale x_scale_;
  std::vector<SweepSeries> series_;
  Picture picture_;
  PictureParts parts_;
};

}  // namespace

Picture plot_of(const SweepPlan& plan, const SweepTable& table, const PlotRequest& request) {
  return Plotter(plan, table, request).picture();
}

}  // namespace spillway
