#include "sim/cost_model.hpp"

#include <catch2/catch.hpp>

#include "sim/simulate.hpp"
#include "tests/sim/problems.hpp"

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
std::pair<double, double> read_and_write(SsdLaw law, double total) {
  Machine machine = round_machine();
  machine.ssd.law = law;
  machine.ssd.total = total;
  Tasks tasks(small_problem(machine));
  const TaskId read = tasks.read(70 * gigabyte);
  const TaskId write = tasks.write(50 * gigabyte);
  const SimulationResult result = simulate(tasks.finish());
  return {end(result, read), end(result, write)};
}

// Within the rounding of a gigabyte to 4096 bytes.
Approx about(double value) { return Approx(value).epsilon(5e-6); }

}  // namespace

TEST_CASE("A copy takes latency + bytes / rate, and its direction's rate") {
  Machine machine = round_machine();
  machine.pcie.latency_ns = 10000;
  Tasks tasks(small_problem(machine));
  const TaskId down = tasks.h2d(40960);  // 10 us + 40960 / 10 GB/s
  const TaskId up = tasks.d2h(40960);    // 10 us + 40960 / 5 GB/s
  const SimulationResult result = simulate(tasks.finish());
  CHECK(result.tasks[down].end_ns == 10000 + 4096);
  CHECK(result.tasks[up].end_ns == 10000 + 8192);
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

TEST_CASE("Every task waits for its submission before it moves a byte") {
  // Latencies: launch 1, copies 2, reads 3, writes 4, barriers 5 ms; amounts take 1 ms each.
  Machine machine = round_machine();
  machine.gpu.launch_ns = 1'000'000;
  machine.pcie.latency_ns = 2'000'000;
  machine.ssd.read_latency_ns = 3'000'000;
  machine.ssd.write_latency_ns = 4'000'000;
  machine.host.sync_ns = 5'000'000;
  Problem problem = small_problem(machine);
  problem.machine.gpu.flops = problem.model.block_forward_flops(4, 128) * 1e3;
  Tasks tasks(problem);
  const TaskId forward = tasks.forward();
  const TaskId down = tasks.h2d(gigabyte / 100);
  const TaskId up = tasks.d2h(gigabyte / 200);
  const TaskId read = tasks.read(gigabyte / 1000 * 7);
  const TaskId barrier = tasks.program.barrier();
  const TaskId write = tasks.write(gigabyte / 1000 * 5);
  const SimulationResult result = simulate(tasks.finish());
  const auto milliseconds = [](double value) { return Approx(value * 1e-3).epsilon(2e-3); };
  CHECK(seconds(result, forward) == milliseconds(1 + 1));
  CHECK(seconds(result, down) == milliseconds(2 + 1));
  CHECK(seconds(result, up) == milliseconds(2 + 1));
  CHECK(seconds(result, read) == milliseconds(3 + 1));
  CHECK(seconds(result, write) == milliseconds(4 + 1));
  CHECK(seconds(result, barrier) == milliseconds(5));
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

TEST_CASE("Passes beside AdamW take the CPU as long, byte by byte, as AdamW itself") {
  // 1.024e6 parameters at 1e9 per s: 1.024 ms for 28 bytes each; 14 bytes more take half as long
  // again. On the GPU there are no such passes: 1.024e6 / 1e10.
  Tasks tasks(small_problem(round_machine()));
  const TaskId plain = tasks.optimizer(Tier::host, 1024000);
  const TaskId passes = tasks.optimizer(Tier::host, 1024000, 14);
  const TaskId on_gpu = tasks.optimizer(Tier::gpu, 1024000, 14);
  const SimulationResult result = simulate(tasks.finish());
  CHECK(seconds(result, plain) == Approx(1.024e-3).margin(1e-9));
  CHECK(seconds(result, passes) == Approx(1.536e-3).margin(1e-9));
  CHECK(seconds(result, on_gpu) < 0.2e-3);
}

TEST_CASE("Compute takes launch + FLOPs / rate, the optimizer on the GPU launch + params / rate") {
  Machine machine = round_machine();
  machine.gpu.launch_ns = 5000;
  const Problem problem = small_problem(machine);
  Tasks tasks(problem);
  const TaskId forward = tasks.forward();
  const TaskId adam = tasks.optimizer(Tier::gpu, 10240);  // 5 us + 10240 / 1e10 per s
  const SimulationResult result = simulate(tasks.finish());
  CHECK(seconds(result, forward) ==
        Approx(5e-6 + problem.model.block_forward_flops(4, 128) / 1e12).margin(1e-9));
  CHECK(seconds(result, adam) == Approx(5e-6 + 1.024e-6).margin(1e-9));
  CHECK_FALSE(result.extrapolated);
}

TEST_CASE(
    "The CPU's optimizer takes host.wake + params / rate beside a GPU, not on the CPU backend") {
  Machine machine = round_machine();
  machine.host.wake_ns = 7000;
  const auto time = [&] {
    Tasks tasks(small_problem(machine));
    const TaskId adam = tasks.optimizer(Tier::host, 1024000);
    return seconds(simulate(tasks.finish()), adam);
  };
  const double beside_gpu = time();
  machine.host.wake_ns = 0;
  CHECK(beside_gpu == Approx(time() + 7e-6).margin(1e-9));
  machine.gpu.is_cpu = true;
  const double without = time();
  machine.host.wake_ns = 7000;
  CHECK(time() == without);
}

TEST_CASE("Measured optimizers take time by what they move: 24 bytes, a gradient, a parameter") {
  // Measured with 32-bit gradients and 16-bit parameters: 30 bytes. 1.536e6 parameters at 1e9 per s
  // on the CPU and 1e10 on the GPU: 1.536 ms and 0.1536 ms. With 16-bit gradients 28 bytes, and
  // 28/30 of the time; in fp32 32 bytes, and 32/30.
  Machine machine = round_machine();
  machine.host.adam_bytes_per_param = 30;
  const auto times = [&](Precision precision, GradientWidth gradient, std::uint8_t pass_bytes = 0) {
    Problem problem = small_problem(machine);
    problem.workload.precision = precision;
    problem.workload.gradient = gradient;
    Tasks tasks(problem);
    const TaskId host = tasks.optimizer(Tier::host, 1536000, pass_bytes);
    const TaskId gpu = tasks.optimizer(Tier::gpu, 1536000);
    const SimulationResult result = simulate(tasks.finish());
    return std::pair(seconds(result, host), seconds(result, gpu));
  };
  const auto check = [](std::pair<double, double> found, double factor, double passes = 0) {
    CHECK(found.first == Approx((factor + passes) * 1.536e-3).margin(1e-9));
    CHECK(found.second == Approx(factor * 1.536e-4).margin(1e-9));
  };
  // Not measured: the machine's rates are taken as they are.
  check(times(Precision::bf16, GradientWidth::bits16), 1);
  machine.kernels.push_back({"optimizer", "params=1024", 0, 1000, 0, {1000}});
  check(times(Precision::bf16, GradientWidth::bits32), 1);
  check(times(Precision::bf16, GradientWidth::bits16), 28.0 / 30);
  check(times(Precision::fp32, GradientWidth::bits32), 32.0 / 30);
  // Passes beside it take their own bytes: 15 of 30 are half of the time at the rate.
  check(times(Precision::bf16, GradientWidth::bits16, 15), 28.0 / 30, 0.5);
  // The CPU backend is measured in fp32 and trains in fp32.
  machine.gpu.is_cpu = true;
  const auto on_cpu = times(Precision::fp32, GradientWidth::bits32);
  machine.kernels.clear();
  CHECK(times(Precision::fp32, GradientWidth::bits32) == on_cpu);
}

TEST_CASE("With bf16 moments AdamW takes time by the bytes it moves, and so much less of DRAM") {
  // 1.536e6 parameters at 1e9 per s on the CPU and 1e10 on the GPU, rates of fp32 moments. In bf16
  // 28 bytes a parameter (24 + 2 + 2) become 20 (16 + 2 + 2); in fp32 32 become 24.
  Machine machine = round_machine();
  const auto times = [&](Precision precision) {
    Problem problem = small_problem(machine);
    problem.workload.precision = precision;
    problem.workload.gradient =
        precision == Precision::bf16 ? GradientWidth::bits16 : GradientWidth::bits32;
    problem.workload.moments = MomentWidth::bf16;
    Tasks tasks(problem);
    const TaskId host = tasks.optimizer(Tier::host, 1536000);
    const TaskId gpu = tasks.optimizer(Tier::gpu, 1536000);
    const SimulationResult result = simulate(tasks.finish());
    return std::pair(seconds(result, host), seconds(result, gpu));
  };
  const auto check = [](std::pair<double, double> found, double factor) {
    CHECK(found.first == Approx(factor * 1.536e-3).margin(1e-9));
    CHECK(found.second == Approx(factor * 1.536e-4).margin(1e-9));
  };
  check(times(Precision::bf16), 20.0 / 28);
  check(times(Precision::fp32), 24.0 / 32);
  // Measured with 32-bit gradients, 16-bit parameters and fp32 moments: 30 bytes.
  machine.host.adam_bytes_per_param = 30;
  machine.kernels.push_back({"optimizer", "params=1024", 0, 1000, 0, {1000}});
  check(times(Precision::bf16), 20.0 / 30);
  check(times(Precision::fp32), 24.0 / 30);
  // DRAM of 30e8 bytes/s holds 1e8 parameters a second with 30 bytes each; with 20, half as many
  // more.
  machine.host.bandwidth = 30e8;
  CHECK(times(Precision::bf16).first == Approx(20.0 / 30 * 1.536e-2).margin(1e-8));
}

TEST_CASE("Without a rate of its own, the GPU's optimizer moves 28 bytes per parameter") {
  Machine machine = round_machine();
  machine.gpu.adam_params_per_second = 0;  // 1e12 / 28 params/s
  Tasks tasks(small_problem(machine));
  const TaskId adam = tasks.optimizer(Tier::gpu, 1024000);
  CHECK(seconds(simulate(tasks.finish()), adam) == Approx(1024000 * 28 / 1e12).margin(1e-9));
}

TEST_CASE("The embedding is bound by GPU memory: bytes / memory bandwidth") {
  Machine machine = round_machine();
  machine.gpu.memory_bandwidth = 1e9;
  Tasks tasks(small_problem(machine));
  const Slice output = tasks.fresh(Tier::gpu, 409600);
  const TaskId embed = tasks.program.embed_forward(0, tasks.fresh(Tier::gpu, 4096), output);
  const Schedule schedule = tasks.finish();
  const double bytes = static_cast<double>(schedule.tasks()[embed].bytes);
  REQUIRE(bytes > 0);
  CHECK(seconds(simulate(schedule), embed) == Approx(bytes / 1e9).margin(1e-9));
}

TEST_CASE("On a CPU machine threads share the cores equally") {
  // One core. A forward pass (1 core) and Adam (1 core) at half speed each, so each takes twice as
  // long while both run. Both take t alone: they end together at 2 t.
  Machine machine = cpu_machine(1);
  const Problem problem = small_problem(machine);
  const double t = problem.model.block_forward_flops(4, 128) / 1e11;
  machine.host.adam_params_per_second = 1024000 / t;
  machine.host.bandwidth = 1e15;
  Tasks tasks(small_problem(machine));
  const TaskId forward = tasks.forward();
  const TaskId adam = tasks.optimizer(Tier::host, 1024000);
  const SimulationResult result = simulate(tasks.finish());
  CHECK(end(result, forward) == Approx(2 * t).margin(2e-9));
  CHECK(end(result, adam) == Approx(2 * t).margin(2e-9));
  CHECK(result.extrapolated);  // no kernel was measured
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

TEST_CASE("A rate that the schedule needs and the machine lacks is named with a hint") {
  const auto refused = [](const std::string& key, const auto& spoil, const auto& emit) {
    Machine machine = round_machine();
    spoil(machine);
    Tasks tasks(small_problem(machine));
    emit(tasks);
    const Schedule schedule = tasks.finish();
    try {
      simulate(schedule);
      FAIL("simulated without " << key);
    } catch (const InputError& error) {
      CHECK_THAT(error.what(), Contains(key));
      CHECK_THAT(error.hint(), Contains(key + " = "));
    }
  };
  refused(
      "ssd.read", [](Machine& m) { m.ssd.read = 0; }, [](Tasks& t) { t.read(4096); });
  refused(
      "ssd.write", [](Machine& m) { m.ssd.write = 0; }, [](Tasks& t) { t.write(4096); });
  refused(
      "pcie.h2d", [](Machine& m) { m.pcie.h2d = 0; }, [](Tasks& t) { t.h2d(4096); });
  refused(
      "pcie.d2h", [](Machine& m) { m.pcie.d2h = 0; }, [](Tasks& t) { t.d2h(4096); });
  refused(
      "gpu.flops", [](Machine& m) { m.gpu.flops = 0; }, [](Tasks& t) { t.forward(); });
  refused(
      "host.adam_rate", [](Machine& m) { m.host.adam_params_per_second = 0; },
      [](Tasks& t) { t.optimizer(Tier::host, 2048); });
}
