// How much slower this computer is than when it was calibrated, by what its reference kernels take
// (reference_kernels.hpp); and the machine as it is now.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "policies/machine/machine.hpp"

namespace spillway {

// What a reference takes on the whole: the trimmed mean of its samples (statistics.hpp), or the
// median where the machine file has no samples.
double typical_ns(const KernelTime& reference);

// Time now / time when calibrated, by kind of reference; kinds that one of both lacks, or has in
// another shape, are not there. Empty: nothing is known.
using Drift = std::map<std::string, double>;
Drift drift_between(const std::vector<KernelTime>& calibrated, const std::vector<KernelTime>& now);

// The machine with every rate divided by the drift of its own reference, none fitted to a run:
//
//   compute        gpu.flops, kernels of compute tasks
//   adam           host.adam_rate, gpu.adam_rate, norms of gradients
//   copy, copies   pcie.h2d, pcie.d2h, host.core_bandwidth; host.bandwidth
//   read, write    ssd.read, ssd.write with their latencies; ssd.total by the mean of both
//
// For the CPU backend, unthrottled.
Machine drifted_machine(Machine machine, const Drift& drift);

// The means of the references of the processor, of its memory and of the drives.
struct DriftShares {
  std::optional<double> compute, memory, drive;
};
DriftShares drift_shares(const Drift& drift);

// "12 % slower than when it was calibrated (compute 10 %, memory 14 %, drive 3 %)"; `slower`: of
// the step as a whole, 0.12.
std::string drift_text(const Drift& drift, double slower);

}  // namespace spillway
