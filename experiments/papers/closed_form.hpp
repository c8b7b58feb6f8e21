// The closed form that the simulator has to be better than: bytes over bandwidth, FLOPs over rate.
#pragma once

#include <optional>

#include "experiments/papers/paper.hpp"
#include "policies/schedule/schedule.hpp"

namespace spillway {

// What one phase of a step asks of the machine.
struct PhaseAmounts {
  double flops = 0, gpu_params = 0;  // of the GPU
  double to_gpu = 0, from_gpu = 0;   // bytes over PCIe, from and to pinned memory
  double pageable_to_gpu = 0, pageable_from_gpu = 0;
  double read = 0, written = 0;   // bytes of the drives
  double cpu_params = 0;          // updated on the CPU
  double cpu_passes = 0;          // bytes of the framework's passes beside these updates
  double collective_seconds = 0;  // of collectives, one after the other

  PhaseAmounts& operator+=(const PhaseAmounts& other);
};

// The time of a phase in which everything overlaps, with the rates that the simulator has: the
// largest of
//   FLOPs / gpu.flops x compute.time + parameters updated there / gpu.adam_rate + pageable bytes /
//   their bandwidth, for which the host thread waits;
//   bytes over PCIe / bandwidth, each way;
//   bytes of the drives / bandwidth, by their law;
//   parameters updated on the CPU / host.adam_rate + bytes of cpu.pass_bytes at that rate's bytes/s
//   x cpu.pass_time.
double closed_form_seconds(const PhaseAmounts& amounts, const Problem& problem);

// The quantity of an experiment by the closed form, from the bytes, FLOPs and parameters of one
// steady step of the schedule: a step is the sum of the phases that do not overlap. No latencies,
// waits, sharing between resources or limits of memory.
double closed_form(const Schedule& schedule, Overlap overlap, const PaperExperiment& experiment);

// What a framework says of it: with a wait for everything before the optimizer nothing overlaps,
// else the optimizer is hidden under backward.
Overlap overlap_of(const PaperSystem& system);

}  // namespace spillway
