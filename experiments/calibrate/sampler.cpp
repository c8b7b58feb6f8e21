#include "experiments/calibrate/sampler.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>

#include "base/errors.hpp"

namespace spillway {

namespace {

using Clock = std::chrono::steady_clock;

std::int64_t quantile(std::vector<std::int64_t>& sorted, double q) {
  return sorted[static_cast<std::size_t>(q * static_cast<double>(sorted.size() - 1) + 0.5)];
}

}  // namespace

std::vector<std::int64_t> sample_ns(const SamplingRule& rule, const std::function<void()>& work,
                                    const std::function<void()>& prepare) {
  return collect_ns(rule, [&] {
    if (prepare) prepare();
    const auto start = Clock::now();
    work();
    return std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - start).count();
  });
}

std::vector<std::int64_t> collect_ns(const SamplingRule& rule,
                                     const std::function<std::int64_t()>& measure) {
  std::vector<std::int64_t> samples;
  const auto began = Clock::now();
  double before = rule.slowness ? rule.slowness() : 1;
  for (int i = 0; i < rule.warm_up + std::max(rule.samples, rule.least); ++i) {
    std::int64_t time = measure();
    if (rule.slowness) {
      const double after = rule.slowness();
      time = std::llround(static_cast<double>(time) * 2 / (before + after));
      before = after;
    }
    const double used = std::chrono::duration<double>(Clock::now() - began).count();
    if (i < rule.warm_up && (rule.least > 1 || used <= rule.most_seconds)) continue;
    samples.push_back(time);
    if (static_cast<int>(samples.size()) >= rule.least && used > rule.most_seconds) break;
  }
  return samples;
}

std::int64_t median_ns(std::vector<std::int64_t> samples) {
  SPILLWAY_ASSERT(!samples.empty());
  std::sort(samples.begin(), samples.end());
  return quantile(samples, 0.5);
}

double spread(std::vector<std::int64_t> samples) {
  SPILLWAY_ASSERT(!samples.empty());
  std::sort(samples.begin(), samples.end());
  const double middle = static_cast<double>(quantile(samples, 0.5));
  return middle > 0 ? static_cast<double>(quantile(samples, 0.8) - quantile(samples, 0.2)) / middle
                    : 0;
}

KernelTime kernel_time(std::string kind, std::string shape, double flops,
                       std::vector<std::int64_t> samples) {
  KernelTime time;
  time.kind = std::move(kind);
  time.shape = std::move(shape);
  time.flops = flops;
  time.median_ns = median_ns(samples);
  time.spread = spread(samples);
  time.samples_ns = std::move(samples);
  return time;
}

LatencyAndRate fit_latency_and_rate(const std::vector<std::pair<double, double>>& points) {
  SPILLWAY_ASSERT(!points.empty());
  // Minimise sum ((latency + slope x - y) / y)^2: a 2 x 2 linear system.
  double s1 = 0, sx = 0, sxx = 0, sy = 0, sxy = 0;
  for (const auto& [x, y] : points) {
    const double w = 1 / (y * y);
    s1 += w;
    sx += w * x;
    sxx += w * x * x;
    sy += w * y;
    sxy += w * x * y;
  }
  const double determinant = s1 * sxx - sx * sx;
  double latency = determinant > 0 ? (sy * sxx - sxy * sx) / determinant : 0;
  double slope = determinant > 0 ? (s1 * sxy - sx * sy) / determinant : sxy / sxx;
  if (latency < 0 || slope <= 0) {
    latency = 0;
    slope = sxy / sxx;
  }
  return {latency, 1 / slope};
}

}  // namespace spillway
