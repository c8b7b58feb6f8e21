// Measures this computer for the simulator: kernels by shape, copies, the SSD, the optimizer.
//
// Every figure is the median of at least ten samples; the samples are kept in the machine file with
// their spread. Nothing overlaps while a figure is taken, except where overlap is what is measured
// (both copy directions, mixed reads and writes, the optimizer beside copies): calibrate without
// overlap, validate with it.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "policies/problem.hpp"

namespace spillway {

struct CalibrationOptions {
  // Whose kernels are measured, at each of these micro-batches; precision must be fp32.
  ModelSpec model;
  std::int64_t sequence = 256;
  std::vector<std::int64_t> micro_batches;
  std::vector<std::filesystem::path> ssd;  // directories of the ssd tier; one drive each
  int threads = 1;  // of matrix products and of the optimizer, as training will have
  int samples = 11;
  double most_seconds_per_figure = 3;  // a slow figure is given fewer samples, but never under ten
};

// Called before each figure: what is measured, and how many of how many are done.
using CalibrationProgress = std::function<void(const std::string& what, int done, int all)>;

// Throws MachineError when something cannot be measured (no room on the SSD, no io_uring).
Machine calibrate(const CalibrationOptions& options, const CalibrationProgress& progress);

}  // namespace spillway
