// Everything that `train` settles before the first step: what it goes on from, on which device,
// with which plan, in which folder.
#pragma once

#include <CLI/CLI.hpp>

#include <memory>
#include <string>

#include "cli/train/measure_machine.hpp"
#include "cli/train/train_options.hpp"
#include "exec/run/run_folder.hpp"
#include "exec/run/training.hpp"
#include "experiments/plan/train_plan.hpp"

namespace spillway::cli {

struct Preparation {
  TrainPlan plan;
  RunFolder folder;
  TrainingOptions training;
  std::string why_cpu;  // where the user left the choice to the program
  std::string other_machine;
  std::shared_ptr<MeasuredRates> rates;
  // Where the device says what takes long while it is made; nothing listens until this is set.
  std::shared_ptr<std::function<void(const std::string&)>> listener;
  IoChoice io;  // of the store, where there is one
};

// Throws InputError, FitError, MachineError; the folder of a new run is then gone again.
Preparation prepare(CLI::App& command, TrainOptions& options);

}  // namespace spillway::cli
