#include "cli/text/bench_figures.hpp"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "cli/text/output.hpp"

namespace spillway::cli {

namespace {

using nlohmann::ordered_json;

bool has_roofline(const SpeedFigure& figure) { return !figure.roofline_what.empty(); }

ordered_json to_json(const SpeedFigure& figure) {
  const auto known = [](bool is_known, const ordered_json& value) {
    return is_known ? value : ordered_json(nullptr);
  };
  ordered_json target = nullptr;
  if (figure.target > 0)
    target = {{has_roofline(figure) ? "least_ratio" : "most", figure.target},
              {"met", figure.met()}};
  ordered_json best_of_eight = nullptr;
  if (figure.best_of_eight > 0)
    best_of_eight = {{"value", figure.best_of_eight},
                     {"ratio", figure.best_of_eight_ratio},
                     {"what", figure.best_of_eight_what}};
  return {{"name", figure.name},
          {"what", figure.what},
          {"unit", figure.unit},
          {"value", figure.value},
          {"roofline", known(has_roofline(figure), figure.roofline)},
          {"roofline_what", known(has_roofline(figure), figure.roofline_what)},
          {"ratio", known(!figure.ratios.empty(), figure.ratio())},
          {"ratios", figure.ratios},
          {"best_of_eight", best_of_eight},
          {"target", target},
          {"note", figure.note}};
}

void print_heading() {
  fmt::print("{:<34} {:>9} {:<8} {:>9} {:>7} {:>15} {:>9}  {}\n", "figure", "value", "", "roofline",
             "ratio", "middle half of", "target", "");
}

void print_row(const SpeedFigure& figure) {
  std::string roofline = "-", ratio = "-", spread = "-", target = "-";
  if (has_roofline(figure)) roofline = fmt::format("{:.2f}", figure.roofline);
  if (!figure.ratios.empty()) {
    ratio = fmt::format("{:.3f}", figure.ratio());
    spread = fmt::format("{:.3f}-{:.3f}", quantile_of(figure.ratios, 0.25),
                         quantile_of(figure.ratios, 0.75));
  }
  if (figure.target > 0)
    target =
        fmt::format(fmt::runtime(has_roofline(figure) ? ">= {:.2f}" : "<= {:g}"), figure.target);
  fmt::print("{:<34} {:>9.2f} {:<8} {:>9} {:>7} {:>15} {:>9}  {}\n", figure.name, figure.value,
             figure.unit, roofline, ratio, spread, target,
             figure.target <= 0 ? ""
             : figure.met()     ? "met"
                                : "missed");
  fmt::print("    {}\n", figure.what);
  if (has_roofline(figure)) fmt::print("    roofline: {}\n", figure.roofline_what);
  if (figure.best_of_eight > 0) {
    fmt::print("    best of the first eight bare: {:.2f} {}, {:.3f} of it reached ({})\n",
               figure.best_of_eight, figure.unit, figure.best_of_eight_ratio,
               figure.best_of_eight_what);
  }
  if (!figure.note.empty()) fmt::print("    {}\n", figure.note);
  flush_output();
}

}  // namespace

ordered_json run_figures(const std::vector<FigureTest>& tests, const FigureOptions& options,
                         bool json) {
  ordered_json all = ordered_json::array();
  for (const FigureTest& test : tests) {
    for (const SpeedFigure& figure : test.run(options)) {
      if (all.empty() && !json) print_heading();
      all.push_back(to_json(figure));
      if (!json) print_row(figure);
    }
  }
  return all;
}

}  // namespace spillway::cli
