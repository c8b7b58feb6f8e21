#include "cli/text/benchmark_text.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/units.hpp"

namespace spillway::cli {

namespace {

std::string name_of(const std::string& policy) { return policy.substr(0, policy.find(':')); }

// "greedysnake 12.30 s"
std::string plan_text(const std::optional<BenchmarkPlan>& plan) {
  if (!plan) return "-";
  return fmt::format("{} {}", name_of(plan->policy), format_seconds(plan->step_seconds));
}

std::string time_text(const std::optional<BenchmarkPlan>& plan) {
  return plan ? format_seconds(plan->step_seconds) : "-";
}

std::string times_text(const std::optional<double>& ratio) {
  return ratio ? fmt::format("{:.3f}x", *ratio) : "-";
}

// "no plan": the bound rules it out.
const char* reached_text(bool reached, bool may_reach) {
  return reached ? "yes" : may_reach ? "no" : "no plan";
}

}  // namespace

BenchmarkText::BenchmarkText(const SweepPlan& grid) : keys_(grid.keys) {
  for (std::size_t k = 0; k < keys_.size(); ++k) {
    widths_.push_back(keys_[k].size());
    for (const SweepPoint& point : grid.points)
      widths_[k] = std::max(widths_[k], point.cells[k].size());
  }
}

std::string BenchmarkText::padded(const std::vector<std::string>& cells, bool with_batch) const {
  std::string text;
  for (std::size_t k = 0; k < cells.size(); ++k) {
    if (with_batch || keys_[k] != "batch") text += fmt::format("{:<{}} ", cells[k], widths_[k]);
  }
  return text;
}

std::string BenchmarkText::head() const {
  return padded(keys_, true) +
         fmt::format("{:<27} {:<27} {:>13} {:>9} {:>9} {:>9} {:>9} {:>7}  {}\n", "as published",
                     "with options", "zero-infinity", "tuned", "published", "options", "zero-inf.",
                     "gap", "bound by");
}

std::string BenchmarkText::line(const BenchmarkRow& row) const {
  if (!row.tuned) return padded(row.cells, true) + "nothing fits\n";
  return padded(row.cells, true) +
         fmt::format("{:<27} {:<27} {:>13} {:>9} {:>9} {:>9} {:>9} {:>5.1f} %  {}\n",
                     plan_text(row.published), plan_text(row.built_in),
                     time_text(row.zero_infinity), time_text(row.tuned),
                     times_text(row.speedup(row.published)), times_text(row.speedup(row.built_in)),
                     times_text(row.speedup(row.zero_infinity)), 100 * *row.gap(), row.bound_by);
}

std::string BenchmarkText::batch_head(double share) const {
  return fmt::format(
             "greedysnake's smallest batch for {0:g} % of its peak, in tokens/s; tuned plans with "
             "a "
             "quarter fewer sequences, and whether these make {0:g} % of either peak\n",
             100 * share) +
         padded(keys_, false) +
         fmt::format("{:>5} {:>9} {:<13} {:>5} {:>9} {:>9} {:>9} {:>9} {:>9}\n", "batch", "peak",
                     "limit below", "fewer", "tuned", "at most", "own peak", "of own", "of other");
}

std::string BenchmarkText::line(const BatchRow& row, double share) const {
  std::string text = padded(row.cells, false);
  if (row.batch == 0) return text + "greedysnake does not fit\n";
  text += fmt::format("{:>5} {:>9.1f} {:<13}", row.batch, row.peak_tokens_per_second,
                      row.limited_below);
  if (row.is_io_bound())
    text += fmt::format(
        " {:>5} {:>9.1f} {:>9.1f} {:>9.1f} {:>9} {:>9}", row.fewer, row.fewer_tokens_per_second,
        row.most_tokens_per_second, row.tuned_peak_tokens_per_second,
        reached_text(row.reaches_own_peak(share), row.may_reach_own_peak(share)),
        reached_text(row.reaches_other_peak(share), row.may_reach_other_peak(share)));
  return text + "\n";
}

std::string BenchmarkText::end(const Benchmark& benchmark,
                               const std::optional<double>& share) const {
  const BenchmarkSummary all = summary_of(benchmark.rows);
  std::string text = fmt::format(
      "{} of {} points fit, {} of them with no built-in policy; {} answers are plans of no "
      "built-in "
      "policy\n"
      "geometric mean of speedups: {:.3f}x over policies as published, {:.3f}x over those with "
      "options, {:.3f}x over zero-infinity\n"
      "slower than a built-in policy: {} points\n"
      "above the bound: median {:.1f} %, at most {:.1f} % of the step\n",
      all.fits, all.points, all.only_tuned, all.own_plans, all.against_published,
      all.against_built_in, all.against_zero_infinity, all.slower, 100 * all.median_gap,
      100 * all.largest_gap);
  if (!share) return text;
  const BatchSummary batches = summary_of(benchmark.batches, *share);
  return text +
         fmt::format(
             "drives or links bind greedysnake below its smallest batch: {} of {} machines and "
             "models; on these, with a quarter fewer sequences\n"
             "  {} tuned plans make {:g} % of their own peak; on {} the bound rules it out\n"
             "  {} tuned plans make {:g} % of greedysnake's peak; on {} the bound rules it out\n",
             batches.io_bound, batches.rows, batches.own_peak, 100 * *share,
             batches.io_bound - batches.may_own_peak, batches.other_peak, 100 * *share,
             batches.io_bound - batches.may_other_peak);
}

}  // namespace spillway::cli
