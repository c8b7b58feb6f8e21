// Where half of a rate must show in a prediction, and where it must not: DRAM, cores, PCIe, drives.
// And how the threads and engines of a GPU machine share its host.
#include <catch2/catch.hpp>

#include "policies/common/policy.hpp"
#include "sim/simulate.hpp"
#include "tests/policies/cost/problems.hpp"

using namespace spillway;
using namespace spillway::test;

namespace {

struct Case {
  std::string machine, model, policy;
  std::int64_t batch;
};

double step_seconds(const Case& one, const std::vector<std::string>& settings) {
  Problem problem;
  problem.machine = load_machine(one.machine, settings);
  problem.model = load_model(one.model);
  problem.workload.batch = problem.workload.micro_batch = one.batch;
  if (problem.machine.gpu.is_cpu) {
    problem.workload.precision = Precision::fp32;
    problem.workload.sequence = 64;
  }
  const Schedule schedule = build_schedule(problem, one.policy, 3);
  REQUIRE(schedule.fits());
  return simulate(schedule).step_seconds;
}

// How much longer a step takes with these settings than with the machine's own rates.
double slower(const Case& one, const std::vector<std::string>& settings) {
  return step_seconds(one, settings) / step_seconds(one, {});
}

std::vector<std::string> halved(const std::string& machine, const std::vector<std::string>& rates) {
  const Machine whole = load_machine(machine);
  const auto value = [&](const std::string& key) {
    if (key == "host.bandwidth") return whole.host.bandwidth;
    if (key == "pcie.h2d") return whole.pcie.h2d;
    if (key == "pcie.d2h") return whole.pcie.d2h;
    if (key == "ssd.read") return whole.ssd.read;
    if (key == "ssd.write") return whole.ssd.write;
    REQUIRE(key == "ssd.total");
    return whole.ssd.total;
  };
  std::vector<std::string> settings;
  for (const std::string& key : rates)
    settings.push_back(key + "=" + std::to_string(value(key) / 2) + "B/s");
  return settings;
}

constexpr double unchanged = 1e-9;

const Case all_on_gpu = {"rtx4090-2ssd", "gpt2-124m", "resident", 8};
const Case states_in_host = {"rtx4090-2ssd", "gpt2-1.5b", "zero-offload", 1};
const Case states_on_ssd = {"rtx4090-2ssd", "gpt-6b", "fuyou", 4};

}  // namespace

TEST_CASE("Half of DRAM's bandwidth slows an update in host memory, not a model on the GPU") {
  const auto half = [](const Case& one) {
    return slower(one, halved(one.machine, {"host.bandwidth"}));
  };
  // AdamW streams its state through DRAM: of its update, all; the step has compute beside.
  CHECK(half(states_in_host) > 1.2);
  CHECK(half({"rtx3090-2ssd", "gpt2-1.5b", "zero-offload", 4}) > 1.2);
  CHECK(half(all_on_gpu) == Approx(1).margin(unchanged));
}

TEST_CASE("Half of the link slows a model whose gradients cross it, not one on the GPU") {
  const auto half = [](const Case& one) {
    return slower(one, halved(one.machine, {"pcie.h2d", "pcie.d2h"}));
  };
  CHECK(half(states_in_host) > 1.1);
  CHECK(half(all_on_gpu) == Approx(1).margin(unchanged));
}

TEST_CASE("Half of the drives' rates doubles a step that they bound, and no other") {
  const auto half = [](const Case& one) {
    return slower(one, halved(one.machine, {"ssd.read", "ssd.write", "ssd.total"}));
  };
  CHECK(half(states_on_ssd) > 1.9);
  CHECK(half(states_in_host) == Approx(1).margin(unchanged));
  CHECK(half(all_on_gpu) == Approx(1).margin(unchanged));
}

