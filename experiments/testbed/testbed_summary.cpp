#include "experiments/testbed/testbed_summary.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>

#include "experiments/calibrate/statistics.hpp"
#include "sim/step_interval.hpp"

namespace spillway {

namespace {

// The pairs of policies of one regime, batch by batch.
KendallTau order_of(const std::vector<TestbedRow>& rows, const std::string& regime, bool strict) {
  std::map<std::int64_t, std::vector<RankedTime>> by_batch;
  for (const TestbedRow& row : rows) {
    if (row.regime != regime) continue;
    const double resolution = strict ? 0 : std::max(least_resolution, row.scatter);
    by_batch[row.batch].push_back({row.predicted_seconds, row.measured_seconds, resolution});
  }
  KendallTau tau;
  for (const auto& [batch, times] : by_batch) count_pairs(times, tau);
  return tau;
}

CorrectedSummary corrected_of(const std::vector<TestbedRow>& rows) {
  CorrectedSummary corrected;
  std::vector<TestbedRow> as_corrected;
  std::vector<double> errors, of_runs, standard_errors;
  for (TestbedRow row : rows) {
    if (row.throttled || !row.is_corrected()) continue;
    errors.push_back(row.corrected_error());
    standard_errors.push_back(row.standard_error());
    for (const TestbedRound& run : row.each_run()) {
      of_runs.push_back(run.corrected_error());
      if (run.is_inside()) ++corrected.inside;
    }
    row.predicted_seconds = row.corrected_seconds;
    as_corrected.push_back(std::move(row));
  }
  corrected.errors = summarize(std::move(errors));
  corrected.of_runs = summarize(std::move(of_runs));
  corrected.noise = noise_alone(std::move(standard_errors));
  std::vector<std::string> regimes;
  for (const TestbedRow& row : as_corrected) {
    if (std::find(regimes.begin(), regimes.end(), row.regime) == regimes.end())
      regimes.push_back(row.regime);
  }
  for (const std::string& regime : regimes) {
    const KendallTau order = order_of(as_corrected, regime, false);
    corrected.order.concordant += order.concordant;
    corrected.order.discordant += order.discordant;
    corrected.order.predicted_equal += order.predicted_equal;
    corrected.order.tied += order.tied;
  }
  return corrected;
}

std::vector<KindSummary> kinds_of(const std::vector<TestbedRow>& rows, bool throttled) {
  std::vector<KindSummary> kinds;
  std::vector<std::vector<double>> errors;
  for (const TestbedRow& row : rows) {
    if (row.throttled != throttled) continue;
    for (const KindSeconds& seconds : row.kinds) {
      if (!(seconds.measured > 0) || seconds.kind == "barrier") continue;
      auto kind = std::find_if(kinds.begin(), kinds.end(),
                               [&](const KindSummary& k) { return k.kind == seconds.kind; });
      if (kind == kinds.end()) {
        kinds.push_back({seconds.kind, {}, 0, 0});
        errors.emplace_back();
        kind = kinds.end() - 1;
      }
      errors[static_cast<std::size_t>(kind - kinds.begin())].push_back(
          seconds.predicted / seconds.measured - 1);
      kind->predicted_seconds += seconds.predicted;
      kind->measured_seconds += seconds.measured;
    }
  }
  for (std::size_t i = 0; i < kinds.size(); ++i) kinds[i].errors = summarize(std::move(errors[i]));
  std::stable_sort(kinds.begin(), kinds.end(), [](const KindSummary& a, const KindSummary& b) {
    return a.measured_seconds > b.measured_seconds;
  });
  return kinds;
}

TunedResult tuned_result(const TestbedRow& tuned, const std::vector<const TestbedRow*>& others) {
  TunedResult result;
  result.regime = tuned.regime;
  result.batch = tuned.batch;
  result.tuned_seconds = tuned.measured_seconds;
  result.plan = tuned.plan;
  result.same_weights = std::any_of(others.begin(), others.end(), [&](const TestbedRow* row) {
    return row->weights_hash == tuned.weights_hash;
  });
  const TestbedRow& best = **std::min_element(others.begin(), others.end(),
                                              [](const TestbedRow* a, const TestbedRow* b) {
                                                return a->measured_seconds < b->measured_seconds;
                                              });
  result.other_seconds = best.measured_seconds;
  result.other = best.policy;
  return result;
}

std::vector<TunedResult> tuned_of(const std::vector<TestbedRow>& rows) {
  std::vector<TunedResult> results;
  for (const TestbedRow& tuned : rows) {
    if (!tuned.throttled || !tuned.tuned) continue;
    std::vector<const TestbedRow*> others;
    for (const TestbedRow& row : rows) {
      if (row.regime == tuned.regime && row.batch == tuned.batch && !row.tuned)
        others.push_back(&row);
    }
    if (!others.empty()) results.push_back(tuned_result(tuned, others));
  }
  return results;
}

nlohmann::ordered_json to_json(const ErrorSummary& errors, const char* of = "configurations") {
  return {{of, errors.count},
          {"median", errors.median},
          {"p95", errors.p95},
          {"largest", errors.largest},
          {"bias", errors.bias}};
}

nlohmann::ordered_json to_json(const std::vector<KindSummary>& kinds) {
  nlohmann::ordered_json json = nlohmann::ordered_json::object();
  for (const KindSummary& kind : kinds) {
    json[kind.kind] = {{"errors", to_json(kind.errors)},
                       {"predicted_seconds", kind.predicted_seconds},
                       {"measured_seconds", kind.measured_seconds}};
  }
  return json;
}

nlohmann::ordered_json to_json(const KendallTau& tau) {
  return {{"tau", tau.tau()},
          {"concordant", tau.concordant},
          {"discordant", tau.discordant},
          {"predicted_equal", tau.predicted_equal},
          {"tied", tau.tied}};
}

}  // namespace

ErrorSummary summarize(std::vector<double> signed_errors) {
  ErrorSummary summary;
  summary.count = signed_errors.size();
  if (signed_errors.empty()) return summary;
  summary.bias = median(signed_errors);
  for (double& error : signed_errors) error = std::abs(error);
  std::sort(signed_errors.begin(), signed_errors.end());
  summary.median = median(signed_errors);
  const auto rank =
      static_cast<std::size_t>(std::ceil(0.95 * static_cast<double>(signed_errors.size()) - 1e-9));
  summary.p95 = signed_errors[rank - 1];
  summary.largest = signed_errors.back();
  return summary;
}

NoiseAlone noise_alone(std::vector<double> standard_errors) {
  std::erase_if(standard_errors, [](double error) { return !std::isfinite(error); });
  if (standard_errors.empty()) return {};
  const double largest = *std::max_element(standard_errors.begin(), standard_errors.end());
  // Of all means, those that lie within `bound` of the truth.
  const auto share_within = [&](double bound) {
    double share = 0;
    for (const double error : standard_errors)
      share += error > 0 ? std::erf(bound / error / std::sqrt(2.0)) : 1;
    return share / static_cast<double>(standard_errors.size());
  };
  const auto quantile = [&](double share) {
    double low = 0, high = 4 * largest;
    for (int i = 0; i < 60; ++i) {
      const double middle = (low + high) / 2;
      (share_within(middle) < share ? low : high) = middle;
    }
    return high;
  };
  return {quantile(0.5), quantile(0.95)};
}

double KendallTau::tau() const {
  if (pairs() == 0) return 1;
  return (static_cast<double>(concordant) - static_cast<double>(discordant)) /
         static_cast<double>(pairs());
}

void count_pairs(std::span<const RankedTime> times, KendallTau& tau) {
  for (std::size_t i = 0; i < times.size(); ++i) {
    for (std::size_t j = i + 1; j < times.size(); ++j) {
      const RankedTime &a = times[i], &b = times[j];
      const double measured = a.measured - b.measured, predicted = a.predicted - b.predicted;
      const double resolution =
          std::max(a.resolution, b.resolution) * std::max(a.measured, b.measured);
      if (std::abs(measured) <= resolution) {
        tau.tied += 1;
      } else if (predicted == 0) {
        tau.predicted_equal += 1;
      } else if ((predicted > 0) == (measured > 0)) {
        tau.concordant += 1;
      } else {
        tau.discordant += 1;
      }
    }
  }
}

TestbedSummary summarize(const std::vector<TestbedRow>& rows) {
  TestbedSummary summary;
  std::vector<double> throttled, unthrottled;
  std::vector<std::vector<double>> by_regime;
  for (const TestbedRow& row : rows) {
    (row.throttled ? throttled : unthrottled).push_back(row.error());
    auto regime = std::find_if(summary.regimes.begin(), summary.regimes.end(),
                               [&](const RegimeSummary& r) { return r.regime == row.regime; });
    if (regime == summary.regimes.end()) {
      summary.regimes.push_back({row.regime, row.throttled, {}, {}, {}});
      by_regime.emplace_back();
      regime = summary.regimes.end() - 1;
    }
    by_regime[static_cast<std::size_t>(regime - summary.regimes.begin())].push_back(row.error());
  }
  summary.throttled = summarize(std::move(throttled));
  summary.unthrottled = summarize(std::move(unthrottled));
  for (std::size_t i = 0; i < summary.regimes.size(); ++i) {
    RegimeSummary& regime = summary.regimes[i];
    regime.errors = summarize(std::move(by_regime[i]));
    regime.order = order_of(rows, regime.regime, false);
    regime.strict = order_of(rows, regime.regime, true);
  }
  summary.corrected = corrected_of(rows);
  summary.kinds = kinds_of(rows, true);
  summary.kinds_unthrottled = kinds_of(rows, false);
  summary.tuned = tuned_of(rows);
  return summary;
}

bool TestbedSummary::held() const {
  const bool ordered = std::all_of(regimes.begin(), regimes.end(), [](const RegimeSummary& regime) {
    return !regime.throttled || regime.order.tau() >= target_tau;
  });
  return ordered && throttled.median <= target_median && throttled.p95 <= target_p95 &&
         unthrottled.median <= target_median_unthrottled && corrected.held() && tuned_held();
}

double CorrectedSummary::share_inside() const {
  if (of_runs.count == 0) return 1;
  return static_cast<double>(inside) / static_cast<double>(of_runs.count);
}

bool CorrectedSummary::held() const {
  if (errors.count == 0) return true;
  return errors.median <= target_corrected_median && errors.p95 <= target_corrected_p95 &&
         order.tau() >= target_corrected_tau && share_inside() >= least_share_inside &&
         share_inside() <= most_share_inside;
}

std::size_t TestbedSummary::tuned_wins() const {
  return static_cast<std::size_t>(std::count_if(
      tuned.begin(), tuned.end(), [](const TunedResult& t) { return t.speedup() > 1; }));
}

double TestbedSummary::slowest_tuned() const {
  double least = tuned.empty() ? 1 : tuned.front().speedup();
  for (const TunedResult& t : tuned) least = std::min(least, t.speedup());
  return least;
}

bool TestbedSummary::tuned_held() const {
  const bool same =
      std::all_of(tuned.begin(), tuned.end(), [](const TunedResult& t) { return t.same_weights; });
  return same &&
         static_cast<double>(tuned_wins()) >=
             target_tuned_wins * static_cast<double>(tuned.size()) &&
         slowest_tuned() >= 1 - target_tuned_loss;
}

bool TestbedSummary::complete() const {
  return static_cast<int>(throttled.count) >= fewest_configurations && unthrottled.count > 0;
}

nlohmann::ordered_json to_json(const TestbedSummary& summary) {
  nlohmann::ordered_json regimes = nlohmann::ordered_json::array();
  for (const RegimeSummary& regime : summary.regimes) {
    regimes.push_back({{"regime", regime.regime},
                       {"throttled", regime.throttled},
                       {"errors", to_json(regime.errors)},
                       {"order", to_json(regime.order)},
                       {"order_without_ties", to_json(regime.strict)}});
  }
  nlohmann::ordered_json tuned = nlohmann::ordered_json::array();
  for (const TunedResult& t : summary.tuned) {
    tuned.push_back({{"regime", t.regime},
                     {"batch", t.batch},
                     {"plan", t.plan},
                     {"tuned_seconds", t.tuned_seconds},
                     {"fastest_other", t.other},
                     {"fastest_other_seconds", t.other_seconds},
                     {"same_weights", t.same_weights}});
  }
  nlohmann::ordered_json json = {
      {"held", summary.complete() ? nlohmann::ordered_json(summary.held()) : nullptr},
      {"throttled", to_json(summary.throttled)},
      {"unthrottled", to_json(summary.unthrottled)},
      {"regimes", regimes},
      {"tuned", tuned},
      {"kinds", to_json(summary.kinds)},
      {"kinds_unthrottled", to_json(summary.kinds_unthrottled)}};
  if (summary.corrected.errors.count > 0) {
    json["corrected"] = to_json(summary.corrected.errors);
    json["corrected"]["single_runs"] = to_json(summary.corrected.of_runs, "runs");
    if (summary.corrected.of_runs.count > summary.corrected.errors.count)
      json["corrected"]["noise_alone"] = {{"median", summary.corrected.noise.median},
                                          {"p95", summary.corrected.noise.p95}};
    json["corrected"]["order"] = to_json(summary.corrected.order);
    json["corrected"]["interval_share"] = interval_share;
    json["corrected"]["inside"] = summary.corrected.inside;
    json["corrected"]["share_inside"] = summary.corrected.share_inside();
  }
  return json;
}

}  // namespace spillway
