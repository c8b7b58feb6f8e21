// What tasks, copies and requests take alone.
#include "policies/cost/costs.hpp"

#include <catch2/catch.hpp>

#include "base/errors.hpp"
#include "policies/model/operators.hpp"
#include "policies/model/saved.hpp"
#include "tests/policies/cost/problems.hpp"

using namespace spillway;
using namespace spillway::test;
using Catch::Matchers::Contains;

namespace {

double seconds(const Schedule& schedule, TaskId task) {
  return Costs(schedule.problem()).seconds(schedule.tasks()[task]);
}

}  // namespace

TEST_CASE("A copy takes latency + bytes / rate, and its direction's rate") {
  Machine machine = round_machine();
  machine.pcie.latency_ns = 10000;
  Tasks tasks(small_problem(machine));
  const TaskId down = tasks.h2d(40960);  // 10 us + 40960 / 10 GB/s
  const TaskId up = tasks.d2h(40960);    // 10 us + 40960 / 5 GB/s
  const Schedule schedule = tasks.finish();
  CHECK(seconds(schedule, down) == Approx(10e-6 + 4.096e-6));
  CHECK(seconds(schedule, up) == Approx(10e-6 + 8.192e-6));
}

TEST_CASE("Every task waits for its submission before it moves a byte") {
  // Latencies: launch 1, copies 2, reads 3, writes 4, barriers 5 ms; amounts take 1 ms each, but a
  // forward pass as long as its eight kernels take to start.
  Machine machine = round_machine();
  machine.gpu.launch_ns = 1'000'000;
  machine.pcie.latency_ns = 2'000'000;
  machine.ssd.read_latency_ns = 3'000'000;
  machine.ssd.write_latency_ns = 4'000'000;
  machine.host.sync_ns = 5'000'000;
  Problem problem = small_problem(machine);
  problem.machine.gpu.flops = problem.model.layer_forward_flops(4, 128) * 1e3;
  Tasks tasks(problem);
  const TaskId forward = tasks.forward();
  const TaskId down = tasks.h2d(gigabyte / 100);
  const TaskId up = tasks.d2h(gigabyte / 200);
  const TaskId read = tasks.read(gigabyte / 1000 * 7);
  const TaskId barrier = tasks.program.barrier();
  const TaskId write = tasks.write(gigabyte / 1000 * 5);
  const Schedule schedule = tasks.finish();
  const auto milliseconds = [](double value) { return Approx(value * 1e-3).epsilon(2e-3); };
  CHECK(seconds(schedule, forward) == milliseconds(1 + 8));
  CHECK(seconds(schedule, down) == milliseconds(2 + 1));
  CHECK(seconds(schedule, up) == milliseconds(2 + 1));
  CHECK(seconds(schedule, read) == milliseconds(3 + 1));
  CHECK(seconds(schedule, write) == milliseconds(4 + 1));
  CHECK(seconds(schedule, barrier) == milliseconds(5));
}

TEST_CASE("Passes beside AdamW take the CPU as long, byte by byte, as AdamW itself") {
  // 1.024e6 parameters at 1e9 per s: 1.024 ms for 28 bytes each; 14 bytes more take half as long
  // again. On the GPU there are no such passes: 1.024e6 / 1e10.
  Tasks tasks(small_problem(round_machine()));
  const TaskId plain = tasks.optimizer(Tier::host, 1024000);
  const TaskId on_gpu = tasks.optimizer(Tier::gpu, 1024000);
  const Schedule schedule = tasks.finish();
  const auto with_passes = [&](TaskId id) {
    Task task = schedule.tasks()[id];
    task.pass_bytes = 14;
    return Costs(schedule.problem()).seconds(task);
  };
  CHECK(seconds(schedule, plain) == Approx(1.024e-3).margin(1e-9));
  CHECK(with_passes(plain) == Approx(1.536e-3).margin(1e-9));
  CHECK(with_passes(on_gpu) < 0.2e-3);
}

TEST_CASE("Compute takes launch + FLOPs / rate, the optimizer on the GPU launch + params / rate") {
  Machine machine = round_machine();
  machine.gpu.launch_ns = 5000;
  const Problem problem = small_problem(machine);
  Tasks tasks(problem);
  const TaskId forward = tasks.forward();
  const TaskId adam = tasks.optimizer(Tier::gpu, 10240);  // 5 us + 10240 / 1e10 per s
  const Schedule schedule = tasks.finish();
  CHECK(seconds(schedule, forward) ==
        Approx(5e-6 + problem.model.layer_forward_flops(4, 128) / 1e12).margin(1e-9));
  CHECK(seconds(schedule, adam) == Approx(5e-6 + 1.024e-6).margin(1e-9));
  CHECK_FALSE(Costs(problem).of(schedule.tasks()[forward]).extrapolated);
}

