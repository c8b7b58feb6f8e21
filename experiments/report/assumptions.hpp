// What a simulation rests on: each number of the machine with where it is from, how far the step
// moves with what is assumed, and what was asked.
#pragma once

#include "experiments/questions/assumptions.hpp"
#include "experiments/report/html.hpp"
#include "policies/schedule/schedule.hpp"

namespace spillway {

// Key, value, whether it is given, derived or assumed, and its source: what `spillway machines
// NAME` shows, of the keys that matter on such a machine.
PageTable machine_table(const Machine& machine);

// What the step would take with each assumed value at both ends of the range it may have.
PageTable effects_table(const AssumptionEffects& effects);

// Workload, framework, steps, and what was set by hand.
PageTable workload_table(const Schedule& schedule);

}  // namespace spillway
