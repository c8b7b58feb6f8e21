// Machine files: any text, read as TOML, written and read again, and a small training simulated on
// it. A line "#set KEY=VALUE" is given as `--set` as well.
#include "policies/machine/machine.hpp"

#include <cmath>

#include "policies/common/policy.hpp"
#include "sim/simulate.hpp"
#include "tests/fuzz/fuzz.hpp"
#include "tests/fuzz/settings.hpp"

using namespace spillway;

namespace {

// Every lane of the machine has something to do.
void simulate_on(const Machine& machine) {
  Problem problem;
  problem.machine = machine;
  problem.model.name = "fuzz";
  problem.model.layers = 1;
  problem.model.hidden = 16;
  problem.model.heads = problem.model.kv_heads = 1;
  problem.model.ffn = 64;
  problem.model.vocabulary = problem.model.positions = problem.workload.sequence = 16;
  problem.workload.batch = 2;
  problem.workload.clip = {ClipScope::global, 1};
  if (machine.gpu.is_cpu) problem.workload.precision = Precision::fp32;
  const Schedule schedule =
      build_schedule(problem, machine.ssd.count > 0 ? "fuyou" : "zero-offload:checkpoints=host", 2);
  SimulationResult result;
  if (!fuzz::accepted([&] { result = simulate(schedule); })) return;
  for (const SimulatedTask& task : result.tasks) {
    fuzz::require(task.start_ns >= 0 && task.end_ns >= task.start_ns,
                  "a task ends after it starts");
  }
  fuzz::require(std::isfinite(result.step_seconds) && result.step_seconds >= 0,
                "a step takes finite time");
}

}  // namespace

SPILLWAY_FUZZ_TARGET(machine) {
  const std::string text = fuzz::text_of(input);
  Machine machine;
  if (!fuzz::accepted(
          [&] { machine = parse_machine(text, "machine.toml", fuzz::settings_of(text)); })) {
    return;
  }
  const std::string written = machine_to_toml(machine);
  Machine again;
  fuzz::require(fuzz::accepted([&] { again = parse_machine(written, "written.toml"); }),
                "what machine_to_toml writes, parse_machine reads");
  fuzz::require(machine_to_toml(again) == written, "a machine read again is the same machine");
  simulate_on(machine);
}
