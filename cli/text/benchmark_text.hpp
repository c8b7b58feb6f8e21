// A benchmark of tuned plans as a table, a line at a time.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "experiments/benchmark/benchmark.hpp"

namespace spillway::cli {

class BenchmarkText {
 public:
  explicit BenchmarkText(const SweepPlan& grid);

  std::string head() const;
  std::string line(const BenchmarkRow& row) const;
  std::string batch_head(double share) const;
  std::string line(const BatchRow& row, double share) const;
  // What all rows come to.
  std::string end(const Benchmark& benchmark, const std::optional<double>& share) const;

 private:
  // The cells of the axes, padded to their columns' widths; that of the batch only if asked for.
  std::string padded(const std::vector<std::string>& cells, bool with_batch) const;

  std::vector<std::string> keys_;
  std::vector<std::size_t> widths_;
};

}  // namespace spillway::cli
