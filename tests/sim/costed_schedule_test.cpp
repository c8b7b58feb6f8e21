#include "sim/costed_schedule.hpp"

#include <catch2/catch.hpp>

#include "policies/cost/costs.hpp"
#include "sim/simulate.hpp"
#include "tests/policies/cost/problems.hpp"

using namespace spillway;
using namespace spillway::test;
using Catch::Matchers::Contains;

namespace {

double seconds(const SimulationResult& result, TaskId task) {
  return static_cast<double>(result.tasks[task].end_ns - result.tasks[task].start_ns) * 1e-9;
}

double end(const SimulationResult& result, TaskId task) {
  return static_cast<double>(result.tasks[task].end_ns) * 1e-9;
}

double demand(const SimulationResult& result, const std::string& name) {
  for (const ResourceUse& use : result.resources) {
    if (use.name == name) return use.demand_seconds;
  }
  FAIL("no resource " << name);
  return 0;
}

// Ends of 70 GB read and 50 GB written that start together.
std::pair<double, double> read_and_write(const Machine& machine) {
  Tasks tasks(small_problem(machine));
  const TaskId read = tasks.read(70 * gigabyte);
  const TaskId write = tasks.write(50 * gigabyte);
  const SimulationResult result = simulate(tasks.finish());
  return {end(result, read), end(result, write)};
}

std::pair<double, double> read_and_write(SsdLaw law, double total) {
  Machine machine = round_machine();
  machine.ssd.law = law;
  machine.ssd.total = total;
  return read_and_write(machine);
}

Machine mixed_machine(double gain, const std::map<double, double>& by_read_share = {}) {
  Machine machine = round_machine();
  machine.ssd.law = SsdLaw::mixed;
  machine.ssd.mixed_gain = gain;
  machine.ssd.by_read_share = by_read_share;
  return machine;
}

// Within the rounding of a gigabyte to 4096 bytes.
Approx about(double value) { return Approx(value).epsilon(5e-6); }

}  // namespace

TEST_CASE("A task that runs alone takes what it costs") {
  for (Machine machine : {round_machine(), cpu_machine(4)}) {
    machine.gpu.launch_ns = 1000;
    machine.pcie.latency_ns = 2000;
    machine.ssd.read_latency_ns = 3000;
    machine.ssd.write_latency_ns = 4000;
    machine.host.sync_ns = 5000;
    machine.host.wake_ns = 6000;
    const Problem problem = small_problem(machine);
    const std::vector<TaskId (*)(Tasks&)> all = {
        [](Tasks& t) { return t.forward(); },
        [](Tasks& t) { return t.backward(); },
        [](Tasks& t) { return t.h2d(gigabyte); },
        [](Tasks& t) { return t.d2h(gigabyte); },
        [](Tasks& t) { return t.read(gigabyte); },
        [](Tasks& t) { return t.write(gigabyte); },
        [](Tasks& t) { return t.optimizer(Tier::host, 2048000); },
        [](Tasks& t) { return t.optimizer(Tier::gpu, 2048000); },
        [](Tasks& t) { return t.program.barrier(); }};
    for (const auto& emit : all) {
      Tasks tasks(problem);
      const TaskId task = emit(tasks);
      const Schedule schedule = tasks.finish();
      INFO(machine.name << ", " << to_string(schedule.tasks()[task].kind));
      const double alone = Costs(problem).seconds(schedule.tasks()[task]);
      CHECK(alone > 0);
      CHECK(seconds(simulate(schedule), task) == Approx(alone).margin(1e-9));
    }
  }
}

TEST_CASE("A rate that the machine lacks is named when a schedule is simulated") {
  Machine machine = round_machine();
  machine.ssd.read = 0;
  Tasks tasks(small_problem(machine));
  tasks.read(4096);
  CHECK_THROWS_WITH(simulate(tasks.finish()), Contains("ssd.read"));
}