TEST_CASE("Half of the cores slows a program that computes on them, not an update that few do") {
  // One core of two for compute, for updates that it hides with two, and for the drives' threads.
  CHECK(slower({"testbed", "gpt-small", "greedysnake", 4}, {"host.cores=1"}) > 1.04);
  // As shipped: DRAM of 70 GB/s is full with two and a half cores of 28 GB/s, of which eight have
  // as many as sixteen; of four, half do not.
  const Case many_updates = {"rtx4090-2ssd", "gpt-6b", "greedysnake", 4};
  for (const Case& one : {states_in_host, many_updates}) {
    INFO(one.policy);
    CHECK(slower(one, {"host.cores=8"}) == Approx(1).margin(unchanged));
    CHECK(step_seconds(one, {"host.cores=2"}) > 1.1 * step_seconds(one, {"host.cores=4"}));
    CHECK(step_seconds(one, {"host.cores=1"}) > 1.5 * step_seconds(one, {"host.cores=2"}));
  }
  // A lane of the drives keeps a core busy: an update beside it has what it leaves.
  const auto with_few = [&](const char* cores, const char* lanes) {
    return step_seconds({"rtx4090-2ssd", "gpt2-1.5b", "zero-infinity", 4}, {cores, lanes});
  };
  for (const auto& [cores, least] : {std::pair("host.cores=1", 1.2), {"host.cores=2", 1.01}}) {
    INFO(cores);
    CHECK(with_few(cores, "ssd.cores=1") > least * with_few(cores, "ssd.cores=0.001"));
  }
  // The server of Ratel has 52 cores, of which AdamW keeps 24 busy.
  const Case on_server = {"rtx4090-12ssd", "gpt-6b", "zero-offload", 8};
  CHECK(slower(on_server, {"host.cores=26"}) == Approx(1).margin(unchanged));
  CHECK(slower(on_server, {"host.cores=12"}) > 1.1);
}

TEST_CASE("Shipped machines say how many cores launches and the drives' lanes keep busy") {
  for (const Machine& machine : builtin_machines()) {
    if (machine.gpu.is_cpu) continue;
    INFO(machine.name);
    CHECK(machine.host.core_bandwidth > 0);
    CHECK(machine.sources.count("gpu.cores") == 1);
    CHECK(machine.sources.count("ssd.cores") == (machine.ssd.count > 0 ? 1 : 0));
  }
}

TEST_CASE("Copies over PCIe and drives share a root complex that carries less than all of them") {
  // 8.5 GB to the GPU and as many from a drive, each at 8.5 GB/s: a second where both fit, 17 GB/s,
  // two where half of that does.
  const auto seconds = [](double io) {
    Machine machine = round_machine();
    machine.host.io_bandwidth = io;
    machine.pcie.h2d = 8.5e9;
    machine.ssd.read = 8.5e9;
    Tasks tasks(small_problem(machine));
    tasks.read(gigabyte / 2 * 17);
    tasks.h2d(gigabyte / 2 * 17);
    return static_cast<double>(simulate(tasks.finish()).step_ends_ns[0]) * 1e-9;
  };
  CHECK(seconds(0) == Approx(1).epsilon(1e-3));
  CHECK(seconds(17e9) == Approx(1).epsilon(1e-3));
  CHECK(seconds(8.5e9) == Approx(2).epsilon(1e-3));
}

TEST_CASE("On a GPU machine AdamW has the cores that launches and pageable copies leave") {
  // Two cores of 14 GB/s, DRAM that does not limit: 28 bytes a parameter, 1e9 parameters/s. Beside
  // a forward pass, whose launches keep one core busy, half of that.
  Machine machine = round_machine();
  machine.host.cores = 2;
  machine.host.core_bandwidth = 14e9;
  const auto adam = [&](const auto& beside) {
    Problem problem = small_problem(machine);
    problem.machine.gpu.flops = problem.model.layer_forward_flops(4, 128);  // a second
    Tasks tasks(problem);
    const TaskId update = tasks.optimizer(Tier::host, 500'000'000 / 2048 * 2048);
    beside(tasks);
    const SimulationResult result = simulate(tasks.finish());
    return static_cast<double>(result.tasks[update].end_ns - result.tasks[update].start_ns) * 1e-9;
  };
  const double alone = adam([](Tasks&) {});
  CHECK(alone == Approx(0.5).epsilon(1e-3));
  CHECK(adam([](Tasks& tasks) { tasks.forward(); }) == Approx(2 * alone).epsilon(1e-3));
  // Without a core's bandwidth nobody knows who waits for whom.
  machine.host.core_bandwidth = 0;
  CHECK(adam([](Tasks& tasks) { tasks.forward(); }) == Approx(alone).epsilon(1e-3));
}
