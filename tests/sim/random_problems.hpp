// Random machines, workloads and policies, for properties that hold for every simulation.
#pragma once

#include <cmath>
#include <optional>
#include <random>
#include <string>

#include "base/errors.hpp"
#include "tests/policies/schedules.hpp"

namespace spillway::test {

class RandomProblems {
 public:
  explicit RandomProblems(std::uint64_t seed) : random_(seed) {}

  std::uint64_t below(std::uint64_t n) { return random_() % n; }
  bool one_in(std::uint64_t n) { return below(n) == 0; }
  // Log-uniform in [least, least * 2^octaves).
  double about(double least, double octaves) {
    return least * std::exp2(octaves * static_cast<double>(below(1 << 20)) / (1 << 20));
  }

  // Fast and slow lanes, with and without latencies, every law of the drives, GPU or CPU backend.
  // A tiny model moves tens of kilobytes: rates around 1 GB/s make that tens of microseconds.
  Machine machine() {
    Machine machine;
    machine.name = "random";
    machine.gpu.is_cpu = one_in(4);
    machine.gpu.memory = machine.host.memory = machine.ssd.capacity = plenty;
    machine.gpu.flops = about(1e10, 8);
    if (!one_in(3)) machine.gpu.memory_bandwidth = about(1e9, 6);
    machine.gpu.adam_params_per_second = about(1e8, 6);
    machine.pcie.h2d = about(2e8, 6);
    machine.pcie.d2h = about(2e8, 6);
    if (one_in(3)) machine.pcie.total = about(2e8, 6);
    if (one_in(3)) machine.pcie.pageable_h2d = about(1e8, 4);
    if (one_in(3)) machine.pcie.pageable_d2h = about(1e8, 4);
    machine.host.bandwidth = about(5e8, 6);
    machine.host.cores = static_cast<double>(1 + below(8));
    machine.host.adam_params_per_second = about(2e7, 6);
    machine.host.adam_bytes_per_param = one_in(2) ? 28 : 32;
    if (one_in(2)) machine.host.adam_cores = 1;
    machine.ssd.count = 1;
    machine.ssd.law = static_cast<SsdLaw>(below(4));
    machine.ssd.mixed_gain = 1 + 0.1 * static_cast<double>(below(11));
    for (const double share : {0.25, 0.5, 0.75}) {
      if (one_in(4)) machine.ssd.by_read_share[share] = 1 + 0.1 * static_cast<double>(below(11));
    }
    machine.ssd.read = about(1e8, 6);
    machine.ssd.write = about(1e8, 6);
    if (one_in(2)) machine.ssd.total = about(1e8, 6);
    if (one_in(2)) machine.ssd.cores = 0.5;
    for (std::int64_t* latency :
         {&machine.gpu.launch_ns, &machine.pcie.latency_ns, &machine.host.sync_ns,
          &machine.ssd.read_latency_ns, &machine.ssd.write_latency_ns}) {
      if (one_in(2)) *latency = static_cast<std::int64_t>(below(20000));
    }
    return machine;
  }

  // A policy of the list that can run the problem, with `steps` steps.
  Schedule schedule(int steps) {
    const std::vector<std::string> policies = policy_settings();
    for (;;) {
      Problem problem =
          tiny_problem(static_cast<int>(1 + below(4)), static_cast<int>(1 + below(4)));
      problem.machine = machine();
      if (problem.machine.gpu.is_cpu) problem.workload.precision = Precision::fp32;
      const std::string policy = policies[below(policies.size())];
      try {
        return build_schedule(problem, policy, steps);
      } catch (const InputError&) {
        continue;  // this policy refuses this problem
      }
    }
  }

 private:
  std::mt19937_64 random_;
};

// The same schedule on a machine on which everything takes twice as long.
inline Schedule twice_as_slow(const Schedule& schedule) {
  Problem problem = schedule.problem();
  Machine& m = problem.machine;
  for (double* rate :
       {&m.gpu.flops, &m.gpu.attention_flops, &m.gpu.memory_bandwidth, &m.host.core_bandwidth,
        &m.host.io_bandwidth, &m.gpu.adam_params_per_second, &m.pcie.h2d, &m.pcie.d2h,
        &m.pcie.total, &m.pcie.pageable_h2d, &m.pcie.pageable_d2h, &m.host.bandwidth,
        &m.host.adam_params_per_second, &m.ssd.read, &m.ssd.write, &m.ssd.total}) {
    *rate /= 2;
  }
  for (std::int64_t* latency : {&m.gpu.launch_ns, &m.pcie.latency_ns, &m.host.sync_ns,
                                &m.host.wake_ns, &m.ssd.read_latency_ns, &m.ssd.write_latency_ns}) {
    *latency *= 2;
  }
  for (KernelTime& kernel : m.kernels) kernel.median_ns *= 2;
  return build_schedule(problem, schedule.policy(), schedule.steps());
}

}  // namespace spillway::test
