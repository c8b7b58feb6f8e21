// One steady step of two plans as Gantt charts above each other, on one axis of time: a row for
// each lane, and two for the memory in use.
#pragma once

#include "experiments/plots/gnuplot.hpp"
#include "policies/schedule/schedule.hpp"
#include "sim/simulate.hpp"

namespace spillway {

// A simulated plan. Refers to both.
struct SimulatedPlan {
  const Schedule& schedule;
  const SimulationResult& result;
};

// Of each the last step that counts for the steady state, with tasks of other steps that run
// meanwhile. Both begin at 0; the shorter one ends where its step does.
Picture gantt_pair_of(const SimulatedPlan& a, const SimulatedPlan& b, const std::string& name);

}  // namespace spillway