TEST_CASE("Both PCIe directions share pcie.total where the machine has one") {
  // h2d <= 10, d2h <= 5, h2d + d2h <= 8 GB/s: 4 each; 4 GB each way take 1 s.
  Machine machine = round_machine();
  machine.pcie.total = 8e9;
  Tasks tasks(small_problem(machine));
  const TaskId down = tasks.h2d(4 * gigabyte);
  const TaskId up = tasks.d2h(4 * gigabyte);
  const SimulationResult result = simulate(tasks.finish());
  CHECK(end(result, down) == about(1));
  CHECK(end(result, up) == about(1));
}

TEST_CASE("The three laws of reading and writing at once") {
  // R = 7, W = 5 GB/s; 70 GB are read and 50 GB written.
  // Capped at RW = max(R, W) = 7: 3.5 each until 50 / 3.5 = 14.2857 s; the read's last 20 GB at
  // 7: 17.1429 s.
  CHECK(read_and_write(SsdLaw::capped, 0).first == about(17.142857));
  CHECK(read_and_write(SsdLaw::capped, 0).second == about(14.285714));
  // Capped at 8: 4 each until 12.5 s; the read's last 20 GB at 7.
  CHECK(read_and_write(SsdLaw::capped, 8e9).first == about(15.357143));
  CHECK(read_and_write(SsdLaw::capped, 8e9).second == about(12.5));
  // Duplex: 70 / 7 and 50 / 5.
  CHECK(read_and_write(SsdLaw::duplex, 0).first == about(10));
  CHECK(read_and_write(SsdLaw::duplex, 0).second == about(10));
  // Simplex: times add, 70 / 7 + 50 / 5 = 20 s; at equal rates y (1/7 + 1/5) = 1 the write ends at
  // 120 / 7.
  CHECK(read_and_write(SsdLaw::simplex, 0).first == about(20));
  CHECK(read_and_write(SsdLaw::simplex, 0).second == about(120.0 / 7));
}

TEST_CASE("Mixed: reads beside writes gain, in turns they have the drives to themselves") {
  // r/7 + w/5 <= 1.5: 4.375 GB/s each until 50 GB are written at 11.4286 s; the read's last 20 GB
  // at 7.
  CHECK(read_and_write(mixed_machine(1.5)).first == about(50 / 4.375 + 20 / 7.0));
  CHECK(read_and_write(mixed_machine(1.5)).second == about(50 / 4.375));
  // A gain of 1 is simplex, one of 2 duplex.
  CHECK(read_and_write(mixed_machine(1)).first == about(20));
  CHECK(read_and_write(mixed_machine(1)).second == about(120.0 / 7));
  CHECK(read_and_write(mixed_machine(2)).first == about(10));
  CHECK(read_and_write(mixed_machine(2)).second == about(10));
  // With 7/12 of bytes read, 4/5 of both: the edges are x/4 + y <= 1 and x + y/4 <= 1. At equal
  // rates the first holds writes back: v (1/28 + 1/5) = 1.
  const Machine table = mixed_machine(1, {{7.0 / 12, 1.6}});
  const double v = 1 / (1 / 28.0 + 1 / 5.0);
  CHECK(read_and_write(table).second == about(50 / v));
  CHECK(read_and_write(table).first == about(50 / v + 20 / 7.0));
  // One after the other: 70 / 7 + 50 / 5, whatever a mix gains.
  for (const Machine& machine : {mixed_machine(1), mixed_machine(1.5), mixed_machine(2), table}) {
    Tasks tasks(small_problem(machine));
    const TaskId read = tasks.read(70 * gigabyte);
    tasks.program.barrier();
    const TaskId write = tasks.write(50 * gigabyte);
    const SimulationResult result = simulate(tasks.finish());
    CHECK(end(result, read) == about(10));
    CHECK(end(result, write) == about(20));
  }
}

TEST_CASE("While an operation is prepared, the drives serve the other lane") {
  // Times add. The read's operation takes 4 s: meanwhile the write has the drives to itself and
  // writes 20 of its 30 GB. Then both share: v (1/7 + 1/5) = 1 until the write's last 10 GB are
  // done; the read has 7 GB more.
  Machine machine = round_machine();
  machine.ssd.law = SsdLaw::simplex;
  Problem problem = small_problem(machine);
  problem.framework = "ratel:io.read_operation=4s,io.write_operation=0s";
  Tasks tasks(problem);
  const TaskId read = tasks.read(17 * gigabyte);
  const TaskId write = tasks.write(30 * gigabyte);
  const SimulationResult result = simulate(tasks.finish());
  CHECK(end(result, write) == about(4 + 10 * 12 / 35.0));
  CHECK(end(result, read) == about(4 + 10 * 12 / 35.0 + 1));
}

