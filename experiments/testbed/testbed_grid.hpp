// The testbed's grid: regimes (experiments/testbed/*.toml) x policies x batches.
//
// A regime is an imaginary machine, given as a throttle of the CPU backend, and what is trained on
// it. One whose throttle is empty measures this machine as it is.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "exec/throttle/throttle_rates.hpp"
#include "policies/workload/problem.hpp"

namespace spillway {

struct TestbedRegime {
  std::string name;  // "pcie-bound"
  std::string description;
  std::string throttle;  // as given to --throttle
  ThrottleRates rates;
  ModelSpec model;
  std::int64_t sequence = 128, micro_batch = 1;
  std::vector<std::int64_t> batches;  // multiples of micro_batch
  std::vector<std::string> policies;
  std::uint64_t gpu_memory = 0, host_memory = 0;

  bool throttled() const { return rates.any(); }
};

// One point of the grid.
struct TestbedConfiguration {
  TestbedRegime regime;
  std::string policy;
  std::int64_t batch = 0;

  // The problem on `base` (the machine as calibrated), throttled and limited as the regime says.
  Problem problem(const Machine& base) const;
};

// The built-in regimes, in the order of docs/validation.md: those with a throttle first.
std::vector<TestbedRegime> builtin_regimes();
// Throws InputError with file:line:column.
TestbedRegime parse_regime(const std::string& toml_text, const std::string& origin);

// Those named, built in or paths of files; without any, all that are built in. Throws InputError
// for an unknown name.
std::vector<TestbedRegime> find_regimes(const std::vector<std::string>& names);

// Regime by regime, batch by batch, policy by policy. `quick`: the smallest batch of each regime
// and every second policy, for a first look.
std::vector<TestbedConfiguration> configurations(const std::vector<TestbedRegime>& regimes,
                                                 bool quick);

}  // namespace spillway
