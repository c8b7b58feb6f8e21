// Whether the pictures of a sweep can be drawn, before its first point is run.
#include <fmt/format.h>

#include <algorithm>

#include "base/errors.hpp"
#include "base/suggest.hpp"
#include "experiments/plan/evaluate.hpp"
#include "experiments/plots/plot_axis.hpp"
#include "experiments/sweep/sweep.hpp"
#include "experiments/sweep/sweep_plots.hpp"

namespace spillway {

namespace {

// One small problem, to see which columns a result has.
const SweepTable& sample_table() {
  static const SweepTable table = [] {
    SweepPlan plan;
    SweepPoint point;
    point.settings = SettingsResolver().resolve(
        {{"model", "gpt-tiny"}, {"machine", "rtx4090-12ssd"}, {"policy", "resident"}});
    plan.points = {point};
    EvaluationReuse reuse;
    return make_table(plan, {{point.identity, evaluate_point(point, reuse)}});
  }();
  return table;
}

// The columns of results that pictures read.
std::vector<std::string> columns_of(const SweepPlan& plan) {
  std::vector<std::string> columns = {"status",
                                      "tokens_per_second",
                                      "roofs.io_tokens_per_second",
                                      "roofs.compute_tokens_per_second",
                                      "phases.forward",
                                      "phases.backward",
                                      "phases.optimizer"};
  for (const PlotRequest& plot : plan.file.plots) {
    const bool is_new = std::find(columns.begin(), columns.end(), plot.y) == columns.end() &&
                        std::find(plan.keys.begin(), plan.keys.end(), plot.y) == plan.keys.end();
    if (is_new) columns.push_back(plot.y);
  }
  return columns;
}

// The table as it will be, as far as that is known before anything is run: in columns that hold
// numbers some number.
SweepTable expected_table(const SweepPlan& plan) {
  const SweepTable& sample = sample_table();
  SweepTable table;
  std::vector<std::string> cells;  // of results, the same for all points
  table.columns = plan.keys;
  for (const std::string& name : columns_of(plan)) {
    const std::size_t c = sample.find(name);
    if (c >= sample.columns.size()) continue;
    const std::string& cell = sample.rows.front()[c];
    table.columns.push_back(name);
    cells.push_back(axis_value(cell) ? "1" : cell);
  }
  const std::size_t status = table.find("status");
  for (const SweepPoint& point : plan.points) {
    std::vector<std::string> row = point.cells;
    row.insert(row.end(), cells.begin(), cells.end());
    if (!point.invalid.empty()) row[status] = "invalid";
    table.rows.push_back(std::move(row));
  }
  return table;
}

void require_column(const SweepPlan& plan, const PlotRequest& plot, const std::string& name) {
  std::vector<std::string> known = plan.keys;
  const SweepTable& sample = sample_table();
  known.insert(known.end(), sample.columns.begin(), sample.columns.end());
  if (std::find(known.begin(), known.end(), name) != known.end()) return;
  throw InputError(plot.place, 0, fmt::format("plot {}: there is no column {}", plot.name, name),
                   unknown_name_hint(name, known));
}

}  // namespace

void check_plots(const SweepPlan& plan) {
  const auto require_axis = [&](const PlotRequest& plot, const std::string& key) {
    if (std::find(plan.keys.begin(), plan.keys.end(), key) != plan.keys.end()) return;
    throw InputError(plot.place, 0,
                     fmt::format("plot {} names {}, which is no axis", plot.name, key),
                     unknown_name_hint(key, plan.keys));
  };
  for (const PlotRequest& plot : plan.file.plots) {
    if (!plot.x.empty()) require_axis(plot, plot.x);
    for (const auto& [key, values] : plot.where) require_axis(plot, key);
    if (plot.kind != "winners") continue;
    require_axis(plot, plot.y);
    require_axis(plot, "policy");
  }
  if (plan.file.plots.empty()) return;
  for (const PlotRequest& plot : plan.file.plots) require_column(plan, plot, plot.y);
  const SweepTable table = expected_table(plan);
  for (const PlotRequest& plot : plan.file.plots) plot_of(plan, table, plot);
}

}  // namespace spillway
