// What `export` and `merge` share: how weights are written, and what is said meanwhile.
#pragma once

#include <CLI/CLI.hpp>

#include <string>

#include "cli/options/io_option.hpp"
#include "cli/stop_signals.hpp"
#include "cli/text/progress.hpp"
#include "exec/data/model_writer.hpp"

namespace spillway::cli {

struct WeightsOutput {
  std::string type = "fp32", most_bytes = "5GB";
  IoOption io;
  bool json = false;

  // Adds --dtype, --max-shard, --io and --json.
  void add_to(CLI::App& command);
};

// While it lives, says how much is written and lets Ctrl-C end it, with nothing left behind.
class WritingWeights {
 public:
  // `during`: "while exporting".
  WritingWeights(const WeightsOutput& output, std::string during);

  // What is asked for, told of by show().
  WeightFiles files();
  // "DOING 3 GB of 16 GB"; throws Interrupted where a signal has come.
  void show(const char* doing, std::uint64_t done, std::uint64_t all);
  // The line of progress ends: what is printed next has a line of its own.
  void finish() { progress_.finish(); }

 private:
  const WeightsOutput& output_;
  std::string during_;
  StopSignals signals_;
  Progress progress_;
};

// "16 GB in 4 files".
std::string in_files_text(std::uint64_t bytes, std::size_t files);

}  // namespace spillway::cli
