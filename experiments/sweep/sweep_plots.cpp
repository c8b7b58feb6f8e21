#include "experiments/sweep/sweep_plots.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <optional>

#include "base/errors.hpp"
#include "base/suggest.hpp"
#include "base/text.hpp"
#include "experiments/plots/plot_axis.hpp"
#include "experiments/sweep/winners_plot.hpp"
#include "policies/common/registry.hpp"

namespace spillway {

namespace {

using Row = std::vector<std::string>;
constexpr double not_there = std::numeric_limits<double>::quiet_NaN();
const std::string winners_note =
    "Colour: the fastest of the others. Number: the speed of spillway against it. ";
constexpr std::size_t note_width = 84, most_series = 24, most_labels = 100;

struct Series {
  std::string name;
  std::vector<const Row*> rows;  // with or without a result
};

class Plotter {
 public:
  Plotter(const SweepPlan& plan, const SweepTable& table, const PlotRequest& request)
      : plan_(plan), table_(table), request_(request), status_(table.find("status")) {
    select_rows();
    find_x();
    if (request_.kind != "winners") group();
  }

  Picture picture() {
    Picture picture{request_.name, request_.kind, {}, ""};
    if (request_.kind == "winners") {
      draw_winners_map(picture);
    } else if (request_.kind == "phases") {
      draw_phases(picture);
    } else {
      draw_lines(picture);
    }
    picture.variables.emplace_back("legend_at", legend_at());
    const std::string title = request_.title.empty() ? plan_.file.name : request_.title;
    picture.variables.emplace_back("title_text", title_of(title, settings()));
    const std::string note =
        (request_.kind == "winners" ? winners_note : "") + missing_note() + extrapolated_note();
    picture.variables.emplace_back(
        "note_text", gnuplot_text(note.empty() ? "" : "\n" + small_text(note, note_width)));
    return picture;
  }

 private:
  [[noreturn]] void fail(const std::string& what, const std::string& hint) const {
    throw InputError(request_.place, 0, fmt::format("plot {}: {}", request_.name, what), hint);
  }

  std::size_t column(const std::string& name) const {
    const std::size_t found = table_.find(name);
    if (found < table_.columns.size()) return found;
    fail(fmt::format("there is no column {}", name), unknown_name_hint(name, table_.columns));
  }

  bool has_result(const Row& row) const { return row[status_] == "ok"; }

  double number(const Row& row, std::size_t c) const {
    const auto value = axis_value(row[c]);
    return value ? value->number : not_there;
  }

  void select_rows() {
    for (const Row& row : table_.rows) {
      const bool wanted =
          std::all_of(request_.where.begin(), request_.where.end(), [&](const auto& condition) {
            const std::vector<std::string>& values = condition.second;
            return std::find(values.begin(), values.end(), row[column(condition.first)]) !=
                   values.end();
          });
      if (wanted) rows_.push_back(&row);
    }
    const bool any =
        std::any_of(rows_.begin(), rows_.end(), [&](const Row* row) { return has_result(*row); });
    if (!any) {
      fail("no point that it draws has a result",
           "see the column reason of results.csv; settings that fit, or another `where`, help");
    }
  }

  // Positions on the x axis: the quantity itself, or 1, 2, 3 ... where it is none.
  void find_x() {
    if (request_.x.empty()) return;
    x_ = column(request_.x);
    for (const Row* row : rows_) {
      const std::string& text = (*row)[*x_];
      if (std::find(x_texts_.begin(), x_texts_.end(), text) == x_texts_.end())
        x_texts_.push_back(text);
      const auto value = axis_value(text);
      if (!value) {
        x_is_quantity_ = false;
      } else {
        x_unit_ = value->unit;
      }
    }
  }

  double x_of(const Row& row) const {
    if (x_is_quantity_) return number(row, *x_);
    const auto at = std::find(x_texts_.begin(), x_texts_.end(), row[*x_]);
    return static_cast<double>(at - x_texts_.begin()) + 1;
  }

  // Axes that vary among the rows, but for x and what moves together with it.
  std::vector<std::size_t> grouping() const {
    std::vector<std::size_t> keys;
    std::size_t begin = 0;
    for (const SweepAxis& axis : plan_.file.axes) {
      const bool is_x = x_ && *x_ >= begin && *x_ < begin + axis.keys.size();
      for (std::size_t k = 0; k < axis.keys.size() && !is_x; ++k) {
        const bool varies = std::any_of(rows_.begin(), rows_.end(), [&](const Row* row) {
          return (*row)[begin + k] != rows_.front()->at(begin + k);
        });
        if (varies) keys.push_back(begin + k);
      }
      begin += axis.keys.size();
    }
    return keys;
  }

