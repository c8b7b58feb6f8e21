// deep-optimizer-states: which sub-groups the GPU updates, and what moves.
#include <catch2/catch.hpp>

#include "policies/deep_optimizer_states/update_stride.hpp"
#include "policies/model/tensors.hpp"
#include "tests/policies/common/traffic.hpp"
#include "tests/policies/zero/sub_groups.hpp"

using namespace spillway;
using namespace spillway::test;

TEST_CASE("The stride of Deep Optimizer States: k = 1 + U_c (24 / B + 1 / U_g)") {
  Problem problem = tiny_problem(1, 1);
  problem.machine = {};
  Machine& machine = problem.machine;
  machine.host.adam_params_per_second = 1.9e9;
  machine.gpu.adam_params_per_second = 100e9;
  machine.pcie.h2d = machine.pcie.d2h = 50e9;
  // 1 + 1.9 (0.48 + 0.01) = 1.931: the authors' best is 2.
  CHECK(ideal_stride(update_rates(problem, Costs(problem), false)) == Approx(1.931));
  CHECK(best_stride(update_rates(problem, Costs(problem), false)) == 2);
  // With two staging buffers both ways run at once: 1 + 1.9 (0.24 + 0.01).
  CHECK(ideal_stride(update_rates(problem, Costs(problem), true)) == Approx(1.475));
  // With 8 bytes of state in place of 12, and AdamW's own 20 in place of 28 (24 + 2 + 2):
  // 1 + 1.9 x 28/20 (0.32 + 0.01 x 20/28) = 1.8702.
  problem.workload.moments = MomentWidth::bf16;
  CHECK(ideal_stride(update_rates(problem, Costs(problem), false)) == Approx(1.8702).epsilon(1e-6));
  problem.workload.moments = MomentWidth::fp32;
  // A link that both ways share takes 24 bytes' time all the same.
  machine.pcie.total = 50e9;
  CHECK(ideal_stride(update_rates(problem, Costs(problem), true)) == Approx(1.931));
  machine.pcie.total = 0;
  // PCIe 3 and a fast CPU: 1 + 4.5 (2 + 0.01) = 10.045.
  machine.pcie.h2d = machine.pcie.d2h = 12e9;
  machine.host.adam_params_per_second = 4.5e9;
  CHECK(ideal_stride(update_rates(problem, Costs(problem), false)) == Approx(10.045));
  CHECK(best_stride(update_rates(problem, Costs(problem), false)) == 10);
  // GPU's rate from its memory's: 28 bytes a parameter.
  machine.gpu.adam_params_per_second = 0;
  machine.gpu.memory_bandwidth = 2800e9;
  CHECK(update_rates(problem, Costs(problem), false).gpu == Approx(100e9));
  machine.host.adam_params_per_second = 0;
  CHECK(best_stride(update_rates(problem, Costs(problem), false)) == 2);
}

TEST_CASE("The best stride takes the least time of all whole strides from 2") {
  for (const double cpu : {0.2e9, 0.9e9, 2.3e9, 11e9}) {
    for (const double pcie_seconds : {0.1e-9, 0.5e-9, 1.7e-9, 6e-9}) {
      const UpdateRates rates{cpu, 60e9, pcie_seconds};
      const int best = best_stride(rates);
      INFO(cpu << " " << pcie_seconds << ": " << best);
      for (int k = 2; k < 200; ++k) {
        CHECK(seconds_per_parameter(rates, best) <= seconds_per_parameter(rates, k));
      }
      // A fractional stride at which both sides are equal is a lower bound.
      if (ideal_stride(rates) >= 2) {
        CHECK(seconds_per_parameter(rates, ideal_stride(rates)) <=
              seconds_per_parameter(rates, best) * (1 + 1e-12));
      }
    }
  }
}

namespace {

// "C0 G1 ": the lane of each sub-group's first update in one step, in program order.
std::string updates(const Schedule& schedule, std::uint64_t sub_group_size) {
  const auto groups = sub_groups(schedule.problem().model, sub_group_size);
  std::string text;
  for (const Task& task : schedule.tasks()) {
    if (task.kind != TaskKind::optimizer || task.step != 1) continue;
    for (std::size_t g = 0; g < groups.size(); ++g) {
      if (groups[g].front().unit == task.layer && groups[g].front().first == task.first_element) {
        text += fmt::format("{}{} ", task.lane == Lane::gpu_compute ? 'G' : 'C', g);
      }
    }
  }
  return text;
}

}  // namespace

