// Policy `auto` without a machine file: this computer is measured for a few seconds, or was before.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <vector>

#include "exec/run/cuda_module.hpp"
#include "exec/store/store_location.hpp"
#include "exec/throttle/throttle_rates.hpp"
#include "experiments/calibrate/calibrate.hpp"

namespace spillway {

// Where the rates of a training come from, when no machine file says.
struct MeasuredRates {
  bool known = false;
  double seconds = 0;  // that it took; 0: they were kept from before
  std::filesystem::path kept_in;
};

struct MeasureOptions {
  DriveFolders drives;
  IoChoice io;  // of the drives
  int threads = 1;
  std::optional<CudaGpu> gpu;
  ThrottleRates throttle;
  std::function<void(const Message&)> note;  // may be empty
  CalibrationProgress progress;              // may be empty
};

// What TrainHardware::measure is; fills in `rates` when it is called.
std::function<Machine(const Problem&, const std::vector<std::int64_t>&)> measure_this_machine(
    const MeasureOptions& options, std::shared_ptr<MeasuredRates> rates);

}  // namespace spillway
