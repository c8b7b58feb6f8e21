// `train --policy auto` without a machine file: this computer is measured for a few seconds, or was
// before.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "exec/cpu/throttle_rates.hpp"
#include "exec/run/cuda_module.hpp"
#include "experiments/calibrate/calibrate.hpp"
#include "experiments/plan/train_plan.hpp"

namespace spillway::cli {

// One line on standard error: what is measured now, how much is done, and how long the rest takes.
// A signal to stop ends it: StopSignals::check().
CalibrationProgress measuring_progress(bool quiet);

// Where the rates of a training come from, when no machine file says.
struct MeasuredRates {
  bool known = false;
  double seconds = 0;  // that it took; 0: they were kept from before
  std::filesystem::path kept_in;

  std::string text() const;
  nlohmann::ordered_json json() const;
};

struct MeasureOptions {
  std::vector<std::filesystem::path> drives;
  IoChoice io;  // of the drives
  int threads = 1;
  std::optional<CudaGpu> gpu;
  ThrottleRates throttle;
  bool quiet = false;
};

// What TrainHardware::measure is; fills in `rates` when it is called.
std::function<Machine(const Problem&, const std::vector<std::int64_t>&)> measure_this_machine(
    const MeasureOptions& options, std::shared_ptr<MeasuredRates> rates);

}  // namespace spillway::cli
