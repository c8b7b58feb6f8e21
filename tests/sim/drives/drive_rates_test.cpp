// Drives of every built-in machine are really used: slower ones make slower steps.
#include <catch2/catch.hpp>

#include "policies/common/policy.hpp"
#include "sim/simulate.hpp"

using namespace spillway;

namespace {

// Everything that can rests on the drives, and little is computed.
Schedule on_drives(const Machine& machine) {
  Problem problem;
  problem.model = load_model(machine.gpu.is_cpu ? "gpt-small" : "gpt-13b");
  problem.machine = machine;
  problem.workload.sequence = machine.gpu.is_cpu ? 64 : 1024;
  problem.workload.precision = machine.gpu.is_cpu ? Precision::fp32 : Precision::bf16;
  return build_schedule(problem, "zero-infinity", 4);
}

}  // namespace

TEST_CASE("Half the read or write rate makes a step on the drives of any machine longer") {
  int machines = 0;
  for (const Machine& machine : builtin_machines()) {
    if (machine.ssd.count == 0) continue;
    ++machines;
    INFO(machine.name);
    const Schedule schedule = on_drives(machine);
    const double seconds = simulate(schedule).step_seconds;
    Machine slow_reads = machine, slow_writes = machine;
    slow_reads.ssd.read /= 2;
    slow_writes.ssd.write /= 2;
    CHECK(simulate(schedule, slow_reads).step_seconds > 1.02 * seconds);
    CHECK(simulate(schedule, slow_writes).step_seconds > 1.02 * seconds);
    // Times add, a mix gains, neither slows the other.
    Machine mixed = machine;
    mixed.ssd.law = SsdLaw::mixed;
    double before = 0;
    for (const double gain : {2.0, 1.4, 1.0}) {
      mixed.ssd.mixed_gain = gain;
      const double step = simulate(schedule, mixed).step_seconds;
      CHECK(step >= before * (1 - 1e-9));
      before = step;
    }
    Machine turns = machine;
    turns.ssd.law = SsdLaw::simplex;
    CHECK(before == Approx(simulate(schedule, turns).step_seconds).epsilon(1e-6));
  }
  CHECK(machines > 5);
}
