// `tune --benchmark`: tuned plans against built-in policies on a grid of problems (docs/tune.md).
#pragma once

#include <CLI/CLI.hpp>

#include <string>

#include "experiments/benchmark/benchmark.hpp"

namespace spillway::cli {

class BenchmarkFlags {
 public:
  // Adds --benchmark, --grid and --smallest-batch to `tune`. `shared` names the other options that
  // a benchmark takes, too; the rest of the command's options go without --benchmark.
  void add_to(CLI::App& command, const std::vector<std::string>& shared);
  bool asked() const { return benchmark_; }
  // Prints the rows and what they come to. False: some built-in policy is faster than a tuned plan.
  bool run(BenchmarkOptions options, bool json) const;

 private:
  bool benchmark_ = false;
  std::string grid_ = "benchmark", smallest_batch_;
};

}  // namespace spillway::cli
