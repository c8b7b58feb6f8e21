// Small problems with round numbers, for the tests of the cost model and of simulate().
#pragma once

#include "policies/common/policy.hpp"
#include "policies/schedule/program.hpp"

namespace spillway::test {

inline constexpr std::uint64_t gigabyte =
    1000000000 / 4096 * 4096;  // buffers are multiples of 4096 bytes

// Capacities are generous; nothing has a latency.
inline Machine round_machine() {
  Machine machine;
  machine.name = "round";
  machine.gpu.memory = machine.host.memory = machine.ssd.capacity = 1000 * gigabyte;
  machine.gpu.flops = 1e12;
  machine.gpu.memory_bandwidth = 1e12;
  machine.gpu.adam_params_per_second = 1e10;
  machine.pcie.h2d = 10e9;
  machine.pcie.d2h = 5e9;
  machine.host.bandwidth = 100e9;
  machine.host.cores = 8;
  machine.host.adam_params_per_second = 1e9;
  machine.ssd.count = 1;
  machine.ssd.read = 7e9;
  machine.ssd.write = 5e9;
  return machine;
}

// The CPU backend on `cores` cores.
inline Machine cpu_machine(double cores) {
  Machine machine = round_machine();
  machine.gpu.is_cpu = true;
  machine.gpu.flops = 1e11;
  machine.gpu.adam_params_per_second = 0;
  machine.host.cores = cores;
  return machine;
}

inline Problem small_problem(const Machine& machine) {
  Problem problem;
  problem.model.name = "small";
  problem.model.layers = 2;
  problem.model.hidden = 128;
  problem.model.heads = problem.model.kv_heads = 4;
  problem.model.ffn = 512;
  problem.model.vocabulary = 256;
  problem.model.positions = 128;
  problem.machine = machine;
  problem.workload.batch = 4;
  problem.workload.micro_batch = 4;
  problem.workload.sequence = 128;
  problem.workload.precision = machine.gpu.is_cpu ? Precision::fp32 : Precision::bf16;
  return problem;
}

// A program with helpers to emit single tasks on buffers of their own.
struct Tasks {
  explicit Tasks(const Problem& problem) : program(problem) { program.at(0, Phase::forward); }

  // Persistent: memory is not used again, so that no edges come of it.
  Slice fresh(Tier tier, std::uint64_t bytes) {
    return program.persistent(tier, bytes, BufferKind::scratch);
  }
  TaskId copy(Tier from, Tier to, std::uint64_t bytes) {
    return program.copy(fresh(from, bytes), fresh(to, bytes));
  }
  TaskId h2d(std::uint64_t bytes) { return copy(Tier::host, Tier::gpu, bytes); }
  TaskId d2h(std::uint64_t bytes) { return copy(Tier::gpu, Tier::host, bytes); }
  TaskId read(std::uint64_t bytes) { return copy(Tier::ssd, Tier::host, bytes); }
  TaskId write(std::uint64_t bytes) { return copy(Tier::host, Tier::ssd, bytes); }
  TaskId forward() {
    return program.forward(0, 0, fresh(Tier::gpu, 4096), fresh(Tier::gpu, 4096),
                           fresh(Tier::gpu, 4096));
  }
  TaskId backward() {
    return program.backward(0, 0, fresh(Tier::gpu, 4096), fresh(Tier::gpu, 4096), {}, saved_none,
                            fresh(Tier::gpu, 4096), fresh(Tier::gpu, 4096), true, false);
  }
  TaskId optimizer(Tier tier, std::uint64_t params) {
    const Problem& problem = program.problem();
    const auto run = [&](std::uint64_t bytes) {
      Slice slice = fresh(tier, bytes);
      slice.bytes = bytes;
      return slice;
    };
    return program.optimizer(0, 0, params, run(params * problem.gradient_bytes()), {},
                             run(params * problem.state_bytes()),
                             run(params * problem.parameter_bytes()), 0);
  }
  Schedule finish(int steps = 1) { return std::move(program).finish("by hand", steps); }

  Program program;
};

}  // namespace spillway::test
