// What `train` says about its text and its machine before it starts, and model files that it does
// not take.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "experiments/train/training_data.hpp"
#include "policies/machine/machine.hpp"

namespace spillway::cli {

// Files, bytes, and what was skipped with the first few reasons.
// The first files of the text, and how many more there are: a resumed run takes them from its
// folder, which may come from somebody else.
std::vector<std::string> shown_data(const DataSummary& data);

// How documents were packed: what of them, and how well.
nlohmann::ordered_json packing_json(const DataSummary& data);
std::string packing_text(const DataSummary& data);

nlohmann::ordered_json data_json(const DataSummary& data);

// In one line, what it means that a machine file (`machine`) describes a GPU and the CPU trains, or
// the other way round; empty where both are of one kind. `why_cpu`: why there is no GPU, where that
// is known.
std::string other_machine_note(const Machine& machine, bool trains_on_gpu,
                               const std::string& why_cpu);

// Throws InputError where `model`, given for a new run, is the folder of an earlier run or the
// model.toml in it: its shape alone would start from random weights, which is not going on with it.
void refuse_model_of_run(const std::string& model);

}  // namespace spillway::cli