TEST_CASE("A shallower queue slows reads and writes by its shares") {
  // Full: R = 7, W = 5, RW = 10 GB/s. At depth 4: 0.5, 0.4 and 0.5 of them, 3.5, 2 and 5 GB/s: 7 GB
  // and 2 GB together take 2 s and 1 s, for 3.5 + 2 > 5 is shared 3 + 2.
  Machine machine = round_machine();
  machine.ssd.total = 10e9;
  machine.ssd.by_queue_depth = {{4, {0.5, 0.4, 0}}, {16, {1, 1, 0}}};
  const auto alone = [&](std::int64_t depth, bool is_read) {
    machine.ssd.queue_depth = depth;
    Tasks tasks(small_problem(machine));
    const TaskId task = is_read ? tasks.read(7 * gigabyte) : tasks.write(5 * gigabyte);
    return end(simulate(tasks.finish()), task);
  };
  CHECK(alone(executor_queue_depth, true) == about(1));
  CHECK(alone(4, true) == about(2));
  CHECK(alone(4, false) == about(2.5));
  CHECK(alone(10, true) == about(1 / 0.75));
  // Both together: 2 + 3 <= 5. The write ends at 1 s; by then 3 GB are read, the other 4 at 3.5.
  machine.ssd.queue_depth = 4;
  Tasks tasks(small_problem(machine));
  const TaskId read = tasks.read(7 * gigabyte);
  const TaskId write = tasks.write(2 * gigabyte);
  const SimulationResult result = simulate(tasks.finish());
  CHECK(end(result, write) == about(1));
  CHECK(end(result, read) == about(1 + 4 / 3.5));
}

TEST_CASE(
    "Adam, the drives and both directions of PCIe share DRAM in equal bytes, up to their own "
    "rates") {
  // DRAM 40 GB/s. Wanted: Adam 28 B x 1e9/s = 28, reads 7, writes 5, h2d 10, d2h 4 GB/s (r + w at
  // most 20): 54 in all. Max-min: writes and d2h want less than an equal share of 8 and get 5 and
  // 4; reads 7 too; of the 24 left, h2d wants 10 < 12 and gets it; Adam gets 14 GB/s = 0.5e9
  // params/s. Each runs for 1 s at these rates, then all end together.
  Machine machine = round_machine();
  machine.host.bandwidth = 40e9;
  machine.ssd.total = 20e9;
  machine.pcie.d2h = 4e9;
  Tasks tasks(small_problem(machine));
  const std::uint64_t params = 500'000'000 / 2048 * 2048;
  const std::vector<TaskId> all = {tasks.optimizer(Tier::host, params), tasks.read(7 * gigabyte),
                                   tasks.write(5 * gigabyte), tasks.h2d(10 * gigabyte),
                                   tasks.d2h(4 * gigabyte)};
  const SimulationResult result = simulate(tasks.finish());
  for (const TaskId task : all) CHECK(end(result, task) == about(1));
  CHECK(demand(result, "dram") == about(1));
  // DRAM 22 GB/s: d2h wants 4, less than an equal share, and gets it; the other four share 18, 4.5
  // each. In one second: Adam 4.5e9 / 28 parameters, reads, writes and h2d 4.5 GB.
  machine.host.bandwidth = 22e9;
  Tasks tight(small_problem(machine));
  const std::uint64_t few = 4'500'000'000 / 28 / 2048 * 2048;
  const std::vector<TaskId> equal = {tight.optimizer(Tier::host, few), tight.read(gigabyte / 2 * 9),
                                     tight.write(gigabyte / 2 * 9), tight.h2d(gigabyte / 2 * 9),
                                     tight.d2h(4 * gigabyte)};
  const SimulationResult shared = simulate(tight.finish());
  for (const TaskId task : equal) CHECK(end(shared, task) == Approx(1).epsilon(2e-5));
  CHECK(demand(shared, "dram") == Approx(1).epsilon(2e-5));
}

