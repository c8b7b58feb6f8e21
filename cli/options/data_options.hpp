// What the model is to see: options of `data show` and `tokenize`, which `train` has, too.
#pragma once

#include <CLI/CLI.hpp>

#include "experiments/train/training_data.hpp"

namespace spillway::cli {

// Tokenizer, format, template and what is trained on.
void add_document_options(CLI::App& command, DataSettings& settings);
// The same, and how documents are packed.
void add_data_options(CLI::App& command, DataSettings& settings);

}  // namespace spillway::cli
