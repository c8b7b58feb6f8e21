// What the rows of a testbed say: errors of the prediction, and whether it orders the policies as
// the measurement does.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "experiments/testbed/testbed_run.hpp"

namespace spillway {

// Absolute relative errors.
struct ErrorSummary {
  std::size_t count = 0;
  double median = 0;  // 0.03: three per cent
  double p95 = 0;     // nearest rank: the ceil(0.95 n)-th smallest
  double largest = 0;
  double bias = 0;  // median of the signed errors; above zero: predicted too slow
};
ErrorSummary summarize(std::vector<double> signed_errors);

// Kendall's rank correlation of predicted and measured times, over pairs of policies at one batch:
//
//   tau = (concordant - discordant) / (concordant + discordant + predicted_equal)
//
// A pair whose measured times differ by no more than their resolution is no order to be predicted:
// it is `tied` and left out. A pair predicted to be exactly equal whose measured times do differ
// counts against the prediction, by standing in the denominator alone.
struct KendallTau {
  std::size_t concordant = 0, discordant = 0, predicted_equal = 0, tied = 0;
  std::size_t pairs() const { return concordant + discordant + predicted_equal; }
  double tau() const;  // 1 where no pair is left
};

struct RankedTime {
  double predicted = 0, measured = 0;
  double resolution = 0;  // relative: what two measurements of the same may differ by
};
// Adds the pairs of one group to `tau`. Two measurements are tied where they differ by no more than
// the larger resolution of both, times the longer of both.
void count_pairs(std::span<const RankedTime> times, KendallTau& tau);

// Step times nearer than this are not told apart, even where the steps of a run scatter less: runs
// of the same configuration differ by as much.
inline constexpr double least_resolution = 0.01;

// What a prediction without any error would show: the runs scatter, and of a few of them a mean is
// not known to the last digit.
struct NoiseAlone {
  double median = 0, p95 = 0;  // of |predicted / measured - 1|; 0 of no means
};
// Each mean is normally distributed around the truth with its standard error; those that are not
// finite are left out.
NoiseAlone noise_alone(std::vector<double> standard_errors);

// Rows whose prediction is corrected for the machine's drift, and how many of their runs lie in
// their intervals.
struct CorrectedSummary {
  ErrorSummary errors;  // by configuration, over its rounds
  ErrorSummary of_runs;
  NoiseAlone noise;  // in `errors`
  KendallTau order;
  std::size_t inside = 0;  // of the runs

  double share_inside() const;  // 1 of no rows
  bool held() const;            // vacuously of no rows
};
inline constexpr double target_corrected_median = 0.02, target_corrected_p95 = 0.06,
                        target_corrected_tau = 0.93;
// Of runs in intervals that are stated to hold 90 %.
inline constexpr double least_share_inside = 0.85, most_share_inside = 0.95;

struct RegimeSummary {
  std::string regime;
  bool throttled = false;
  ErrorSummary errors;
  KendallTau order;   // with ties as above
  KendallTau strict;  // with a resolution of zero: every pair counts
};

struct KindSummary {
  std::string kind;
  ErrorSummary errors;  // over the configurations that have tasks of it
  double predicted_seconds = 0, measured_seconds = 0;  // a step, summed over configurations
};

// The tuned plan against the fastest other policy, both as measured, at one batch of a regime.
struct TunedResult {
  std::string regime;
  std::int64_t batch = 0;
  double tuned_seconds = 0, other_seconds = 0;
  std::string plan, other;
  // Whether another policy trained the same weights, bit by bit: one that adds gradients up in the
  // same order of micro-batches, ascending or snake.
  bool same_weights = false;

  double speedup() const { return other_seconds / tuned_seconds; }
};
inline constexpr double target_tuned_wins = 0.9;   // of all, faster than every other policy
inline constexpr double target_tuned_loss = 0.02;  // slower by no more anywhere

struct TestbedSummary {
  ErrorSummary throttled, unthrottled;
  CorrectedSummary corrected;          // of unthrottled rows
  std::vector<RegimeSummary> regimes;  // in the order of the rows
  // Most measured seconds first.
  std::vector<KindSummary> kinds, kinds_unthrottled;
  std::vector<TunedResult> tuned;  // of throttled rows, in their order

  // The targets: over throttled rows median <= 3 %, 95th percentile <= 8 %, tau >= 0.9 in every
  // regime; over unthrottled ones median <= 8 %, and corrected for drift as
  // CorrectedSummary::held() says: median <= 2 %, 95th percentile <= 6 %, tau >= 0.93, 85 to 95 %
  // inside; the tuned plan wins as tuned_held() says. Vacuously true of no rows.
  bool held() const;
  // Whether the tuned plan is faster than every other policy in 90 % of `tuned`, nowhere more than
  // 2 % slower, and trains the same weights.
  bool tuned_held() const;
  std::size_t tuned_wins() const;
  double slowest_tuned() const;  // the least speedup(); 1 of none
  // Whether there are rows enough to speak of the targets: 60 throttled ones, and some unthrottled.
  bool complete() const;
};
inline constexpr int fewest_configurations = 60;
inline constexpr double target_median = 0.03, target_p95 = 0.08, target_tau = 0.9;
inline constexpr double target_median_unthrottled = 0.08;

TestbedSummary summarize(const std::vector<TestbedRow>& rows);

nlohmann::ordered_json to_json(const TestbedSummary& summary);

}  // namespace spillway