  std::string name_of(const Row& row, const std::vector<std::size_t>& keys) const {
    std::string name;
    for (const std::size_t key : keys) {
      const std::string& text = row[key];
      if (text.empty()) continue;
      // Names speak for themselves; numbers do not.
      const std::string& of = table_.columns[key];
      const bool is_name = of == "policy" || of == "model" || of == "machine";
      name += fmt::format("{}{}", name.empty() ? "" : ", ",
                          is_name ? text : setting_label(of) + " " + text);
    }
    return name;
  }

  void group() {
    const std::vector<std::size_t> keys = grouping();
    for (const Row* row : rows_) {
      const std::string name = name_of(*row, keys);
      const auto known = std::find_if(series_.begin(), series_.end(),
                                      [&](const Series& one) { return one.name == name; });
      if (known == series_.end()) {
        series_.push_back({name, {row}});
      } else {
        known->rows.push_back(row);
      }
    }
    const std::size_t labels = request_.kind == "phases" ? rows_.size()
                               : x_is_quantity_          ? 0
                                                         : x_texts_.size();
    if (labels > most_labels) {
      fail(fmt::format("{} labels are too many to read", labels),
           "narrow it down to some values of an axis, e.g. where = { batch = 8 }");
    }
    if (series_.size() > most_series) {
      fail(fmt::format("{} series are too many to tell apart", series_.size()),
           "narrow it down to some values of an axis, e.g. where = { batch = 8 }");
    }
  }

  // Line styles of what is drawn: a policy has the same one in every picture, where there is one
  // series a policy.
  std::string styles() const {
    std::vector<std::string> policies;
    for (const PolicyInfo& info : known_policies()) policies.push_back(info.name);
    std::vector<std::size_t> all;
    for (const Series* one : drawn()) {
      const std::string policy = policy_of(*one->rows.front());
      const auto at =
          std::find(policies.begin(), policies.end(), policy.substr(0, policy.find(':')));
      const auto style = static_cast<std::size_t>(at - policies.begin()) + 1;
      if (std::find(all.begin(), all.end(), style) != all.end()) break;
      all.push_back(style);
    }
    if (all.size() < drawn().size()) {
      all.resize(drawn().size());
      std::iota(all.begin(), all.end(), std::size_t{1});
    }
    return fmt::format("[{}] = [{}]", all.size(), fmt::join(all, ", "));
  }

  // As the sweep sets it, by an axis or for all points.
  std::string policy_of(const Row& row) const {
    const auto fixed = plan_.file.fixed.find("policy");
    return fixed != plan_.file.fixed.end() ? fixed->second : row[table_.find("policy")];
  }

  // Where the legend begins, as a part of the width.
  std::string legend_at() const {
    std::size_t longest = 12;
    for (const std::string& name : winners_) longest = std::max(longest, name.size());
    if (request_.kind != "phases") {
      for (const Series* one : drawn()) longest = std::max(longest, one->name.size());
    }
    return fmt::format("{:.3f}", std::max(0.5, 0.905 - 0.0092 * static_cast<double>(longest)));
  }

  std::vector<const Series*> drawn() const {
    std::vector<const Series*> all;
    for (const Series& one : series_) {
      if (std::any_of(one.rows.begin(), one.rows.end(),
                      [&](const Row* row) { return has_result(*row); }))
        all.push_back(&one);
    }
    return all;
  }

  // "gpt-65b, micro_batch 8": what all points share.
  std::string settings() const {
    std::string text;
    const auto add = [&](const std::string& key, const std::string& value) {
      const bool is_name = key == "policy" || key == "model" || key == "machine";
      text += fmt::format("{}{}", text.empty() ? "" : ", ",
                          is_name ? value : setting_label(key) + " " + value);
    };
    for (const char* key : {"model", "machine"}) {
      const auto it = plan_.file.fixed.find(key);
      if (it != plan_.file.fixed.end()) add(key, it->second);
    }
    for (const auto& [key, value] : plan_.file.fixed) {
      if (key != "model" && key != "machine") add(key, value);
    }
    for (const auto& [key, values] : request_.where) {
      if (values.size() == 1) add(key, values.front());
    }
    return text;
  }

  // "No result (see the table): resident; zero-infinity, fuyou at host memory 48GB to 256GB. "
  std::string missing_note() const {
    return note_of("No result (see the table): ", [&](const Row& row) { return !has_result(row); });
  }

  std::string extrapolated_note() const {
    const std::size_t column = table_.find("extrapolated");
    if (column >= table_.columns.size()) return "";
    return note_of("Extrapolated, beyond what the machine file has measured: ",
                   [&](const Row& row) { return row[column] == "true"; });
  }