TEST_CASE("A byte bounced between SSD and GPU costs two bytes of DRAM bandwidth") {
  // 10 GB read into DRAM and 10 GB out of it to the GPU: 20 GB / 100 GB/s = 0.2 s of DRAM.
  Tasks tasks(small_problem(round_machine()));
  tasks.read(10 * gigabyte);
  tasks.h2d(10 * gigabyte);
  const SimulationResult result = simulate(tasks.finish());
  CHECK(demand(result, "dram") == about(0.2));
}

TEST_CASE(
    "The CPU optimizer takes 28 bytes of DRAM per parameter, and shares DRAM in equal bytes") {
  // DRAM 56 GB/s; Adam alone at 2e9 params/s takes all of it; a copy of up to 28 GB/s gets half, 28
  // GB/s, and Adam the other half: 1e9 params/s. 14 GB are copied in 0.5 s; by then Adam has done
  // 0.5e9 of 1.5e9, and the rest takes 1e9 / 2e9 = 0.5 s.
  Machine machine = round_machine();
  machine.host.bandwidth = 56e9;
  machine.host.adam_params_per_second = 2e9;
  machine.pcie.h2d = 28e9;
  Tasks tasks(small_problem(machine));
  const TaskId adam = tasks.optimizer(Tier::host, 1500000256);
  const TaskId copy = tasks.h2d(14 * gigabyte);
  const SimulationResult result = simulate(tasks.finish());
  CHECK(end(result, copy) == about(0.5));
  CHECK(end(result, adam) == about(1.0));
}

TEST_CASE("On a CPU machine threads share the cores equally") {
  // One core. A forward pass (1 core) and Adam (1 core) at half speed each, so each takes twice as
  // long while both run. Both take t alone: they end together at 2 t.
  Machine machine = cpu_machine(1);
  const Problem problem = small_problem(machine);
  const double t = problem.model.layer_forward_flops(4, 128) / 1e11;
  machine.host.adam_params_per_second = 1024000 / t;
  machine.host.bandwidth = 1e15;
  Tasks tasks(small_problem(machine));
  const TaskId forward = tasks.forward();
  const TaskId adam = tasks.optimizer(Tier::host, 1024000);
  const SimulationResult result = simulate(tasks.finish());
  CHECK(end(result, forward) == Approx(2 * t).margin(2e-9));
  CHECK(end(result, adam) == Approx(2 * t).margin(2e-9));
  CHECK(result.extrapolates.size() == 1);  // no kernel was measured
}

TEST_CASE("On a CPU machine a copy keeps a core busy, a throttled one only for its share") {
  // Two cores, 40 GB/s of DRAM: one core copies 10 GB/s. At 10 GB/s: 1 core each for 10 GB: 1 s of
  // 2 cores = 0.5 s of all cores. Throttled to 1 GB/s: a tenth of a core for 10 s: the same demand.
  const auto cores_demand = [](double rate) {
    Machine machine = cpu_machine(2);
    machine.host.bandwidth = 40e9;
    machine.pcie.h2d = rate;
    Tasks tasks(small_problem(machine));
    const TaskId copy = tasks.h2d(10 * gigabyte);
    const SimulationResult result = simulate(tasks.finish());
    CHECK(seconds(result, copy) == about(10e9 / rate));
    // A copy reads and writes DRAM: 20 GB / 40 GB/s.
    CHECK(demand(result, "dram") == about(0.5));
    return demand(result, "cores");
  };
  CHECK(cores_demand(10e9) == about(0.5));
  CHECK(cores_demand(1e9) == about(0.5));
  // Faster than one core was thought to copy: it is one core all the same, for 0.5 s.
  CHECK(cores_demand(20e9) == about(0.25));
}

TEST_CASE("On a CPU machine SSD transfers use the cores the machine file says") {
  Machine machine = cpu_machine(4);
  machine.ssd.cores = 0.5;
  Tasks tasks(small_problem(machine));
  tasks.read(7 * gigabyte);  // 1 s of half a core of four
  CHECK(demand(simulate(tasks.finish()), "cores") == about(0.125));
}