TEST_CASE(
    "The CPU's optimizer takes host.wake + params / rate beside a GPU, not on the CPU backend") {
  Machine machine = round_machine();
  machine.host.wake_ns = 7000;
  const auto time = [&] {
    Tasks tasks(small_problem(machine));
    const TaskId adam = tasks.optimizer(Tier::host, 1024000);
    return seconds(tasks.finish(), adam);
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
    const TaskId host = tasks.optimizer(Tier::host, 1536000);
    const TaskId gpu = tasks.optimizer(Tier::gpu, 1536000);
    const Schedule schedule = tasks.finish();
    Task on_host = schedule.tasks()[host];
    on_host.pass_bytes = pass_bytes;
    return std::pair(Costs(problem).seconds(on_host), seconds(schedule, gpu));
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
  // The CPU backend as well.
  machine.gpu.is_cpu = true;
  const auto on_cpu = [&] { return times(Precision::fp32, GradientWidth::bits32).first; };
  CHECK(on_cpu() == Approx(32.0 / 30 * 1.536e-3));
  machine.kernels.clear();
  CHECK(on_cpu() == Approx(1.536e-3));
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
    const Schedule schedule = tasks.finish();
    return std::pair(seconds(schedule, host), seconds(schedule, gpu));
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
  CHECK(seconds(tasks.finish(), adam) == Approx(1024000 * 28 / 1e12).margin(1e-9));
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
  CHECK(seconds(schedule, embed) == Approx(bytes / 1e9).margin(1e-9));
}

TEST_CASE("A rate that the schedule needs and the machine lacks is named with a hint") {
  const auto refused = [](const std::string& key, const auto& spoil, const auto& emit) {
    Machine machine = round_machine();
    spoil(machine);
    Tasks tasks(small_problem(machine));
    emit(tasks);
    const Schedule schedule = tasks.finish();
    try {
      seconds(schedule, 0);
      FAIL("timed without " << key);
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

TEST_CASE("Bytes each way over a link: each at its rate, both at what they share") {
  const LinkRates apart{10, 5};
  CHECK(apart.seconds(30, 0) == Approx(3));
  CHECK(apart.seconds(30, 20) == Approx(4));
  CHECK(apart.one_way() == 5);
  const LinkRates shared{10, 5, 8};
  CHECK(shared.seconds(30, 20) == Approx(50.0 / 8));
  CHECK(shared.seconds(0, 20) == Approx(4));
  CHECK(LinkRates{}.seconds(30, 20) == 0);  // rates that are not known limit nothing
}

TEST_CASE(
    "Links and drives have the machine's rates, at its queue depth, as far as it gives them") {
  Machine machine = round_machine();
  machine.pcie.total = 12e9;
  machine.ssd.total = 8e9;
  machine.ssd.by_queue_depth = {{4, {0.5, 0.4, 0.5}}, {16, {1, 1, 1}}};
  const auto drives = [&](std::int64_t depth) {
    machine.ssd.queue_depth = depth;
    const Problem problem = small_problem(machine);
    return Costs(problem).drives();
  };
  CHECK(drives(16).read == Approx(7e9));
  CHECK(drives(16).write == Approx(5e9));
  CHECK(drives(16).seconds(16e9, 16e9) == Approx(32e9 / 8e9));
  CHECK(drives(4).read == Approx(3.5e9));
  CHECK(drives(4).write == Approx(2e9));
  CHECK(drives(4).seconds(16e9, 16e9) == Approx(32e9 / 4e9));
  machine.ssd.law = SsdLaw::simplex;
  CHECK(drives(16).seconds(7e9, 5e9) == Approx(2));
  Problem problem = small_problem(machine);
  CHECK(Costs(problem).links().h2d == Approx(10e9));
  CHECK(Costs(problem).links().d2h == Approx(5e9));
  CHECK(Costs(problem).links().total == 12e9);
  // A memory slower than the link sets the rate.
  problem.machine.host.bandwidth = 6e9;
  CHECK(Costs(problem).links().h2d == Approx(6e9));
  problem.machine.pcie.h2d = problem.machine.ssd.write = 0;
  CHECK(Costs(problem).links().h2d == 0);
  CHECK(Costs(problem).drives().write == 0);
}

TEST_CASE("A framework's time per operation comes before the bytes of every read and write") {
  // Latencies of 3 and 4 ms of the machine, 30 and 50 of the program; 1 ms for the bytes.
  Machine machine = round_machine();
  machine.ssd.read_latency_ns = 3'000'000;
  machine.ssd.write_latency_ns = 4'000'000;
  Problem problem = small_problem(machine);
  problem.framework = "ratel:io.read_operation=30ms,io.write_operation=50ms";
  Tasks tasks(problem);
  const TaskId read = tasks.read(gigabyte / 1000 * 7);
  const TaskId write = tasks.write(gigabyte / 1000 * 5);
  const TaskId copy = tasks.h2d(gigabyte / 100);
  const Schedule schedule = tasks.finish();
  const auto milliseconds = [](double value) { return Approx(value * 1e-3).epsilon(2e-3); };
  CHECK(seconds(schedule, read) == milliseconds(3 + 30 + 1));
  CHECK(seconds(schedule, write) == milliseconds(4 + 50 + 1));
  CHECK(seconds(schedule, copy) == milliseconds(1));
}

TEST_CASE("A machine without rates knows none, and says so before it is asked") {
  Problem problem = small_problem(round_machine());
  for (std::size_t work = 0; work < work_count; ++work) {
    const bool is_there = drive_work(static_cast<Work>(work)).set <= 0;
    CHECK(Costs(problem).knows(static_cast<Work>(work)) == is_there);
  }
  problem.machine = {};
  const Costs costs(problem);
  for (std::size_t work = 0; work < work_count; ++work)
    CHECK_FALSE(costs.knows(static_cast<Work>(work)));
  CHECK(costs.updates_per_second(Lane::gpu_compute) == 0);
  CHECK(costs.updates_per_second(Lane::cpu_optimizer) == 0);
  CHECK_THROWS_AS(costs.rate(Work::read), InputError);
  CHECK_THROWS_AS(costs.forward_seconds(), InputError);
}

TEST_CASE("Updates per second go with the bytes that AdamW moves, up to what DRAM carries") {
  // 28 bytes at 1e9 a second; with 16-bit moments 20. DRAM of 14 GB/s: half of 28 GB/s.
  Problem problem = small_problem(round_machine());
  problem.workload.gradient = GradientWidth::bits16;
  CHECK(Costs(problem).updates_per_second(Lane::cpu_optimizer) == Approx(1e9));
  CHECK(Costs(problem).updates_per_second(Lane::gpu_compute) == Approx(1e10));
  problem.workload.moments = MomentWidth::bf16;
  CHECK(Costs(problem).updates_per_second(Lane::cpu_optimizer) == Approx(1e9 * 28 / 20));
  problem.workload.moments = MomentWidth::fp32;
  problem.machine.host.bandwidth = 14e9;
  CHECK(Costs(problem).updates_per_second(Lane::cpu_optimizer) == Approx(0.5e9));
}

TEST_CASE("What a planner asks for is what the tasks of a schedule take") {
  Machine machine = round_machine();
  machine.gpu.launch_ns = 3000;
  Problem problem = small_problem(machine);
  for (const bool measured : {false, true}) {
    if (measured) {
      // Half as fast as gpu.flops, whatever the shape.
      problem.machine.kernels.push_back({"forward", "another shape", 1e9, 2'000'000, 0, {}});
    }
    for (const char* recompute : {"off", "needed", "full"}) {
      const Schedule schedule =
          build_schedule(problem, std::string("resident:recompute=") + recompute, 1);
      const Costs costs(problem);
      int seen = 0;
      for (const Task& task : schedule.tasks()) {
        if (task.kind == TaskKind::forward && task.saves == saved_none) {
          CHECK(costs.seconds(task) == costs.forward_seconds());
        } else if (task.kind == TaskKind::backward) {
          CHECK(costs.seconds(task) ==
                costs.backward_seconds(task.available, task.recomputes_output));
          ++seen;
        } else if (task.kind == TaskKind::head) {
          CHECK(costs.seconds(task) == costs.head_seconds());
          ++seen;
        }
      }
      CHECK(seen == 3);  // two layers and the head
    }
    const double flops = measured ? 0.5e12 : 1e12;
    CHECK(Costs(problem).forward_seconds() == Approx(3e-6 + forward_flops(problem) / flops));
    CHECK(Costs(problem).backward_seconds(saved_none, true) ==
          Approx(3e-6 + 3 * forward_flops(problem) / flops));
  }
}
