// How sure a prediction is: one schedule, as it stands, at other rates than those of the machine
// file.
//
// The plan keeps its settings: the same tasks in the same order, in the same memory. Only what they
// take changes.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "experiments/plan/evaluate.hpp"

namespace spillway {

// Machine rates that are scaled together: "gpu" (compute, its Adam and its memory), "pcie" (both
// ways), "ssd.read", "ssd.write", "ssd.total" (where the machine file limits both together),
// "ssd.mixed" (law mixed: the gains, which stay within 1 .. 2), "cpu" (the optimizer's rate),
// "dram".
std::vector<std::string> scalable_rates(const Machine& machine);

// The machine with one rate `factor` times as high.
Machine with_scaled_rate(Machine machine, const std::string& rate, double factor);

struct RateEffect {
  std::string rate;
  double slower_step_seconds = 0;  // with this rate rate_margin lower
  double faster_step_seconds = 0;  // with this rate rate_margin higher
};

struct Robustness {
  std::string policy;  // with its options settled
  std::int64_t micro_batch = 0;
  double step_seconds = 0;        // as the machine file has it
  std::vector<RateEffect> rates;  // what slows the step most first
  double all_slower_seconds = 0;  // all of them rate_margin lower, but gains of mixes
  double all_faster_seconds = 0;
  // All rates at random at once, each by -rate_margin to +rate_margin.
  std::vector<double> random_seconds;  // least first
  std::uint64_t seed = 0;
  // All that was measured (kernels, copies, drives, the CPU's optimizer) at the 80th and at the
  // 20th percentile of its samples; nothing: the machine file holds none.
  std::optional<double> measured_slow_seconds, measured_fast_seconds;

  // What the machine file assumes, at the ends of its ranges, as in assumptions.hpp; nothing: no
  // assumed value moves the step.
  std::optional<double> assumed_slow_seconds, assumed_fast_seconds;

  double worst_seconds() const;  // of all of these
};

inline constexpr double rate_margin = 0.2;
inline constexpr int random_machines = 32;

// Throws InputError as evaluate() does; nothing where the plan does not fit. The same seed gives
// the same figures on any machine.
std::optional<Robustness> robustness(const Problem& problem, const std::string& policy,
                                     std::uint64_t seed = 0,
                                     const EvaluateOne& evaluate_one = evaluate);
// Of a schedule that was simulated already.
Robustness robustness(const Schedule& schedule, const SimulationResult& result,
                      std::uint64_t seed = 0,
                      const std::function<void(const std::string&)>& say = {});

}  // namespace spillway