  // Names the points of the picture for which this holds; empty: it does for none.
  template <class Holds>
  std::string note_of(const std::string& begin, const Holds& holds) const {
    std::vector<std::pair<std::string, std::string>> notes;  // where, names
    for (const Series& one : series_) {
      const std::optional<std::string> where = places_of(one, holds);
      if (!where) continue;
      const auto same = std::find_if(notes.begin(), notes.end(),
                                     [&](const auto& note) { return note.first == *where; });
      if (same == notes.end()) {
        notes.emplace_back(*where, one.name);
      } else {
        same->second += ", " + one.name;
      }
    }
    std::string text;
    for (const auto& [where, names] : notes) {
      text += (text.empty() ? begin : "; ") + names + where;
    }
    return text.empty() ? text : text + ". ";
  }

  // Where in a series this holds: "" is everywhere, nothing is nowhere.
  template <class Holds>
  std::optional<std::string> places_of(const Series& series, const Holds& holds) const {
    std::vector<std::string> places;
    std::size_t first = 0, last = 0;
    for (std::size_t i = 0; i < series.rows.size(); ++i) {
      if (!holds(*series.rows[i])) continue;
      if (places.empty()) first = i;
      last = i;
      places.push_back(x_ ? (*series.rows[i])[*x_] : "");
    }
    if (places.empty()) return std::nullopt;
    if (!x_ || places.size() == series.rows.size()) return "";
    const std::string of =
        request_.x == "model" || request_.x == "policy" ? "" : setting_label(request_.x) + " ";
    const bool is_run = places.size() > 2 && last - first + 1 == places.size();
    return (series.name.empty() ? "at " : " at ") + of +
           (is_run ? places.front() + " to " + places.back()
                   : fmt::format("{}", fmt::join(places, ", ")));
  }

  std::string axis_label(const std::string& own, const std::string& name,
                         const std::string& unit) const {
    if (!own.empty()) return unmarked(own);
    const std::string label = column_label(name);
    return unmarked(unit.empty() ? label : label + " (" + unit + ")");
  }

  static std::string cell(double value) {
    return std::isfinite(value) ? fmt::format("{:.9g}", value) : "NaN";
  }

  void draw_lines(Picture& picture) {
    const bool is_roofline = request_.kind == "roofline";
    std::vector<std::size_t> columns = {column(request_.y)};
    if (is_roofline) {
      columns.push_back(column("roofs.io_tokens_per_second"));
      columns.push_back(column("roofs.compute_tokens_per_second"));
    }
    std::vector<std::string> names;
    double low = HUGE_VAL, high = 0;
    for (const Series* one : drawn()) {
      names.push_back(unmarked(one->name.empty() ? policy_of(*one->rows.front()) : one->name));
      std::vector<const Row*> rows = one->rows;
      std::stable_sort(rows.begin(), rows.end(),
                       [&](const Row* a, const Row* b) { return x_of(*a) < x_of(*b); });
      for (const Row* row : rows) {
        picture.data += cell(x_of(*row));
        for (const std::size_t c : columns) picture.data += " " + cell(number(*row, c));
        picture.data += "\n";
        const double y = number(*row, columns.front());
        if (!has_result(*row) || !std::isfinite(y)) continue;
        low = std::min(low, y);
        high = std::max({high, y, is_roofline ? number(*row, columns.back()) : 0});
      }
      picture.data += "\n\n";
    }
    if (!(high > 0))
      fail(fmt::format("{} holds no numbers", request_.y), "name another column as y");
    auto& variables = picture.variables;
    variables.emplace_back("series", std::to_string(names.size()));
    variables.emplace_back("styles", styles());
    variables.emplace_back("series_names", text_array(names));
    variables.emplace_back("x_label",
                           gnuplot_text(axis_label(request_.x_label, request_.x, x_unit_)));
    variables.emplace_back("y_label", gnuplot_text(axis_label(request_.y_label, request_.y, "")));
    const bool log_x = (request_.log_x || is_roofline) && x_is_quantity_;
    const bool log_y = request_.log_y || is_roofline;
    variables.emplace_back("log_x", log_x ? "1" : "0");
    variables.emplace_back("log_y", log_y ? "1" : "0");
    add_ranges(picture, log_x, log_y, low, is_roofline ? high * 2.4 : high);
  }

  void add_ranges(Picture& picture, bool log_x, bool log_y, double low, double high) {
    std::vector<double> xs;
    for (const Row* row : rows_) xs.push_back(x_of(*row));
    std::sort(xs.begin(), xs.end());
    xs.erase(std::unique(xs.begin(), xs.end()), xs.end());
    const double left = xs.front(), right = xs.back();
    const double margin = (right - left) * 0.04 + (right == left ? 0.5 : 0);
    std::string ranges =
        log_x ? fmt::format("set xrange [{:.9g}:{:.9g}]", left / 1.12, right * 1.12)
              : fmt::format("set xrange [{:.9g}:{:.9g}]", left - margin, right + margin);
    std::string y_tics;
    if (log_y) {
      const double bottom = low / 1.3, top = high * 1.1;
      ranges += fmt::format("; set yrange [{:.9g}:{:.9g}]", bottom, top);
      y_tics = set_ticks("y", logarithmic_ticks(bottom, top));
    } else {
      ranges += fmt::format("; set yrange [0:{:.9g}]", high * 1.08);
    }
    picture.variables.emplace_back("ranges", gnuplot_text(ranges));
    picture.variables.emplace_back("y_tics", gnuplot_text(y_tics));
    picture.variables.emplace_back("x_tics", gnuplot_text(x_tics(xs)));
  }

