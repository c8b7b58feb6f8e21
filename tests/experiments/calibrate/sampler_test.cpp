#include "experiments/calibrate/sampler.hpp"

#include <catch2/catch.hpp>
#include <cmath>
#include <random>

#include "experiments/calibrate/statistics.hpp"

namespace spillway {
namespace {

TEST_CASE("median and spread of known samples") {
  // Sorted: 10 20 ... 110. Median 60; p20 is 30, p80 is 90: (90 - 30) / 60 = 1.
  std::vector<std::int64_t> samples;
  for (std::int64_t i = 11; i >= 1; --i) samples.push_back(10 * i);
  CHECK(median_ns(samples) == 60);
  CHECK(spread(samples) == Approx(1.0));
  CHECK(spread({5, 5, 5}) == 0);
  // One spike moves neither much.
  samples[0] = 1'000'000;
  CHECK(median_ns(samples) == 60);
}

TEST_CASE("at least ten samples are taken after the warm-up, whatever is asked") {
  int prepared = 0, worked = 0;
  SamplingRule rule;
  rule.samples = 3;
  rule.warm_up = 2;
  rule.most_seconds = 0;
  const auto samples = sample_ns(
      rule, [&] { ++worked; }, [&] { ++prepared; });
  CHECK(samples.size() == 10);
  CHECK(worked == 12);
  CHECK(prepared == 12);
  rule.samples = 25;
  rule.most_seconds = 100;
  CHECK(sample_ns(rule, [] {}).size() == 25);
}

TEST_CASE("where one sample is enough, work that takes long is done once") {
  SamplingRule rule{5, 1, 0, 1};
  int worked = 0;
  CHECK(sample_ns(rule, [&] { ++worked; }).size() == 1);
  CHECK(worked == 1);  // the first one counts: there was no time to warm up
  rule.most_seconds = 100;
  CHECK(sample_ns(rule, [&] { ++worked; }).size() == 5);
  CHECK(worked == 7);
}

TEST_CASE("samples are held to one speed by what is told of the machine's before and after each") {
  // The machine slows down by a tenth of its usual time with every sample.
  double slower = 1;
  SamplingRule rule{10, 0, 100};
  rule.slowness = [&] { return slower; };
  const auto samples = collect_ns(rule, [&] {
    const double began = slower;
    slower += 0.1;
    return std::llround(1e6 * (began + slower) / 2);
  });
  CHECK(samples == std::vector<std::int64_t>(10, 1'000'000));
}

TEST_CASE("the trimmed mean leaves a tenth out at either end, and of two speeds is between them") {
  CHECK(trimmed_mean({}) == 0);
  CHECK(trimmed_mean({1, 3}) == 2);
  CHECK(trimmed_mean({1, 2, 3, 100, -100}) == 2);
  std::vector<double> two_speeds(20, 1.0);
  for (std::size_t i = 0; i < 10; ++i) two_speeds[i] = 1.5;
  CHECK(trimmed_mean(two_speeds) == Approx(1.25));
}

TEST_CASE("the fit finds latency and rate of an exact line, and stays sane off it") {
  // y = 50 us + x / (2 GB/s)
  std::vector<std::pair<double, double>> points;
  for (const double bytes : {65536.0, 1048576.0, 16777216.0})
    points.emplace_back(bytes, 50e-6 + bytes / 2e9);
  LatencyAndRate fit = fit_latency_and_rate(points);
  CHECK(fit.latency_seconds == Approx(50e-6));
  CHECK(fit.rate == Approx(2e9));
  // Larger is relatively faster than proportional and smaller slower would need a negative latency:
  // none is given.
  fit = fit_latency_and_rate({{1e6, 1e-3}, {2e6, 4e-3}});
  CHECK(fit.latency_seconds == 0);
  CHECK(fit.rate > 0);
  fit = fit_latency_and_rate({{1e6, 1e-3}});
  CHECK(fit.rate == Approx(1e9));
  // Noise of 5 % moves the rate by no more than about that.
  std::mt19937_64 random(11);
  std::uniform_real_distribution<double> noise(0.95, 1.05);
  for (auto& [x, y] : points) y *= noise(random);
  fit = fit_latency_and_rate(points);
  CHECK(fit.rate == Approx(2e9).epsilon(0.12));
}

}  // namespace
}  // namespace spillway
