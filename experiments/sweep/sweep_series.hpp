// What a picture of a sweep draws: which rows, as which series, and in which words.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "experiments/plots/picture_layout.hpp"
#include "experiments/sweep/sweep_table.hpp"

namespace spillway {

using SweepRow = std::vector<std::string>;

// "SSDs 4"; names of policies, models and machines speak for themselves.
std::string setting_text(const std::string& key, const std::string& value);

// Points that differ in x only.
struct SweepSeries {
  std::string policy;                 // by name, without options; empty: the points are of several
  std::string rest;                   // what else tells it from the others: "SSDs 4"; may be empty
  std::string name;                   // both
  std::vector<const SweepRow*> rows;  // with or without a result
};

class SweepSelection {
 public:
  // Throws InputError: a column that is not there, no row with a result.
  SweepSelection(const SweepPlan& plan, const SweepTable& table, const PlotRequest& request);

  // Rows that the picture draws.
  const std::vector<const SweepRow*>& rows() const { return rows_; }
  // One series for each combination of the axes other than x.
  std::vector<SweepSeries> series() const;

  // Index of a column. Throws InputError where there is none.
  std::size_t column(const std::string& name) const;
  bool has_result(const SweepRow& row) const { return row[status_] == "ok"; }
  // Whether it rests on rates beyond those that the machine file has measured.
  bool is_extrapolated(const SweepRow& row) const;
  // The number in a cell; NaN where it holds none.
  double number(const SweepRow& row, std::size_t column) const;

  // "gpt-65b, micro-batch 8": what all points share.
  std::string settings() const;
  // "No result (see the table): resident; fuyou at host memory 48 GB, 64 GB. "
  std::string missing_note(const std::string& begin = "No result") const;
  // "Hollow points: extrapolated, beyond what the machine file has measured: fuyou at SSDs 24. ",
  // where `mark` is how the picture marks them.
  std::string extrapolated_note(const std::string& mark) const;

  [[noreturn]] void fail(const std::string& what, const std::string& hint) const;

 private:
  std::vector<std::size_t> grouping() const;
  std::string policy_of(const SweepRow& row) const;
  std::string note_of(const std::string& begin,
                      const std::function<bool(const SweepRow&)>& holds) const;
  std::optional<std::string> places_of(const SweepSeries& series,
                                       const std::function<bool(const SweepRow&)>& holds) const;

  const SweepPlan& plan_;
  const SweepTable& table_;
  const PlotRequest& request_;
  std::size_t status_;
  std::vector<const SweepRow*> rows_;
};

// The lines of a picture: colour and points say the policy, the dash everything else.
struct LineStyle {
  std::string colour;
  int dash = 1, point = 7;
};

// One for each series, in their order. Throws InputError by `selection` where one policy has more
// lines than there are dashes.
std::vector<LineStyle> line_styles(const SweepSelection& selection,
                                   const std::vector<SweepSeries>& series);

// The legend of these: every line, or policies and dashes apart where that is shorter.
std::vector<LegendGroup> legend_of(const std::vector<SweepSeries>& series,
                                   const std::vector<LineStyle>& styles);

}  // namespace spillway
