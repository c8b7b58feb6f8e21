// One steady step of a simulated schedule as a Gantt chart: a row for each lane, a box for each
// task.
#pragma once

#include "experiments/plots/gnuplot.hpp"
#include "policies/schedule/schedule.hpp"
#include "sim/simulate.hpp"

namespace spillway {

// The last step that counts for the steady state. Tasks of other steps that run meanwhile are shown
// too. Tasks of one kind that follow each other closer than the picture can show are one box.
Picture gantt_of(const Schedule& schedule, const SimulationResult& result, const std::string& name);

}  // namespace spillway
