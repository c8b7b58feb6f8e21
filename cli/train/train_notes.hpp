// What `train` says about its text and its machine before it starts, and model files that it does
// not take.
#pragma once

#include <string>

#include "experiments/train/training_data.hpp"
#include "experiments/watch/training_events.hpp"
#include "policies/machine/machine.hpp"

namespace spillway::cli {

// How documents were packed: what of them, and how well.
std::string packing_text(const DataSummary& data);

// In one line, what it means that a machine file (`machine`) describes a GPU and the CPU trains, or
// the other way round; empty where both are of one kind. `why_cpu`: why there is no GPU, where that
// is known.
std::string other_machine_note(const Machine& machine, bool trains_on_gpu,
                               const std::string& why_cpu);

// Throws InputError where `model`, given for a new run, is the folder of an earlier run or the
// model.toml in it: its shape alone would start from random weights, which is not going on with it.
void refuse_model_of_run(const std::string& model);

}  // namespace spillway::cli
