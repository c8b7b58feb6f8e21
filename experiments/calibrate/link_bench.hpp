// Measures what lies between and beside a GPU's kernels: copies, gaps between tasks, the way from a
// stream to a thread of the host and back, and the optimizer on either side.
#pragma once

#include <functional>
#include <string>

#include "experiments/calibrate/calibrate.hpp"

namespace spillway {

// Fills in of `machine`: gpu.launch, gpu.adam_rate, gpu.memory_bandwidth, pcie, host.bandwidth,
// host.adam_*, host.sync and host.wake, with all samples. `problem`: whose layer the optimizer
// updates. `next` is told what comes, link_figures(options) times.
void measure_links(const Problem& problem, const CalibrationOptions& options,
                   const SamplingRule& rule, Machine& machine,
                   const std::function<void(const std::string&)>& next);

int link_figures(const CalibrationOptions& options);

}  // namespace spillway