  std::string x_tics(const std::vector<double>& xs) const {
    if (!x_is_quantity_) {
      std::string list;
      for (std::size_t i = 0; i < x_texts_.size(); ++i) {
        list += fmt::format("{}{} {}", i == 0 ? "" : ", ", tick_text(x_texts_[i]), i + 1);
      }
      return fmt::format("set xtics ({})", list);
    }
    constexpr std::size_t most_ticks = 14;
    return xs.size() <= most_ticks ? set_ticks("x", xs) : "";
  }

  // All of a text, without markup.
  static std::string quoted_text(const std::string& text) {
    return gnuplot_text(unmarked(printable(text)));
  }

  // What the rows say of each policy, by x and y.
  void draw_winners_map(Picture& picture) {
    const std::size_t y = column(request_.y), policy = column("policy");
    const std::size_t throughput = column("tokens_per_second");
    std::vector<Contest> contests;
    for (const Row* row : rows_) {
      const double tokens = has_result(*row) ? number(*row, throughput) : 0;
      contests.push_back({(*row)[*x_], (*row)[y], (*row)[policy], tokens});
    }
    winners_ = draw_winners(picture, contests, "spillway");
    auto& variables = picture.variables;
    variables.emplace_back("x_label", gnuplot_text(axis_label(request_.x_label, request_.x, "")));
    variables.emplace_back("y_label", gnuplot_text(axis_label(request_.y_label, request_.y, "")));
  }

  // Groups of bars: one for each x, in it one bar a series.
  void draw_phases(Picture& picture) {
    const std::vector<std::size_t> phases = {column("phases.forward"), column("phases.backward"),
                                             column("phases.optimizer")};
    std::string tics, labels;
    double place = 0, high = 0;
    if (x_texts_.empty()) x_texts_.push_back("");
    for (const std::string& group : x_texts_) {
      const double first = place + 1;
      for (const Series& one : series_) {
        for (const Row* row : one.rows) {
          if (x_ && (*row)[*x_] != group) continue;
          ++place;
          tics += fmt::format("{}{} {}", tics.empty() ? "" : ", ", tick_text(one.name), place);
          double total = 0;
          std::string cells;
          for (const std::size_t c : phases) {
            const double seconds = has_result(*row) ? number(*row, c) : 0;
            total += seconds;
            cells += " " + cell(seconds);
          }
          high = std::max(high, total);
          picture.data += fmt::format("{}{} {} \"{}\"\n", place, cells, cell(total),
                                      has_result(*row) ? fmt::format("{:.3g}", total) : "✕");
        }
      }
      if (!group.empty()) {
        labels +=
            fmt::format("set label {} at first {}, graph 1.0 center offset 0, -0.6 font \",15\"; ",
                        quoted_text(group), (first + place) / 2);
        if (group != x_texts_.back()) {
          labels += fmt::format(
              "set arrow from first {0}, graph 0 to first {0}, graph 1 nohead linewidth 0.8 "
              "dashtype 3 linecolor rgb grey; ",
              place + 1);
        }
      }
      place += 1;
    }
    auto& variables = picture.variables;
    variables.emplace_back("x_tics", gnuplot_text("set xtics rotate by 30 right (" + tics + ")"));
    variables.emplace_back("y_label",
                           gnuplot_text(axis_label(request_.y_label, "step_seconds", "")));
    variables.emplace_back("group_labels", gnuplot_text(labels));
    variables.emplace_back("ranges",
                           gnuplot_text(fmt::format("set xrange [0.2:{}]; set yrange [0:{:.9g}]",
                                                    place - 0.2, high * 1.24)));
  }

  const SweepPlan& plan_;
  const SweepTable& table_;
  const PlotRequest& request_;
  std::size_t status_;
  std::vector<const Row*> rows_;
  std::optional<std::size_t> x_;
  std::vector<std::string> x_texts_;  // distinct, in axis order
  bool x_is_quantity_ = true;
  std::string x_unit_;
  std::vector<Series> series_;
  std::vector<std::string> winners_;  // in the legend of a map of winners
};

}  // namespace

Picture plot_of(const SweepPlan& plan, const SweepTable& table, const PlotRequest& request) {
  return Plotter(plan, table, request).picture();
}

}  // namespace spillway
