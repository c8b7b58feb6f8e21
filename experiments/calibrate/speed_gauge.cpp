#include "experiments/calibrate/speed_gauge.hpp"

#include <algorithm>
#include <cmath>

#include "base/errors.hpp"

namespace spillway {

namespace {

// What references of the processor say holds for so long; one round after one that is not timed
// takes 0.3 s, and without the drives: hundreds of rounds would be minutes of writing.
constexpr int rounds_between = 1;
constexpr std::chrono::milliseconds time_between{1000};

const KernelTime& of_kind(const std::vector<KernelTime>& references, const std::string& kind) {
  const auto found = std::find_if(references.begin(), references.end(),
                                  [&](const KernelTime& one) { return one.kind == kind; });
  SPILLWAY_ASSERT(found != references.end(), "a reference of this kind");
  return *found;
}

}  // namespace

SpeedGauge::SpeedGauge(const std::vector<std::filesystem::path>& directories, const IoChoice& io)
    : kernels_(directories, io),
      first_(kernels_.take(calibration_rounds)),
      latest_(first_),
      all_(first_),
      taken_(std::chrono::steady_clock::now()) {}

void SpeedGauge::take() {
  latest_ = kernels_.take(rounds_between, false);
  all_ = joined(all_, latest_);
  taken_ = std::chrono::steady_clock::now();
}

double SpeedGauge::slowness(const std::string& kind) {
  if (std::chrono::steady_clock::now() - taken_ > time_between) take();
  return typical_ns(of_kind(latest_, kind)) / typical_ns(of_kind(first_, kind));
}

SamplingRule SpeedGauge::held(SamplingRule rule, const std::string& kind) {
  rule.slowness = [this, kind] { return slowness(kind); };
  return rule;
}

std::vector<std::int64_t> SpeedGauge::held(
    const std::string& kind, const std::function<std::vector<std::int64_t>()>& measure) {
  take();
  const double before = slowness(kind);
  std::vector<std::int64_t> samples = measure();
  take();
  const double after = slowness(kind);
  for (std::int64_t& sample : samples)
    sample = std::llround(static_cast<double>(sample) * 2 / (before + after));
  return samples;
}

void SpeedGauge::take_with_drives() { all_ = joined(all_, kernels_.take(rounds_between)); }

void SpeedGauge::finish(Machine& machine) {
  all_ = joined(all_, kernels_.take(calibration_rounds));
  Drift drift = drift_between(first_, all_);
  drift.erase("read");
  drift.erase("write");
  machine = drifted_machine(std::move(machine), drift);
  machine.references = all_;
}

}  // namespace spillway
