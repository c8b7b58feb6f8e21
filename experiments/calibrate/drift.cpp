#include "experiments/calibrate/drift.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <optional>

#include "experiments/calibrate/statistics.hpp"

namespace spillway {

namespace {

double factor_of(const Drift& drift, const char* kind) {
  const auto found = drift.find(kind);
  return found == drift.end() ? 1 : found->second;
}

std::optional<double> mean_of(const Drift& drift, std::initializer_list<const char*> kinds) {
  double sum = 0;
  int count = 0;
  for (const char* kind : kinds) {
    if (drift.count(kind) == 0) continue;
    sum += factor_of(drift, kind);
    ++count;
  }
  if (count == 0) return std::nullopt;
  return sum / count;
}

std::int64_t stretched(std::int64_t ns, double factor) {
  return std::llround(static_cast<double>(ns) * factor);
}

void stretch(KernelTime& kernel, double factor) {
  kernel.median_ns = stretched(kernel.median_ns, factor);
  for (std::int64_t& sample : kernel.samples_ns) sample = stretched(sample, factor);
}

// The reference of a measured kernel: that of compute for kinds that have no rate of their own.
const char* reference_of(const KernelTime& kernel) {
  const std::string& kind = kernel.kind;
  if (kind == "optimizer" || kind == "gradient_norm") return "adam";
  const bool is_beside = kernel.shape.find("beside=") != std::string::npos;
  if (kind == "h2d" || kind == "d2h") return is_beside ? "copies" : "copy";
  if (kind == "read") return "read";
  if (kind == "write") return "write";
  return kind == "barrier" ? "" : "compute";
}

// "10 %"; what became faster has a minus.
std::string share_text(double factor) { return fmt::format("{:.0f} %", 100 * (factor - 1)); }

}  // namespace

double typical_ns(const KernelTime& reference) {
  if (reference.samples_ns.empty()) return static_cast<double>(reference.median_ns);
  return trimmed_mean({reference.samples_ns.begin(), reference.samples_ns.end()});
}

Drift drift_between(const std::vector<KernelTime>& calibrated, const std::vector<KernelTime>& now) {
  Drift drift;
  for (const KernelTime& then : calibrated) {
    const auto same = std::find_if(now.begin(), now.end(), [&](const KernelTime& one) {
      return one.kind == then.kind && one.shape == then.shape;
    });
    if (same == now.end() || !(typical_ns(then) > 0) || !(typical_ns(*same) > 0)) continue;
    drift[then.kind] = typical_ns(*same) / typical_ns(then);
  }
  return drift;
}

Machine drifted_machine(Machine machine, const Drift& drift) {
  const auto of = [&](const char* kind) { return factor_of(drift, kind); };
  for (KernelTime& kernel : machine.kernels) stretch(kernel, of(reference_of(kernel)));
  machine.gpu.flops /= of("compute");
  machine.gpu.adam_params_per_second /= of("adam");
  machine.host.adam_params_per_second /= of("adam");
  machine.host.bandwidth /= of("copies");
  machine.host.core_bandwidth /= of("copy");
  machine.pcie.h2d /= of("copy");
  machine.pcie.d2h /= of("copy");
  for (int set = 0; set < most_drive_sets; ++set) {
    Machine::Ssd& drives = machine.drives(set);
    drives.read /= of("read");
    drives.write /= of("write");
    drives.total /= mean_of(drift, {"read", "write"}).value_or(1);
    drives.read_latency_ns = stretched(drives.read_latency_ns, of("read"));
    drives.write_latency_ns = stretched(drives.write_latency_ns, of("write"));
  }
  // What the machine's speed was is not known any better than before.
  for (KernelTime& reference : machine.references) stretch(reference, of(reference.kind.c_str()));
  return machine;
}

DriftShares drift_shares(const Drift& drift) {
  return {mean_of(drift, {"compute"}), mean_of(drift, {"adam", "copy", "copies"}),
          mean_of(drift, {"read", "write"})};
}

std::string drift_text(const Drift& drift, double slower) {
  std::string parts;
  const auto add = [&](const char* name, std::optional<double> factor) {
    if (factor)
      parts += fmt::format("{}{} {}", parts.empty() ? "" : ", ", name, share_text(*factor));
  };
  const DriftShares shares = drift_shares(drift);
  add("compute", shares.compute);
  add("memory", shares.memory);
  add("drive", shares.drive);
  const bool alike = std::lround(100 * std::abs(slower)) == 0;
  return fmt::format("{} when it was calibrated ({})",
                     alike ? "as fast as"
                           : fmt::format("{:.0f} % {} than", 100 * std::abs(slower),
                                         slower > 0 ? "slower" : "faster"),
                     parts);
}

}  // namespace spillway
