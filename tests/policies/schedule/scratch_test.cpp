// Scratch of compute tasks: of as many sequences as a task works on at once.
#include <catch2/catch.hpp>

#include "base/rounding.hpp"
#include "policies/model/scratch.hpp"
#include "tests/policies/schedules.hpp"

using namespace spillway;
using namespace spillway::test;

namespace {

std::uint64_t page(std::uint64_t bytes) { return round_up(bytes, buffer_alignment); }

Problem at_once(std::int64_t sequences, Precision precision) {
  Problem problem = tiny_problem(2, 1, precision);
  problem.workload.batch = problem.workload.micro_batch = 8;
  problem.workload.sequences_at_once = sequences;
  return problem;
}

}  // namespace

TEST_CASE("scratch holds what is not saved, of the sequences worked on at once") {
  for (const Precision precision : {Precision::bf16, Precision::fp32}) {
    for (const std::int64_t s : {1, 2, 8}) {
      Problem problem = at_once(s, precision);
      if (precision == Precision::bf16) problem.trains_on = Backend::cuda;
      for (int mask = 0; mask <= gpt_saved::all; ++mask) {
        const auto saved = static_cast<SavedMask>(mask);
        const auto others = static_cast<SavedMask>(gpt_saved::all & ~saved);
        CHECK(forward_scratch_bytes(problem, saved) == saved_bytes(problem, others, s));
      }
    }
  }
}

TEST_CASE("backward's scratch holds the gradients of the sequences worked on at once as well") {
  // T = 16, C = 32, F = 128, 2 heads, so a sequence's gradients are T (F + C) elements; and on the
  // CUDA backend 2 T numbers in fp32, on the CPU backend, in fp32, 2 T T elements.
  for (const Precision precision : {Precision::bf16, Precision::fp32}) {
    for (const std::int64_t s : {1, 2, 8}) {
      const auto sequences = static_cast<std::uint64_t>(s);
      const std::uint64_t elements = sequences * (precision == Precision::bf16 ? 2 : 4);
      Problem problem = at_once(s, precision);
      problem.trains_on = Backend::cuda;
      CHECK(backward_scratch_bytes(problem, gpt_saved::all) ==
            page(elements * 16 * (128 + 32) + sequences * 16 * 2 * 4));
      CHECK(backward_scratch_bytes(problem, gpt_saved::qkv) ==
            backward_scratch_bytes(problem, gpt_saved::all) +
                saved_bytes(problem, static_cast<SavedMask>(gpt_saved::all & ~gpt_saved::qkv), s));
      if (precision == Precision::bf16) continue;
      problem.trains_on = Backend::cpu;
      CHECK(backward_scratch_bytes(problem, gpt_saved::all) ==
            page(elements * (16 * (128 + 32) + 2 * 16 * 16)));
    }
  }
}

// One sequence in fp32, whatever is saved: T = 16, C = 32, F = 128, 2 heads.
TEST_CASE("in bf16 the CPU backend's scratch has fp32 copies of what a task works on") {
  Problem problem = at_once(1, Precision::bf16);
  problem.trains_on = Backend::cpu;
  Problem fp32 = at_once(1, Precision::fp32);
  fp32.workload.micro_batch = 1;
  const ModelSpec& model = problem.model;
  const auto copy = [](std::int64_t elements) {
    return page(static_cast<std::uint64_t>(elements) * 4);
  };
  const std::uint64_t tensors = saved_bytes(fp32, gpt_saved::all);
  const std::uint64_t gradients = page(4 * (16 * (128 + 32) + 2 * 16 * 16));
  const std::uint64_t layer = copy(unit_elements(model, 0)), activation = copy(16 * 32);
  const std::int64_t outer = unit_elements(model, head_unit(model));
  for (const GradientWidth width : {GradientWidth::bits32, GradientWidth::bits16}) {
    problem.workload.gradient = width;
    const std::uint64_t sums = width == GradientWidth::bits16 ? 1 : 0;
    for (int mask = 0; mask <= gpt_saved::all; ++mask) {
      const auto saved = static_cast<SavedMask>(mask);
      CHECK(forward_scratch_bytes(problem, saved) == layer + 2 * activation + tensors);
      CHECK(backward_scratch_bytes(problem, saved) ==
            (1 + sums) * layer + 2 * activation + tensors + gradients);
    }
    CHECK(head_scratch_bytes(problem) ==
          (1 + sums) * copy(outer) + activation + head_scratch_bytes(fp32));
    // The order of 8 x 16 tokens, and a row.
    CHECK(embed_backward_scratch_bytes(problem) == sums * (page(8 * 16 * 4) + page(32 * 4)));
  }
  CHECK(embed_backward_scratch_bytes(fp32) == 0);
}

TEST_CASE("the backend is the machine's, unless another one trains") {
  Problem problem;
  CHECK(problem.backend() == Backend::cuda);
  problem.machine.gpu.is_cpu = true;
  CHECK(problem.backend() == Backend::cpu);
  problem.trains_on = Backend::cuda;
  CHECK(problem.backend() == Backend::cuda);
  CHECK(problem.machine.backend() == Backend::cpu);
  CHECK(usual_precision(Backend::cpu) == Precision::fp32);
  CHECK(usual_precision(Backend::cuda) == Precision::bf16);
}

TEST_CASE("the head's scratch grows with the sequences worked on at once, up to 8 of them") {
  // T = 16 rows of V logits, 2 C values of the norm and two statistics, in fp32.
  for (const std::int64_t s : {1, 2, 8, 16}) {
    const Problem problem = at_once(s, Precision::bf16);
    const auto times = static_cast<std::uint64_t>(std::min<std::int64_t>(s, 8));
    const auto width = static_cast<std::uint64_t>(problem.model.vocabulary + 2 * 32 + 2);
    CHECK(head_scratch_bytes(problem) == page(times * 16 * width * 4));
  }
}

TEST_CASE("more sequences at once is the same schedule with more scratch") {
  const auto peak = [](std::int64_t s, const std::string& policy) {
    const Schedule schedule = build_schedule(at_once(s, Precision::bf16), policy, 2);
    return std::pair{schedule.tasks().size(), schedule.use(Tier::gpu).peak_bytes};
  };
  for (const std::string& policy : policy_settings()) {
    INFO(policy);
    const auto [tasks, bytes] = peak(1, policy);
    const auto [tasks_of_8, bytes_of_8] = peak(8, policy);
    CHECK(tasks == tasks_of_8);
    CHECK(bytes < bytes_of_8);
  }
}
