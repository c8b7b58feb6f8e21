#include "experiments/report/prediction_section.hpp"

#include <fmt/format.h>

#include "base/units.hpp"
#include "experiments/report/facts.hpp"
#include "experiments/report/html.hpp"

namespace spillway {

namespace {

Cell seconds_cell(double seconds) { return number_cell(seconds, format_seconds(seconds)); }

Cell error_cell(double error) {
  return std::isfinite(error) ? number_cell(error, signed_percent_text(error)) : Cell{};
}

std::string sentence(const std::string& text) { return "<p>" + escaped(text) + "</p>\n"; }

std::string step_sentences(const Validation& v) {
  const TraceComparison& c = v.comparison;
  std::string text = sentence(fmt::format(
      "A step was predicted to take {} and took {}: the prediction is off by {}. Measured: the "
      "median of {}{}.",
      format_seconds(c.predicted.median_seconds), format_seconds(c.measured.median_seconds),
      signed_percent_text(c.error), count_text(c.measured.seconds.size(), "step"),
      c.measured.filling ? ", with the filling of the pipeline" : ""));
  if (v.corrected) {
    text += sentence(fmt::format(
        "The machine was {}. With each rate corrected by its own reference kernel: {}, off by {}.",
        drift_text(v.corrected->drift,
                   v.corrected->predicted_seconds / c.predicted.median_seconds - 1),
        format_seconds(v.corrected->predicted_seconds), signed_percent_text(v.corrected->error)));
  }
  if (v.uncertainty) {
    const double low = v.uncertainty->low(v.expected_seconds());
    const double high = v.uncertainty->high(v.expected_seconds());
    const double measured = c.measured.median_seconds;
    text += sentence(fmt::format("{} to {} holds {:.0f} % of runs; this one lies {}.",
                                 format_seconds(low), format_seconds(high), 100 * interval_share,
                                 measured >= low && measured <= high ? "inside" : "outside"));
  }
  return text;
}

std::string divergence_sentence(const TraceComparison& c) {
  if (!c.first_divergence)
    return sentence("No task's duration differs by more than a quarter and 200 us.");
  return sentence(fmt::format(
      "The first task whose duration differs by more than a quarter and 200 us is task {}, {}: "
      "predicted {}, measured {}. {} of {} tasks differ so.",
      c.first_divergence->task, c.first_divergence->description,
      format_seconds(static_cast<double>(c.first_divergence->predicted_ns) * 1e-9),
      format_seconds(static_cast<double>(c.first_divergence->measured_ns) * 1e-9),
      c.diverging_tasks, c.matched_tasks));
}

PageTable kinds_table(const Validation& v) {
  PageTable table;
  table.columns = {{"kind of task"},
                   {"predicted", true, "seconds a step, all tasks of the kind added up"},
                   {"measured", true, "seconds a step, all tasks of the kind added up"},
                   {"error", true, "predicted / measured - 1"},
                   {"on the longest chain, predicted", true,
                    "of tasks that wait for each other: seconds a step"},
                   {"on it, measured", true, "of tasks that wait for each other: seconds a step"}};
  for (const Quantity& kind : v.comparison.kinds) {
    std::vector<Cell> row = {{kind.name},
                             seconds_cell(kind.predicted_seconds),
                             seconds_cell(kind.measured_seconds),
                             error_cell(kind.error),
                             {},
                             {}};
    for (const CriticalShare& share : v.critical_path) {
      if (share.kind != kind.name) continue;
      row[4] = seconds_cell(share.predicted_seconds);
      row[5] = seconds_cell(share.measured_seconds);
    }
    table.rows.push_back(std::move(row));
  }
  return table;
}

PageTable lanes_table(const TraceComparison& c) {
  PageTable table;
  table.columns = {{"lane"},
                   {"busy, predicted", true},
                   {"busy, measured", true},
                   {"seconds, predicted", true},
                   {"measured", true},
                   {"error", true}};
  for (const LaneQuantity& lane : c.lanes)
    table.rows.push_back(
        {{lane.name},
         {percentage_text(lane.predicted_busy), lane.predicted_busy, lane.predicted_busy},
         {percentage_text(lane.measured_busy), lane.measured_busy, lane.measured_busy},
         seconds_cell(lane.predicted_seconds),
         seconds_cell(lane.measured_seconds),
         error_cell(lane.error)});
  return table;
}

}  // namespace

std::string prediction_html(const TraceStudy& study) {
  if (!is_held_against_prediction(study)) return "";
  const Validation& v = *study.validation;
  return step_sentences(v) + table_html(kinds_table(v)) + table_html(lanes_table(v.comparison)) +
         divergence_sentence(v.comparison);
}

}  // namespace spillway