TEST_CASE("Every k-th sub-group is updated on the GPU, its state crosses PCIe once each way") {
  // Layers of three tensors and an embedding of one: 10 sub-groups of one tensor each.
  for (const Precision precision : {Precision::bf16, Precision::fp32}) {
    for (const int micro_batches : {1, 3}) {
      const Problem problem = tiny_problem(3, micro_batches, precision);
      const Symbols s(problem);
      const auto groups = sub_groups(problem.model, 1);
      REQUIRE(groups.size() == 10);
      for (const int stride : {2, 3, 11}) {
        std::uint64_t on_gpu = 0;
        for (std::size_t g = 0; g < groups.size(); ++g) {
          if ((g + 1) % static_cast<std::size_t>(stride) == 0) on_gpu += elements_of(groups[g]);
        }
        const bool embedding_on_gpu = 10 % stride == 0;
        const std::uint64_t all = s.U * s.P + s.E;
        const std::uint64_t on_cpu = all - on_gpu;
        const Traffic expected = {{{h2d, state}, 12 * on_gpu},
                                  {{d2h, state}, 12 * on_gpu},
                                  {{d2h, gradient}, on_cpu * s.g},
                                  {{d2h, head_gradient}, embedding_on_gpu ? 0 : s.E * s.g},
                                  {{h2d, parameters}, on_cpu * s.w}};
        for (const char* staging : {"single", "double"}) {
          const std::string policy = fmt::format(
              "deep-optimizer-states:sub_group_size=1,stride={},staging={}", stride, staging);
          INFO(policy);
          check_traffic(steady(problem, policy), 2, expected);
        }
      }
    }
  }
  const auto order = [](int stride) {
    return updates(
        build_schedule(tiny_problem(3, 1),
                       fmt::format("deep-optimizer-states:sub_group_size=1,stride={}", stride), 2),
        1);
  };
  CHECK(order(2) == "C0 G1 C2 G3 C4 G5 C6 G7 C8 G9 ");
  CHECK(order(3) == "C0 C1 G2 C3 C4 G5 C6 C7 G8 C9 ");
  CHECK(order(11) == "C0 C1 C2 C3 C4 C5 C6 C7 C8 C9 ");
}

TEST_CASE("The stride at auto follows the machine, off keeps all updates on the CPU") {
  Problem problem = tiny_problem(3, 1);
  problem.machine.pcie.h2d = problem.machine.pcie.d2h = 24e9;
  problem.machine.host.adam_params_per_second = 1.9e9;
  problem.machine.gpu.adam_params_per_second = 1000e9;
  // 1 + 1.9 (1 + 0.001) = 2.9: with 3, (2 / 1.9) / 3 = 0.351; with 2, 1.001 / 2 = 0.5.
  const auto fingerprint = [&](const std::string& options) {
    return build_schedule(problem, "deep-optimizer-states:sub_group_size=1" + options, 2)
        .fingerprint();
  };
  CHECK(fingerprint("") == fingerprint(",stride=3"));
  CHECK(fingerprint("") != fingerprint(",stride=2"));
  for (const Task& task : build_schedule(problem, "deep-optimizer-states:stride=off", 2).tasks()) {
    if (task.kind == TaskKind::optimizer) CHECK(task.lane == Lane::cpu_optimizer);
  }
}

TEST_CASE("Gradients of CPU sub-groups leave in the background, or while the host thread waits") {
  const auto count = [](const std::string& framework) {
    int barriers = 0, pageable = 0, copies = 0;
    Problem problem = tiny_problem(3, 2);
    problem.framework = framework;
    const Schedule schedule = build_schedule(problem, "deep-optimizer-states", 1);
    for (const Task& task : schedule.tasks()) {
      const bool waits = task.kind == TaskKind::barrier;
      barriers += waits && task.phase == Phase::backward &&
                  task.waits_for() != LaneSet::all()
                                          .without(lanes_of_ranks)
                                          .without(lanes_of_stages)
                                          .without(lanes_of_no_drives(1));
      pageable += task.pageable;
      copies += task.kind == TaskKind::d2h && task.phase == Phase::backward;
    }
    return std::tuple{barriers, pageable, copies};
  };
  const auto [barriers, pageable, copies] = count("deep-optimizer-states");
  CHECK(barriers == 0);
  CHECK(pageable == 0);
  CHECK(count("deep-optimizer-states:copies.pageable_gradients=true") ==
        std::tuple{2 * copies, copies, copies});
}
