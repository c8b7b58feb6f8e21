#include "experiments/report/testbed_sections.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/units.hpp"
#include "experiments/testbed/testbed_summary.hpp"

namespace spillway {

namespace {

Cell share_cell(double share) { return number_cell(share, percentage_text(share)); }
Cell count_cell(std::size_t count) {
  return number_cell(static_cast<double>(count), std::to_string(count));
}
Cell tau_cell(double tau) { return number_cell(tau, fmt::format("{:.3f}", tau)); }

std::vector<PageTable::Column> error_columns(std::string first) {
  return {{std::move(first)},
          {"configurations", true},
          {"median error", true, "of |predicted / measured - 1|"},
          {"95th percentile", true, "of |predicted / measured - 1|"},
          {"largest", true},
          {"bias", true, "median with its sign; above zero: predicted too slow"}};
}

std::vector<Cell> error_cells(const std::string& name, const ErrorSummary& errors) {
  return {{name},
          count_cell(errors.count),
          share_cell(errors.median),
          share_cell(errors.p95),
          share_cell(errors.largest),
          number_cell(errors.bias, signed_percent_text(errors.bias))};
}

Facts facts_of(const TestbedSummary& s, std::size_t rows) {
  Facts facts = {{"rows", "configurations", number_text(static_cast<double>(rows), 9), rows}};
  const auto add = [&](const std::string& key, const std::string& label, const ErrorSummary& e) {
    if (e.count == 0) return;
    facts.push_back({key + "_median_error", label + ", median error", percentage_text(e.median),
                     e.median, fmt::format("95th percentile {}", percentage_text(e.p95))});
  };
  add("throttled", "throttled", s.throttled);
  add("unthrottled", "unthrottled", s.unthrottled);
  add("corrected", "corrected for drift", s.corrected.errors);
  double worst = 1;
  for (const RegimeSummary& regime : s.regimes) {
    if (regime.throttled) worst = std::min(worst, regime.order.tau());
  }
  if (s.throttled.count > 0)
    facts.push_back({"worst_tau", "order of policies, worst regime", fmt::format("{:.3f}", worst),
                     worst, "Kendall's tau of predicted and measured"});
  if (!s.tuned.empty())
    facts.push_back({"tuned_wins", "tuned plan is fastest",
                     fmt::format("{} of {}", s.tuned_wins(), s.tuned.size()), s.tuned_wins()});
  if (s.complete())
    facts.push_back(
        {"held", "targets", s.held() ? "held" : "missed", s.held(), "docs/validation.md"});
  return facts;
}

std::string regimes_html(const TestbedSummary& s) {
  PageTable table;
  table.columns = error_columns("regime");
  table.columns.push_back({"tau", true, "Kendall's tau of predicted and measured order"});
  table.columns.push_back({"pairs", true});
  table.columns.push_back({"tied", true});
  for (const RegimeSummary& regime : s.regimes) {
    std::vector<Cell> row = error_cells(regime.regime, regime.errors);
    row.push_back(tau_cell(regime.order.tau()));
    row.push_back(count_cell(regime.order.pairs()));
    row.push_back(count_cell(regime.order.tied));
    table.rows.push_back(std::move(row));
  }
  return table_html(table);
}

std::string kinds_html(const std::vector<KindSummary>& kinds, const std::string& caption) {
  if (kinds.empty()) return "";
  PageTable table;
  table.caption = caption;
  table.columns = error_columns("kind of task");
  table.columns.push_back({"share of all task time", true});
  double all = 0;
  for (const KindSummary& kind : kinds) all += kind.measured_seconds;
  for (const KindSummary& kind : kinds) {
    std::vector<Cell> row = error_cells(kind.kind, kind.errors);
    const double share = all > 0 ? kind.measured_seconds / all : 0;
    row.push_back({percentage_text(share), share, share});
    table.rows.push_back(std::move(row));
  }
  return table_html(table);
}

std::string tuned_html(const TestbedSummary& s) {
  PageTable table;
  table.columns = {{"regime"},
                   {"batch", true},
                   {"tuned", true},
                   {"fastest other", true},
                   {"which"},
                   {"speedup", true},
                   {"weights", false, "whether another policy trained the same, bit by bit"}};
  for (const TunedResult& t : s.tuned)
    table.rows.push_back({{t.regime},
                          number_cell(static_cast<double>(t.batch), std::to_string(t.batch)),
                          number_cell(t.tuned_seconds, format_seconds(t.tuned_seconds)),
                          number_cell(t.other_seconds, format_seconds(t.other_seconds)),
                          {t.other},
                          number_cell(t.speedup(), fmt::format("{:.3f}x", t.speedup())),
                          {t.same_weights ? "the same" : "others"}});
  return table_html(table);
}

Chart scatter_of(const std::vector<TestbedRow>& rows) {
  Chart chart = {"scatter",
                 "Step time, predicted against measured",
                 "measured, seconds",
                 "predicted, seconds",
                 {},
                 true,
                 true,
                 false,
                 true};
  for (const TestbedRow& row : rows) {
    if (row.measured_seconds <= 0 || row.predicted_seconds <= 0) continue;
    auto series = std::find_if(chart.series.begin(), chart.series.end(),
                               [&](const Series& one) { return one.name == row.regime; });
    if (series == chart.series.end()) {
      chart.series.push_back({row.regime, Series::Style::points, {}, {}});
      series = std::prev(chart.series.end());
    }
    series->points.emplace_back(row.measured_seconds, row.predicted_seconds);
    series->labels.push_back(
        fmt::format("batch {}, {}: {}", row.batch, row.policy, signed_percent_text(row.error())));
  }
  return chart;
}

}  // namespace

TestbedPages testbed_pages(const SweepTable& table, const std::vector<TestbedRow>& rows) {
  const TestbedSummary summary = summarize(rows);
  TestbedPages pages;
  pages.facts = facts_of(summary, rows.size());
  pages.charts.push_back(scatter_of(rows));
  pages.sections.push_back({"prediction", "Predicted against measured",
                            place_html(pages.charts.back()) + regimes_html(summary)});
  pages.sections.push_back({"kinds", "By kind of task",
                            kinds_html(summary.kinds, "On throttled machines") +
                                kinds_html(summary.kinds_unthrottled, "On the machine as it is")});
  if (!summary.tuned.empty())
    pages.sections.push_back({"tuned", "The tuned plan", tuned_html(summary)});
  DataTable all = {"rows", table, {}, "measured_seconds", "error", {"regime"}};
  for (const char* column : {"regime", "batch", "micro_batch", "policy", "predicted_seconds",
                             "measured_seconds", "error", "scatter", "runs"})
    all.shown.emplace_back(column);
  pages.sections.push_back({"rows", "All configurations", place_html(all)});
  pages.tables.push_back(std::move(all));
  return pages;
}

}  // namespace spillway
