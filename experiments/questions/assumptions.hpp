// How far a prediction rests on what the machine file leaves out or assumes: the schedule as it
// stands, simulated with each assumed value at both ends of its range
// (policies/cost/assumed_values.hpp).
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "policies/cost/assumed_values.hpp"
#include "sim/simulate.hpp"

namespace spillway {

// What moves the step by less, either way, is not worth a line of its own.
inline constexpr double worth_naming = 0.01;

struct AssumedEffect {
  AssumedValue value;
  // With it at both ends of its range; nothing where it moves no time, as memory that is set aside.
  std::optional<double> low_step_seconds, high_step_seconds;
};

struct AssumptionEffects {
  double step_seconds = 0;             // as the machine file has it
  std::vector<AssumedEffect> effects;  // what moves the step most first, what moves no time last
  // The slowest and the fastest step of all that was simulated: each value at both ends by itself,
  // and all of them at the end that makes the step slower, or faster.
  double slowest_seconds = 0, fastest_seconds = 0;

  // The largest share of the step by which it moves at an end; 0 where it moves no time.
  double share(const AssumedEffect& effect) const;
  // Those that move the step by more than worth_naming.
  std::size_t named() const;
};

// Of `result`, simulated from `schedule`. `say` is told what is simulated next.
AssumptionEffects effects_of_assumptions(const Schedule& schedule, const SimulationResult& result,
                                         const std::function<void(const std::string&)>& say = {});

}  // namespace spillway
