// What a benchmark's rows come to.
#include <algorithm>
#include <cmath>

#include "experiments/benchmark/benchmark.hpp"

namespace spillway {

namespace {

double geometric_mean(const std::vector<double>& all) {
  if (all.empty()) return 0;
  double sum = 0;
  for (const double one : all) sum += std::log(one);
  return std::exp(sum / static_cast<double>(all.size()));
}

double median(std::vector<double> all) {
  if (all.empty()) return 0;
  std::sort(all.begin(), all.end());
  const std::size_t half = all.size() / 2;
  return all.size() % 2 == 1 ? all[half] : (all[half - 1] + all[half]) / 2;
}

}  // namespace

std::optional<double> BenchmarkRow::speedup(const std::optional<BenchmarkPlan>& other) const {
  if (!tuned || !other) return {};
  return other->step_seconds / tuned->step_seconds;
}

std::optional<double> BenchmarkRow::gap() const {
  if (!tuned) return {};
  return std::max(0.0, 1 - bound_seconds / tuned->step_seconds);
}

bool BatchRow::is_io_bound() const {
  return limited_below.starts_with("ssd.") || limited_below.starts_with("pcie.");
}

bool BatchRow::reaches_own_peak(double share) const {
  return fewer_tokens_per_second > 0 &&
         fewer_tokens_per_second >= share * tuned_peak_tokens_per_second;
}

bool BatchRow::reaches_other_peak(double share) const {
  return fewer_tokens_per_second > 0 && fewer_tokens_per_second >= share * peak_tokens_per_second;
}

bool BatchRow::may_reach_own_peak(double share) const {
  return fewer > 0 && most_tokens_per_second >= share * tuned_peak_tokens_per_second;
}

bool BatchRow::may_reach_other_peak(double share) const {
  return fewer > 0 && most_tokens_per_second >= share * peak_tokens_per_second;
}

BenchmarkSummary summary_of(const std::vector<BenchmarkRow>& rows) {
  BenchmarkSummary summary;
  summary.points = rows.size();
  std::vector<double> published, built_in, zero_infinity, gaps;
  const auto add = [](std::vector<double>& to, const std::optional<double>& one) {
    if (one) to.push_back(*one);
  };
  for (const BenchmarkRow& row : rows) {
    add(published, row.speedup(row.published));
    add(built_in, row.speedup(row.built_in));
    add(zero_infinity, row.speedup(row.zero_infinity));
    add(gaps, row.gap());
    if (row.tuned) ++summary.fits;
    if (row.tuned && !row.built_in) ++summary.only_tuned;
    if (row.tuned && row.tuned->policy.starts_with("spillway")) ++summary.own_plans;
    const auto is_beaten_by = [&](const std::optional<BenchmarkPlan>& other) {
      return other && (!row.tuned || other->step_seconds < row.tuned->step_seconds);
    };
    if (is_beaten_by(row.published) || is_beaten_by(row.built_in) ||
        is_beaten_by(row.zero_infinity))
      ++summary.slower;
  }
  summary.against_published = geometric_mean(published);
  summary.against_built_in = geometric_mean(built_in);
  summary.against_zero_infinity = geometric_mean(zero_infinity);
  summary.median_gap = median(gaps);
  if (!gaps.empty()) summary.largest_gap = *std::max_element(gaps.begin(), gaps.end());
  return summary;
}

BatchSummary summary_of(const std::vector<BatchRow>& rows, double share) {
  BatchSummary summary;
  summary.rows = rows.size();
  for (const BatchRow& row : rows) {
    if (!row.is_io_bound()) continue;
    ++summary.io_bound;
    summary.own_peak += row.reaches_own_peak(share);
    summary.may_own_peak += row.may_reach_own_peak(share);
    summary.other_peak += row.reaches_other_peak(share);
    summary.may_other_peak += row.may_reach_other_peak(share);
  }
  return summary;
}

}  // namespace spillway
