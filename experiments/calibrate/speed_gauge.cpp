#include "experiments/calibrate/speed_gauge.hpp"

#include <algorithm>
#include <cmath>

#include "base/errors.hpp"

namespace spillway {

namespace {

constexpr int references_beside = 3;  // before, and after

template <class References>
auto& of_kind(References& references, const std::string& kind) {
  const auto found = std::find_if(references.begin(), references.end(),
                                  [&](const KernelTime& one) { return one.kind == kind; });
  SPILLWAY_ASSERT(found != references.end(), "a reference of this kind");
  return *found;
}

}  // namespace

SpeedGauge::SpeedGauge(const std::vector<std::filesystem::path>& directories, const IoChoice& io)
    : kernels_(directories, io), first_(kernels_.take(calibration_rounds)), all_(first_) {}

double SpeedGauge::slowness(const std::string& kind) {
  const std::int64_t ns = kernels_.time(kind);
  of_kind(all_, kind).samples_ns.push_back(ns);
  return static_cast<double>(ns) / typical_ns(of_kind(first_, kind));
}

SamplingRule SpeedGauge::held(SamplingRule rule, const std::string& kind) {
  rule.slowness = [this, kind] { return slowness(kind); };
  return rule;
}

std::vector<std::int64_t> SpeedGauge::held(
    const std::string& kind, const std::function<std::vector<std::int64_t>()>& measure) {
  double sum = 0;
  const auto take = [&] {
    for (int i = 0; i < references_beside; ++i) sum += slowness(kind);
  };
  take();
  std::vector<std::int64_t> samples = measure();
  take();
  for (std::int64_t& sample : samples)
    sample = std::llround(static_cast<double>(sample) * 2 * references_beside / sum);
  return samples;
}

void SpeedGauge::finish(Machine& machine) {
  all_ = joined(all_, kernels_.take(calibration_rounds));
  Drift drift = drift_between(first_, all_);
  drift.erase("read");
  drift.erase("write");
  machine = drifted_machine(std::move(machine), drift);
  machine.references = all_;
}

}  // namespace spillway
