// Repeated timing of one piece of work: warm-up, samples, median, spread.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "policies/machine/machine.hpp"

namespace spillway {

struct SamplingRule {
  int samples = 11;
  int warm_up = 2;
  double most_seconds = 3;  // stop after `least` samples when this is used up
  int least = 10;           // a single one may be the first warm-up, where that took too long
  // Where given, how much slower the machine is at this moment than usual (1.1: by a tenth); asked
  // before and after each sample, which is divided by the mean of both.
  std::function<double()> slowness = {};
};

// Times `work` again and again; `prepare` (may be empty) runs before each, untimed.
std::vector<std::int64_t> sample_ns(const SamplingRule& rule, const std::function<void()>& work,
                                    const std::function<void()>& prepare = {});

// The same for work that tells its own nanoseconds, such as those of a GPU's clock.
std::vector<std::int64_t> collect_ns(const SamplingRule& rule,
                                     const std::function<std::int64_t()>& measure);

std::int64_t median_ns(std::vector<std::int64_t> samples);

// (p80 - p20) / median
double spread(std::vector<std::int64_t> samples);

// As an entry of the machine file.
KernelTime kernel_time(std::string kind, std::string shape, double flops,
                       std::vector<std::int64_t> samples);

// The line latency + amount / rate through measured (amount, seconds) points, by least squares of
// the relative error. The latency is not negative, the rate positive.
struct LatencyAndRate {
  double latency_seconds = 0;
  double rate = 0;  // amount per second
};
LatencyAndRate fit_latency_and_rate(const std::vector<std::pair<double, double>>& points);

inline double seconds_of(const KernelTime& time) {
  return static_cast<double>(time.median_ns) / 1e9;
}

// Runs `other` over and over on a second thread while `measure` runs, and returns what `measure`
// returns. An exception of either comes out of this call.
template <class Other, class Measure>
auto beside(Other other, Measure measure) {
  std::atomic<bool> stop{false}, running{false};
  std::exception_ptr failure;
  const auto work = [&] {
    try {
      while (!stop.load(std::memory_order_relaxed)) {
        other();
        running = true;
      }
    } catch (...) {
      failure = std::current_exception();
      running = true;
    }
  };
  const auto result = [&] {
    // Joined on every way out of this scope.
    struct Joined {
      std::atomic<bool>& stop;
      std::thread thread;
      ~Joined() {
        stop = true;
        thread.join();
      }
    };
    const Joined joined{stop, std::thread(work)};
    while (!running) std::this_thread::yield();
    return measure();
  }();
  if (failure) std::rethrow_exception(failure);
  return result;
}

}  // namespace spillway
