// What the testbed's rows say: medians, percentiles, Kendall's tau, the report.
#include "experiments/testbed/testbed_summary.hpp"

#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "experiments/testbed/testbed_report.hpp"

namespace spillway {
namespace {

TestbedRow row(const std::string& regime, const std::string& policy, std::int64_t batch,
               double predicted, double measured, double scatter = 0) {
  TestbedRow r;
  r.regime = regime;
  r.policy = r.plan = policy;
  r.weights_hash = "0123456789abcdef";
  r.throttled = regime != "unthrottled";
  r.tuned = policy == "spillway";
  r.batch = batch;
  r.micro_batch = 2;
  r.predicted_seconds = predicted;
  r.measured_seconds = measured;
  r.scatter = scatter;
  r.steps = 5;
  r.runs = 1;
  r.kinds = {{"forward", predicted / 2, measured / 4}, {"h2d", 0.01, 0.01}};
  return r;
}

KendallTau tau_of(const std::vector<RankedTime>& times) {
  KendallTau tau;
  count_pairs(times, tau);
  return tau;
}

}  // namespace

TEST_CASE("The 95th percentile is the ceil(0.95 n)-th smallest, and the bias keeps the sign") {
  std::vector<double> errors;
  for (int i = 1; i <= 40; ++i) errors.push_back(-i / 100.0);
  const ErrorSummary s = summarize(errors);
  CHECK(s.count == 40);
  CHECK(s.median == Approx(0.205));
  CHECK(s.bias == Approx(-0.205));
  CHECK(s.p95 == Approx(0.38));  // ceil(38) = 38
  CHECK(s.largest == Approx(0.40));
  CHECK(summarize(std::vector<double>{0.5}).p95 == 0.5);
  CHECK(summarize(std::vector<double>{}).count == 0);
}

TEST_CASE(
    "Kendall's tau is 1 for the same order, -1 for the reverse, and (C - D) / pairs between") {
  CHECK(tau_of({{1, 10, 0}, {2, 20, 0}, {3, 30, 0}}).tau() == 1);
  CHECK(tau_of({{3, 10, 0}, {2, 20, 0}, {1, 30, 0}}).tau() == -1);
  // 1 2 3 4 against 1 3 2 4: one of six pairs is the wrong way round.
  const KendallTau one_wrong = tau_of({{1, 1, 0}, {2, 3, 0}, {3, 2, 0}, {4, 4, 0}});
  CHECK(one_wrong.concordant == 5);
  CHECK(one_wrong.discordant == 1);
  CHECK(one_wrong.tau() == Approx(4.0 / 6));
}

TEST_CASE("Pairs measured alike are left out, pairs only predicted alike count against it") {
  // 100 and 100.5 differ by less than 1 % of the longer: whatever is predicted of them.
  const KendallTau tied = tau_of({{2, 100, 0.01}, {1, 100.5, 0.01}, {3, 200, 0.01}});
  CHECK(tied.tied == 1);
  CHECK(tied.pairs() == 2);
  CHECK(tied.tau() == 1);
  const KendallTau equal = tau_of({{1, 100, 0.01}, {1, 150, 0.01}, {2, 200, 0.01}});
  CHECK(equal.predicted_equal == 1);
  CHECK(equal.tau() == Approx(2.0 / 3));
  CHECK(tau_of({{1, 1, 0}}).tau() == 1);  // no pair: nothing is out of order
}

TEST_CASE("Policies are ranked at the same batch only, and runs that scatter are told apart less") {
  // Across batches the order is reversed; within each it is right.
  std::vector<TestbedRow> rows = {row("mixed", "a", 2, 1.0, 5.0), row("mixed", "b", 2, 1.1, 5.5),
                                  row("mixed", "a", 4, 2.0, 2.0), row("mixed", "b", 4, 2.2, 2.2)};
  TestbedSummary s = summarize(rows);
  REQUIRE(s.regimes.size() == 1);
  CHECK(s.regimes[0].order.concordant == 2);
  CHECK(s.regimes[0].order.tau() == 1);
  // 5 % apart, with steps that scatter by 6 %, in the wrong order: tied, but not without ties.
  rows = {row("mixed", "a", 2, 1.1, 1.00, 0.06), row("mixed", "b", 2, 1.0, 1.05)};
  s = summarize(rows);
  CHECK(s.regimes[0].order.tied == 1);
  CHECK(s.regimes[0].order.tau() == 1);
  CHECK(s.regimes[0].strict.tau() == -1);
}

TEST_CASE("The targets hold or are missed, each by itself") {
  const std::vector<TestbedRow> good = {row("mixed", "a", 2, 1.00, 1.01),
                                        row("mixed", "b", 2, 2.00, 1.99),
                                        row("unthrottled", "a", 2, 1.06, 1.00)};
  CHECK(summarize(good).held());
  auto rows = good;
  rows[0].predicted_seconds = 1.10;  // 95th percentile: 8.9 %
  CHECK_FALSE(summarize(rows).held());
  rows = good;
  std::swap(rows[0].predicted_seconds, rows[1].predicted_seconds);  // the order
  CHECK_FALSE(summarize(rows).held());
  rows = good;
  rows[2].predicted_seconds = 1.09;  // unthrottled, over 8 %
  CHECK_FALSE(summarize(rows).held());
}

TEST_CASE("The tuned plan is held against the fastest other policy at its batch") {
  std::vector<TestbedRow> rows = {
      row("mixed", "a", 2, 1, 1.2),        row("mixed", "b", 2, 1, 1.1),
      row("mixed", "spillway", 2, 1, 1.0), row("mixed", "a", 4, 1, 0.9),
      row("unthrottled", "a", 2, 1, 1),    row("unthrottled", "spillway", 2, 1, 2)};
  TestbedSummary s = summarize(rows);
  REQUIRE(s.tuned.size() == 1);
  CHECK(s.tuned[0].other == "b");
  CHECK(s.tuned[0].speedup() == Approx(1.1));
  CHECK(s.tuned_held());
  rows[2].measured_seconds = 1.11;  // 1 % slower: a loss, though a small one
  CHECK(summarize(rows).slowest_tuned() == Approx(1.1 / 1.11));
  CHECK_FALSE(summarize(rows).tuned_held());
  rows[2].measured_seconds = 1.0;
  rows[2].weights_hash = "0000000000000000";
  CHECK_FALSE(summarize(rows).tuned_held());
}

TEST_CASE("The tuned plan may lose one time in ten, and no more than 2 %") {
  std::vector<TestbedRow> rows;
  for (std::int64_t batch = 1; batch <= 10; ++batch) {
    rows.push_back(row("mixed", "a", batch, 1, 1.1));
    rows.push_back(row("mixed", "spillway", batch, 1, 1.0));
  }
  rows.back().measured_seconds = 1.12;  // 1.8 % slower
  CHECK(summarize(rows).tuned_wins() == 9);
  CHECK(summarize(rows).tuned_held());
  rows.back().measured_seconds = 1.14;  // 3.5 %
  CHECK_FALSE(summarize(rows).tuned_held());
}

TEST_CASE("Kinds are summed over throttled configurations, most time first") {
  const TestbedSummary s = summarize(
      {row("mixed", "a", 2, 1, 1), row("mixed", "b", 2, 2, 2), row("unthrottled", "a", 2, 8, 8)});
  REQUIRE(s.kinds.size() == 2);
  CHECK(s.kinds[0].kind == "forward");
  CHECK(s.kinds[0].errors.count == 2);
  CHECK(s.kinds[0].errors.bias == Approx(1));  // half the step predicted, a quarter measured
  CHECK(s.kinds[0].measured_seconds == Approx(0.75));
}

TEST_CASE("A row survives JSON, and a table has a line for each and a column for every kind") {
  std::vector<TestbedRow> rows = {row("mixed", "fuyou:swap=auto", 2, 1.0 / 3, 0.34, 0.02),
                                  row("mixed", "zero-infinity:pipeline_read=on,x=1", 4, 1, 1)};
  rows[1].kinds.push_back({"read", 0.25, 0.5});
  for (const TestbedRow& r : rows)
    CHECK(to_json(row_from_json(to_json(r))).dump() == to_json(r).dump());
  const std::string csv = to_csv(rows);
  CHECK_THAT(csv, Catch::StartsWith("regime,policy,plan,weights_hash,throttled,tuned,batch,") &&
                      Catch::Contains("kinds.read.measured") &&
                      Catch::Contains("\"zero-infinity:pipeline_read=on,x=1\""));
  CHECK(std::count(csv.begin(), csv.end(), '\n') == 3);
}

TEST_CASE("The report shows targets, every regime, kind and configuration, and how it was made") {
  TestbedRegime regime;
  regime.name = "mixed";
  regime.description = "all alike";
  regime.throttle = "h2d=1GB/s";
  regime.rates = parse_throttle(regime.throttle);
  TestbedCircumstances c;
  c.command = "spillway testbed --quick";
  c.processor = "8 cores of a test";
  c.machine = load_machine("testbed");
  const std::string text = testbed_markdown(
      {regime}, {row("mixed", "a", 2, 1.00, 1.01), row("mixed", "b", 2, 2.30, 2.00)}, c);
  using Catch::Contains;
  CHECK_THAT(text, Contains("spillway testbed --quick") && Contains("8 cores of a test"));
  CHECK_THAT(text,
             Contains("over 2 throttled configurations: at most 3.00 % | 8.00 % | **missed**"));
  CHECK_THAT(text, Contains("| 1.000 in the worst | held |"));
  CHECK_THAT(text, Contains("`h2d=1GB/s`"));
  CHECK_THAT(text, Contains("| b | 2 | 2300.0 | 2000.0 | +15.00 % |"));
  CHECK_THAT(text, !Contains("unthrottled,"));  // there were none
}

TEST_CASE("A configuration is run again while its mean is not known to one per cent") {
  // Corrected / measured of each run; twice as slow a prediction changes nothing.
  const auto runs = [](const std::vector<double>& ratios, double scale) {
    std::vector<TestbedRow> rows;
    for (const double one : ratios) {
      rows.push_back(row("unthrottled", "a", 2, 1.0, 1.0, 0.03));
      rows.back().drift = {{"compute", 1.0}};
      rows.back().corrected_seconds = scale * one;
    }
    return rows;
  };
  for (const double scale : {1.0, 2.0}) {
    const auto restless = runs({0.9, 1.1, 0.94, 1.06, 1.0}, scale),
               calm = runs({0.99, 1.01, 1.0, 1.005, 0.995}, scale);
    CHECK(joined(calm).standard_error() < most_standard_error);
    CHECK(joined(restless).standard_error() > most_standard_error);
    CHECK_FALSE(wants_another_round(calm, 5, 15));
    CHECK(wants_another_round(restless, 5, 15));
    CHECK_FALSE(wants_another_round(restless, 5, 5));
    CHECK(wants_another_round(calm, 6, 15));
    // One run out of five that was disturbed is left out of the mean.
    CHECK_FALSE(wants_another_round(runs({0.99, 1.01, 1.0, 1.5, 0.995}, scale), 5, 15));
    // Nobody asked for enough of them to judge.
    CHECK(wants_another_round({}, 1, 15));
    CHECK_FALSE(wants_another_round(runs({1.0}, scale), 1, 15));
    CHECK_FALSE(wants_another_round(runs({0.9, 1.1}, scale), 2, 15));
  }
  // By hand: winsorized these are 1.0, 1.0, 1.1, 1.1, 1.2, 1.2.
  const TestbedRow six = joined(runs({0.5, 1.0, 1.1, 1.1, 1.2, 2.0}, 1.0));
  CHECK(six.standard_error() == Approx(0.08944 / std::sqrt(6.0) / (4.0 / 6) / 1.1).epsilon(1e-3));
}

TEST_CASE("What noise alone would show are the quantiles of the means' distributions") {
  CHECK(noise_alone({}).median == 0);
  const double never = std::numeric_limits<double>::infinity();
  const NoiseAlone same = noise_alone({0.02, 0.02, never, 0.02});
  CHECK(same.median == Approx(0.67449 * 0.02).epsilon(1e-4));
  CHECK(same.p95 == Approx(1.95996 * 0.02).epsilon(1e-4));
  // Nine of ten are known: the 95th percentile is the middle of what the tenth may be.
  std::vector<double> one_in_ten(10, 1e-6);
  one_in_ten[3] = 0.1;
  CHECK(noise_alone(one_in_ten).median < 1e-5);
  CHECK(noise_alone(one_in_ten).p95 == Approx(0.067449).epsilon(1e-3));
  CHECK(noise_alone({0, 0}).p95 == Approx(0).margin(1e-12));
}

TEST_CASE("Rounds are joined to their mean without the ends, and every run keeps its interval") {
  std::vector<TestbedRow> rounds;
  for (int i = 0; i < 5; ++i) {
    // The machine is 0 to 40 % slower; predictions follow, but in the last round.
    TestbedRow r = row("unthrottled", "a", 2, 1.0, 1.0 + 0.1 * i, 0.03);
    r.drift = {{"compute", 1.0 + 0.1 * i}};
    r.corrected_seconds = i == 4 ? 7.0 : 1.01 * r.measured_seconds;
    r.interval_low = 0.95 * r.corrected_seconds;
    r.interval_high = 1.05 * r.corrected_seconds;
    rounds.push_back(r);
  }
  rounds[0].corrected_seconds = 1.0;  // the lowest corrected / measured
  CHECK(joined({rounds[1]}).standard_error() > 1);
  CHECK(joined({rounds[0], rounds[1]}).standard_error() == Approx(0.005 / 1.005));  // of 1 and 1.01
  CHECK(joined({rounds[1], rounds[2], rounds[3]}).standard_error() == Approx(0).margin(1e-9));
  const TestbedRow one = joined(rounds);
  CHECK(one.runs == 5);
  CHECK(one.measured_seconds == Approx(1.2));  // of 1.1, 1.2, 1.3
  CHECK(one.corrected_error() == Approx(0.01));
  CHECK(one.drift.at("compute") == Approx(1.2));
  CHECK(one.kinds[0].measured == Approx(0.3));
  CHECK(one.scatter == Approx(0).margin(1e-9));  // of 1, 1.01, 1.01, 1.01, 5
  REQUIRE(one.each_run().size() == 5);
  CHECK(one.each_run()[4].measured_seconds == Approx(1.4));
  CHECK(joined({rounds[2]}).rounds.empty());
  CHECK(joined({rounds[2]}).scatter == 0.03);
  CHECK(to_json(row_from_json(to_json(one))).dump() == to_json(one).dump());
  const TestbedSummary s = summarize(std::vector<TestbedRow>{one});
  CHECK(s.corrected.errors.count == 1);
  CHECK(s.corrected.of_runs.count == 5);
  CHECK(s.corrected.of_runs.largest == Approx(4));
  CHECK(s.corrected.inside == 4);
  CHECK(s.corrected.share_inside() == Approx(0.8));
  CHECK(s.kinds_unthrottled.size() == 2);
  CHECK(to_json(s).at("corrected").at("single_runs").at("runs") == 5);
  // The ends that the row leaves out do not count in how well it is known, either.
  CHECK(one.standard_error() == Approx(0).margin(1e-9));
  CHECK(s.corrected.noise.median == Approx(0).margin(1e-9));
  CHECK(to_json(s).at("corrected").at("noise_alone").at("median") == s.corrected.noise.median);
}

TEST_CASE("Unthrottled rows are summed up raw and corrected for drift, with their intervals") {
  // Raw predictions are 20 % too fast; corrected ones 1 %, and 19 of 20 lie in their intervals.
  std::vector<TestbedRow> rows;
  for (int i = 0; i < 20; ++i) {
    TestbedRow r = row("unthrottled", "policy " + std::to_string(i), 2, 0.8 * (1 + i), 1 + i);
    r.drift = {{"compute", 1.25}};
    r.corrected_seconds = 0.99 * (1 + i);
    r.interval_low = i == 0 ? 1.1 : 0.9 * (1 + i);
    r.interval_high = 1.2 * (1 + i);
    rows.push_back(r);
  }
  const TestbedSummary s = summarize(rows);
  CHECK(s.unthrottled.median == Approx(0.2));
  CHECK(s.corrected.errors.median == Approx(0.01));
  CHECK(s.corrected.order.tau() == 1);
  CHECK(s.corrected.inside == 19);
  CHECK(s.corrected.held());
  const auto json = to_json(s);
  CHECK(json.at("unthrottled").at("median") == Approx(0.2));
  CHECK(json.at("corrected").at("median") == Approx(0.01));
  CHECK(json.at("corrected").at("share_inside") == Approx(0.95));
  CHECK(row_from_json(to_json(rows[3])).corrected_seconds == rows[3].corrected_seconds);
  CHECK(row_from_json(to_json(rows[3])).drift == rows[3].drift);
  CHECK(to_csv(rows).find("corrected_error") != std::string::npos);
  TestbedRegime regime;
  regime.name = "unthrottled";
  TestbedCircumstances circumstances;
  circumstances.machine = load_machine("testbed");
  const std::string page = testbed_markdown({regime}, rows, circumstances);
  CHECK(page.find("hold 85 to 95 % | 19 of 20, 95.0 % | held") != std::string::npos);
  CHECK(page.find("| -20.00 % | -1.00 % |") != std::string::npos);
  // All of them inside: the intervals are wider than they say.
  rows.front().interval_low = 0.5;
  CHECK_FALSE(summarize(rows).corrected.held());
  CHECK(summarize(std::vector<TestbedRow>()).corrected.held());
}

}  // namespace spillway
