// Training from start to end: everything that is needed is taken before the first step, then the
// schedule is run again and again until all steps are done.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "exec/cpu_device.hpp"
#include "exec/dataset.hpp"
#include "exec/executor.hpp"
#include "exec/ssd_store.hpp"
#include "policies/policy.hpp"
#include "traces/trace.hpp"

namespace spillway {

struct TrainingOptions {
  Problem problem;  // machine.gpu.memory and machine.host.memory are the limits to keep
  std::string policy;
  std::int64_t steps = 100;
  std::uint64_t seed = 1;
  std::vector<std::filesystem::path> data;
  std::vector<std::filesystem::path> ssd;  // directories of the ssd tier
  OptimizerSettings optimizer;
  // Memory taken beyond the planned peaks of the gpu and host tiers, which nothing may touch: for
  // tests.
  std::uint64_t guard_bytes = 0;
};

struct TrainingResult {
  std::int64_t steps = 0;
  double first_loss = 0, final_loss = 0;
  std::uint64_t weights_hash = 0;
};

class Training {
 public:
  // Steps of the schedule that is run again and again; a trace shows runs of this length.
  static constexpr int steps_per_run = 10;
  // Spans kept for the trace at most; what comes after is not recorded.
  static constexpr std::size_t most_spans = 200'000;

  // Builds the schedule, checks that it fits, takes memory, reserves the ssd tier, reads the data,
  // writes the initial weights. Throws FitError, InputError, MachineError before anything is left
  // behind.
  explicit Training(TrainingOptions options);

  const Schedule& schedule() const { return *schedule_; }
  std::vector<std::string> warnings() const;
  std::string device_name() const { return device_->name(); }
  const Dataset& dataset() const { return *dataset_; }

  // Trains. `report` is called after each step; when `stop` (may be empty) returns true the
  // training ends after the running run of the schedule. `trace` may be null. A loss that is not
  // finite ends it with a MachineError that names the step.
  TrainingResult run(const std::function<void(const StepResult&)>& report, Trace* trace,
                     const std::function<bool()>& stop = {});

  // The highest byte any task touched per tier, for comparison with the plan's peak.
  std::uint64_t highest_use(Tier tier) const { return executor_->highest_use(tier); }
  // The same, found in the arenas themselves (gpu and host tiers): one past the last byte ever
  // written.
  std::uint64_t highest_written(Tier tier) const;

  // Writes the trained fp32 weights as Hugging Face GPT-2 safetensors.
  void export_model(const std::filesystem::path& path);

 private:
  TrainingOptions options_;
  std::unique_ptr<Schedule> schedule_;   // of steps_per_run steps
  std::unique_ptr<Schedule> remainder_;  // of what is left at the end; null if nothing is
  std::unique_ptr<Dataset> dataset_;
  std::unique_ptr<SsdStore> store_;
  std::unique_ptr<CpuDevice> device_;
  std::unique_ptr<Executor> executor_;
};

}  // namespace spillway
