// What calibrate() does otherwise where it is brief.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "exec/run/arena.hpp"
#include "experiments/calibrate/calibrate.hpp"
#include "experiments/calibrate/sampler.hpp"

namespace spillway {

SamplingRule sampling_rule(const CalibrationOptions& options, int warm_up);

inline constexpr GpuCalibrationSizes brief_gpu_sizes = {0.02, 0, std::uint64_t{256} << 20,
                                                        std::uint64_t{16} << 20};

// Of the problems (of one micro-batch each), the smallest first, those whose kernels on the CPU
// take a few seconds together and no more than half of the memory there is. Where that is none of
// them, one that is smaller in micro-batch, sequence or width: others are extrapolated from it.
std::vector<Problem> brief_problems(std::vector<Problem> problems, int threads);

// Figures of all sets of drives of the options.
int drive_sets_figures(const CalibrationOptions& options);
// measure_drives() for the directories of the options, set by set. Where it is brief, drives that
// cannot be measured are left out, with a note.
void measure_drives_of(const CalibrationOptions& options, const SamplingRule& rule,
                       const Arena& memory, Machine& machine,
                       const std::function<void(const std::string&)>& next,
                       const CalibrationNote& note);

}  // namespace spillway
