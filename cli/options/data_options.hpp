// What the model is to see: the options that train and `data show` share.
#pragma once

#include <CLI/CLI.hpp>

#include "experiments/train/training_data.hpp"

namespace spillway::cli {

// Tokenizer, format, template and what is trained on.
void add_document_options(CLI::App& command, DataSettings& settings);
// The same, and how documents are packed; `named`: --data names what is taken (else the command's
// own arguments do).
void add_data_options(CLI::App& command, DataSettings& settings, bool named);

}  // namespace spillway::cli
