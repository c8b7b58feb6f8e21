// Rows of a benchmark as JSON: for its journal, and for people.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "experiments/benchmark/benchmark.hpp"

namespace spillway {

nlohmann::ordered_json to_json(const BenchmarkRow& row);
nlohmann::ordered_json to_json(const BatchRow& row);
// Without cells.
BenchmarkRow benchmark_row(const nlohmann::ordered_json& json);
BatchRow batch_row(const nlohmann::ordered_json& json);

// All rows with their cells by key, and the summaries.
nlohmann::ordered_json to_json(const Benchmark& benchmark, const BenchmarkOptions& options);

}  // namespace spillway
