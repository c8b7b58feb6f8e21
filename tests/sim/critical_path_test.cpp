// The chain the step is made of, and what of it is lost to sharing, worked out by hand.
#include "sim/critical_path.hpp"

#include <catch2/catch.hpp>

#include "sim/explanation.hpp"
#include "tests/policies/cost/problems.hpp"

using namespace spillway;
using namespace spillway::test;

namespace {

CriticalPath path_of(const Schedule& schedule) {
  return explain(schedule, simulate(schedule)).critical_path;
}

constexpr double ns = 1e9;

}  // namespace

TEST_CASE("A read slowed down by a write has lost what the shared drives took from it") {
  // R = 7, W = 5, r + w <= 7 GB/s: 70 GB read beside 50 GB written. Each gets 3.5 until the write
  // ends at 50 / 3.5 s, then the read its full 7: it ends at 120 / 7 = 17.14 s instead of 10 s. On
  // the critical path there is only the read; it lost half of the time that the write took.
  Tasks tasks(small_problem(round_machine()));
  const TaskId read = tasks.read(70 * gigabyte);
  tasks.write(50 * gigabyte);
  const CriticalPath path = path_of(tasks.finish());
  CHECK(path.tasks == std::vector<TaskId>{read});
  REQUIRE(path.parts.size() == 1);
  CHECK(to_string(path.parts[0].of) == "ssd.read scratch");
  CHECK(static_cast<double>(path.parts[0].ns) == Approx(120.0 / 7 * ns).epsilon(1e-5));
  REQUIRE(path.parts[0].lost_ns.size() == 1);
  CHECK(path.parts[0].lost_ns[0].first == "ssd.total");
  CHECK(path.parts[0].lost_ns[0].second == Approx(50 / 3.5 / 2 * ns).epsilon(1e-5));
  // Without sharing the longest chain is the read or the write alone: 10 s each.
  CHECK(path.chain_ns == Approx(10 * ns).epsilon(1e-5));
}

TEST_CASE("What drives and memory take from a task is told apart") {
  // DRAM of 8 GB/s. A read of 60 GB (R = 7) and a write of 40 GB (W = 5) with r + w <= 10 GB/s of
  // the drives: DRAM saturates first, 4 each. The write ends at 10 s; the read has 20 GB left, at
  // 7 GB/s. Both slowed by dram; nothing by ssd.total.
  Problem problem = small_problem(round_machine());
  problem.machine.host.bandwidth = 8e9;
  problem.machine.ssd.total = 10e9;
  Tasks tasks(problem);
  tasks.read(60 * gigabyte);
  tasks.write(40 * gigabyte);
  const CriticalPath path = path_of(tasks.finish());
  REQUIRE(path.parts.size() == 1);
  CHECK(static_cast<double>(path.parts[0].ns) == Approx((10 + 20.0 / 7) * ns).epsilon(1e-5));
  REQUIRE(path.parts[0].lost_ns.size() == 1);
  CHECK(path.parts[0].lost_ns[0].first == "dram");
  CHECK(path.parts[0].lost_ns[0].second == Approx(10 * (1 - 4.0 / 7) * ns).epsilon(1e-5));
}

TEST_CASE("The critical path leaves out what other tasks hide") {
  // 10 GB to the GPU, 1 s, then back at 5 GB/s, 2 s; beside it 7 GB are read, 1 s, which nothing
  // waits for.
  Tasks tasks(small_problem(round_machine()));
  const Slice host = tasks.fresh(Tier::host, 10 * gigabyte);
  const Slice gpu = tasks.fresh(Tier::gpu, 10 * gigabyte);
  tasks.read(7 * gigabyte);
  const TaskId there = tasks.program.copy(host, gpu);
  const TaskId back = tasks.program.copy(gpu, host);
  const CriticalPath path = path_of(tasks.finish());
  CHECK(path.tasks == std::vector<TaskId>{there, back});
  REQUIRE(path.parts.size() == 2);
  CHECK(to_string(path.parts[0].of) == "pcie.d2h scratch");
  CHECK(static_cast<double>(path.parts[0].ns) == Approx(2 * ns).epsilon(1e-5));
  CHECK(to_string(path.parts[1].of) == "pcie.h2d scratch");
  CHECK(static_cast<double>(path.parts[1].ns) == Approx(1 * ns).epsilon(1e-5));
  CHECK(path.parts[0].lost_ns.empty());
  CHECK(path.parts[1].lost_ns.empty());
  CHECK(path.chain_ns == Approx(3 * ns).epsilon(1e-5));
}

TEST_CASE("Latency is part of a task, but never lost to sharing") {
  // Each transfer waits 1 s first; then both share 7 GB/s: 14 GB each take 4 s instead of 2 and
  // 2.8.
  Problem problem = small_problem(round_machine());
  problem.machine.ssd.read_latency_ns = problem.machine.ssd.write_latency_ns = 1'000'000'000;
  Tasks tasks(problem);
  tasks.read(14 * gigabyte);
  tasks.write(14 * gigabyte);
  const CriticalPath path = path_of(tasks.finish());
  REQUIRE(path.parts.size() == 1);
  CHECK(static_cast<double>(path.parts[0].ns) == Approx(5 * ns).epsilon(1e-5));
  REQUIRE(path.parts[0].lost_ns.size() == 1);
  CHECK(path.parts[0].lost_ns[0].second == Approx((4 - 2) * ns).epsilon(1e-5));
}

TEST_CASE("Class numbers and classes are one to one") {
  for (std::size_t i = 0; i < task_class_count; ++i) REQUIRE(index_of(task_class_at(i)) == i);
}
