// What one steady step of a schedule takes, without the times of its tasks: by no more steps than
// tell, and once for schedules that are the same to the simulator, such as those of machines that
// differ in memory that neither uses.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>

#include "experiments/plan/recurrence.hpp"
#include "sim/costed_schedule.hpp"
#include "sim/simulate.hpp"

namespace spillway {

struct SteadyResult {
  SimulationResult result;
  bool by_some_steps = false;  // step time and phases are those of all steps to some nanoseconds
};

class SteadyResults {
 public:
  // Of simulate_long_run(schedule, its machine) all but tasks and step_ends_ns. Throws what it
  // throws. The result does not depend on earlier calls. Short schedules are simulated whole.
  SteadyResult of(const Schedule& schedule);

 private:
  using Key = std::array<std::uint64_t, 2>;
  // A schedule, and what follows from its tasks and edges.
  struct Known {
    Schedule schedule;
    std::optional<Repetition> repetition;
    std::uint64_t fingerprint = 0;
  };
  const Known& known(const Schedule& schedule);

  std::optional<Known> last_;
  std::map<Key, SteadyResult> results_;
};

}  // namespace spillway
