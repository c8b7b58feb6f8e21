// GreedySnake: a layer's parameters and its gradient cross PCIe in M chunks, one under each
// micro-batch of the neighbouring layer, so that no checkpoint queues behind a whole layer.
#include <catch2/catch.hpp>
#include <map>

#include "base/errors.hpp"
#include "tests/policies/schedules.hpp"

using namespace spillway;
using namespace spillway::test;

namespace {

// Bytes of the copies of `kind` buffers on `lane`, by how many compute tasks were emitted before.
std::map<int, std::uint64_t> bytes_by_visit(const Schedule& schedule, int step, Lane lane,
                                            BufferKind kind) {
  std::map<int, std::uint64_t> bytes;
  int visit = 0;
  for (const Task& task : schedule.tasks()) {
    if (task.step != step) continue;
    if (task.kind == TaskKind::forward || task.kind == TaskKind::backward) ++visit;
    if (task.lane != lane || task.layer >= schedule.problem().model.layers) continue;
    if (schedule.buffers()[schedule.accesses(task)[0].buffer].kind == kind)
      bytes[visit] += task.bytes;
  }
  return bytes;
}

}  // namespace

TEST_CASE("between two micro-batches crosses at most a chunk of the next layer") {
  // 7 cells of the grid over M micro-batches: a chunk is at most ceil(7 / M) cells.
  for (const int micro_batches : {2, 3, 4, 7}) {
    const Problem problem = tiny_problem(6, micro_batches);
    const Schedule schedule = build_schedule(problem, "greedysnake:alpha=0.3", 3);
    const auto cells = static_cast<std::uint64_t>((7 + micro_batches - 1) / micro_batches);
    const std::uint64_t grid = static_cast<std::uint64_t>(element_alignment);
    INFO(micro_batches << " micro-batches");
    for (const auto& [visit, bytes] :
         bytes_by_visit(schedule, 1, Lane::pcie_h2d, BufferKind::parameters)) {
      INFO("visit " << visit);
      // Before the first visit the first layer comes whole, and the first chunk of the second with
      // it.
      if (visit > 0) CHECK(bytes <= cells * grid * problem.parameter_bytes());
    }
    const auto gradients = bytes_by_visit(schedule, 1, Lane::pcie_d2h, BufferKind::gradient);
    std::uint64_t all = 0;
    for (const auto& [visit, bytes] : gradients) {
      all += bytes;
      // The last layer to finish has no micro-batches left to hide under.
      if (visit != gradients.rbegin()->first)
        CHECK(bytes <= cells * grid * problem.gradient_bytes());
    }
    CHECK(all == 6 * 7 * grid * problem.gradient_bytes());
  }
}

TEST_CASE("a schedule of too many micro-batches is refused before it takes all memory") {
  Problem problem = tiny_problem(4, 1);
  problem.workload.batch = 100'000'000;
  problem.workload.micro_batch = 1;
  CHECK_THROWS_AS(build_schedule(problem, "resident", 4), InputError);
  CHECK_THROWS_WITH(build_schedule(problem, "greedysnake", 4),
                    Catch::Contains("too long a schedule") && Catch::Contains("of memory"));
}

TEST_CASE(
    "a policy with many tasks a layer is refused by its own number of them, before it is built") {
  // Tensor by tensor, with reads and barriers: four times as many tasks as fuyou's.
  const Problem deep = tiny_problem(5'000, 1);
  CHECK_THROWS_WITH(build_schedule(deep, "zero-infinity", 250),
                    Catch::Contains("too long a schedule") && Catch::Contains("million tasks"));
}
