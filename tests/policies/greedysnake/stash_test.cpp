// Where the gradient of greedysnake's delayed part waits for the next step, and what it costs.
#include <fmt/format.h>

#include <catch2/catch.hpp>

#include "policies/model/scratch.hpp"
#include "policies/movement/step.hpp"
#include "tests/policies/check_schedule.hpp"
#include "tests/policies/schedules.hpp"

using namespace spillway;
using namespace spillway::test;

namespace {

// GPT-2 small cut to 6 layers: P = 7.1e6 elements, so that a layer's gradient takes 28 MB and one
// micro-batch's activation 3.1 MB.
Problem stash_problem(int micro_batches) {
  Problem problem = tiny_problem(6, micro_batches);
  problem.model = load_model("gpt2-124m", {"layers=6"});
  problem.workload.sequence = 1024;
  problem.workload.gradient = GradientWidth::bits32;
  return problem;
}

std::string policy_of(const char* updates, double alpha, double parameters_ssd) {
  return fmt::format(
      "greedysnake:updates={},alpha={},parameters_ssd={},optimizer_ssd=0,checkpoints_ssd=0",
      updates, alpha, parameters_ssd);
}

// Host memory that delayed gradients have to themselves.
std::uint64_t own_memory(const Schedule& schedule) {
  std::uint64_t bytes = 0;
  for (const BufferInfo& buffer : schedule.buffers()) {
    if (buffer.persistent && buffer.tier == Tier::host && buffer.kind == BufferKind::gradient)
      bytes += buffer.bytes;
  }
  return bytes;
}

}  // namespace

// A layer's delayed gradient, alpha P 4 bytes, lies under its M outputs of A bytes and the delayed
// parameters of the layer after it, alpha (1 - x_p) P 2 bytes. Memory of its own has what is more
// than both, in each layer but the last, and all of the last layer's, which has neither. Every
// place holds whole cells of 2048 elements.
TEST_CASE("Delayed gradients lie in dead host memory as far as there is some") {
  const std::uint64_t cell = 2048 * 4;
  for (const int micro_batches : {1, 4, 9}) {
    const Problem problem = stash_problem(micro_batches);
    const auto P = static_cast<std::uint64_t>(unit_elements(problem.model, 0));
    const std::uint64_t outputs =
        static_cast<std::uint64_t>(micro_batches) * checkpoint_bytes(problem);
    for (const double parameters_ssd : {0.0, 0.5, 1.0}) {
      for (const double alpha : {0.0, 0.1, 0.25, 0.5, 0.75, 1.0}) {
        for (const char* updates : {"layer", "micro-batch"}) {
          const std::string policy = policy_of(updates, alpha, parameters_ssd);
          INFO(policy << ", " << micro_batches << " micro-batches");
          const Schedule schedule = build_schedule(problem, policy, 3);
          const std::uint64_t late = on_grid(P, alpha);
          const std::uint64_t free = outputs + (late - on_grid(late, parameters_ssd)) * 2;
          const std::uint64_t beyond = late * 4 > free ? late * 4 - free : 0;
          const std::uint64_t least = 5 * beyond + late * 4;
          CHECK(own_memory(schedule) >= least);
          CHECK(own_memory(schedule) <= least + 5 * cell);
        }
      }
    }
  }
}

// All states in host memory: apart from that memory, delaying takes none. What else depends on
// alpha is the gradient on its way to the undelayed update, which gets smaller. With one
// micro-batch the inputs of the 5 layers that lend them have places of their own only where
// something is delayed.
TEST_CASE("Delaying costs no host memory beyond what its gradients have to themselves") {
  for (const char* updates : {"layer"}) {
    for (const int micro_batches : {1, 4, 9}) {
      const Problem problem = stash_problem(micro_batches);
      const auto peak = [&](const Schedule& schedule) {
        return schedule.use(Tier::host).live_peak_bytes;
      };
      const std::uint64_t none = peak(build_schedule(problem, policy_of(updates, 0, 0), 4));
      for (const double alpha : {0.05, 0.25, 0.5, 1.0}) {
        INFO(policy_of(updates, alpha, 0) << ", " << micro_batches << " micro-batches");
        const Schedule schedule = build_schedule(problem, policy_of(updates, alpha, 0), 4);
        const std::uint64_t lent = micro_batches == 1 ? 5 * checkpoint_bytes(problem) : 0;
        CHECK(peak(schedule) <= none + own_memory(schedule) + lent);
      }
    }
  }
}

// The memory the stash borrows is used for its own purpose again at once: every byte is followed.
TEST_CASE("Borrowed memory is given back before it is needed") {
  for (const int micro_batches : {1, 2, 5, 8}) {
    Problem problem = tiny_problem(4, micro_batches);
    problem.workload.gradient = GradientWidth::bits32;
    for (const char* updates : {"layer", "micro-batch"}) {
      for (int tenth = 0; tenth <= 10; ++tenth) {
        const std::string policy = fmt::format(
            "greedysnake:updates={},alpha={},parameters_ssd=0.3,optimizer_ssd=0.6,"
            "checkpoints_ssd=0.5",
            updates, tenth / 10.0);
        INFO(policy << ", " << micro_batches << " micro-batches");
        check_schedule(build_schedule(problem, policy, 4));
      }
    }
  }
}
