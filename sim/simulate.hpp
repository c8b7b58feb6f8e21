// How long a schedule takes on its machine: the simulator's front door.
//
// Every metric is defined in docs/metrics.md.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "policies/schedule/schedule.hpp"

namespace spillway {

struct SimulatedTask {
  std::int64_t start_ns = 0;
  std::int64_t end_ns = 0;
};

struct PhaseSeconds {
  double forward = 0, backward = 0, optimizer = 0;  // their sum is the step time
};

// One steady step's use of a lane or a resource.
struct LaneUse {
  double busy_fraction = 0;   // of the steady window
  double bytes = 0;           // moved per step; 0 on lanes that move none
  double demand_seconds = 0;  // per step, every task at its uncontended time
};

struct ResourceUse {
  std::string name;  // "dram", "ssd.total", ...
  double demand_seconds =
      0;  // per step: what its tasks take of it / its capacity; 0 where it does not limit
};

struct SimulationResult {
  std::vector<SimulatedTask> tasks;        // by task id
  std::vector<std::int64_t> step_ends_ns;  // by step: the end of its last task, the epilogue apart

  double step_seconds = 0;
  double tokens_per_second = 0;  // of all ranks, as model_tflops and hardware_tflops
  double model_tflops = 0;       // 3 x forward FLOPs per step / step time
  double hardware_tflops =
      0;  // FLOPs of the tasks that ran, recomputation included, per step / step time
  PhaseSeconds phases;

  // No schedule with this work can be faster. In a run too short to be steady, whose window holds
  // less than the work of its steps: the work inside the window.
  double bound_seconds = 0;
  std::string bound_by;   // the lane or resource that sets it
  double efficiency = 0;  // bound_seconds / step_seconds

  std::array<LaneUse, lane_count> lanes;  // by Lane
  std::vector<ResourceUse> resources;
  double ssd_bytes_written_per_step = 0;  // by all ranks of a node
  // What it rests on beyond what the machine file knows, each as "asked: known"; empty: nothing
  // (policies/cost/extrapolation.hpp).
  std::vector<std::string> extrapolates;
};

// Simulates the schedule on schedule.problem().machine. Whether it fits in memory is not looked at.
// Throws InputError where the machine file lacks a rate that the schedule needs.
SimulationResult simulate(const Schedule& schedule);
// The schedule as it is, its tasks at the rates of `machine` in place of its own machine's.
SimulationResult simulate(const Schedule& schedule, const Machine& machine);

}  // namespace spillway
