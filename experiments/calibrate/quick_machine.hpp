// This computer's rates without a machine file: measured briefly for one workload, or as they were
// kept when that was done before.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "exec/store/store_location.hpp"
#include "experiments/calibrate/calibrate.hpp"

namespace spillway {

struct QuickMachineRequest {
  // Whose kernels are measured, as they will be trained: model, sequence, precision, and sequences
  // at once (0: as many as training chooses).
  ModelSpec model;
  Workload workload;
  std::vector<std::int64_t> micro_batches;
  int threads = 1;
  DriveFolders drives;                // directories of the ssd tier; they exist
  IoChoice io = usual_io();           // how drives are read and written
  std::string device = "cpu";         // what tells it from other devices of this computer
  std::function<GpuUnderTest()> gpu;  // opened only where it is measured; empty: the CPU
};

struct QuickMachine {
  Machine machine;
  bool measured_now = false;
  std::filesystem::path kept_in;  // empty: it is not kept,
  std::string not_kept;           // and this is why
};

// What identifies the measurement: program, computer, device, drives, kernels. `root` stands in for
// / in tests.
std::string identity_of(const QuickMachineRequest& request,
                        const std::filesystem::path& root = "/");

// `cache`: a folder (user_cache_folder()), or none. `begin` is called before anything is measured.
// Throws what calibrate() throws, but for drives that cannot be measured: they are left out, with a
// note, and the machine is not kept.
QuickMachine quick_machine(const QuickMachineRequest& request,
                           const std::optional<std::filesystem::path>& cache,
                           const std::function<void()>& begin, const CalibrationProgress& progress,
                           const CalibrationNote& note);

}  // namespace spillway
