// The model that `spillway generate` and `spillway chat` let speak, and how.
#pragma once

#include <CLI/CLI.hpp>

#include "cli/options/io_option.hpp"
#include "experiments/generate/speaker.hpp"

namespace spillway::cli {

struct SpeakerOptions {
  SpeakerRequest request;
  GenerateOptions generate;
  std::string memory;
  IoOption io;

  void add_to(CLI::App& command);
  // What was given, checked.
  SpeakerRequest chosen() const;
};

}  // namespace spillway::cli
