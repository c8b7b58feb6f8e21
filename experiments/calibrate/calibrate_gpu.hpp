// Measures a GPU for the simulator (calibrate() with CalibrationOptions::gpu): kernels by shape on
// the device's own clock, copies, what lies between tasks, the optimizer on both sides, the drives.
#pragma once

#include "experiments/calibrate/calibrate.hpp"

namespace spillway {

Machine calibrate_gpu(const CalibrationOptions& options, const CalibrationProgress& progress,
                      const CalibrationNote& note);

}  // namespace spillway
