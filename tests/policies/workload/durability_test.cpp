// What keeping a training resumable takes of the drives.
#include "policies/workload/durability.hpp"

#include <catch2/catch.hpp>

#include "tests/policies/schedules.hpp"

using namespace spillway;
using namespace spillway::test;

namespace {

// 12 bytes an element: [master | m | v] in fp32; 8 with moments in bf16.
std::uint64_t bytes_of_state(const Schedule& schedule) {
  const std::uint64_t each = schedule.problem().workload.moments == MomentWidth::fp32 ? 12 : 8;
  std::uint64_t bytes = 0;
  for (const HomePart& home : schedule.homes()) {
    if (home.kind == BufferKind::optimizer_state) bytes += home.elements * each;
  }
  return bytes;
}

}  // namespace

TEST_CASE("a durable store holds two copies of all optimizer state, wherever it rests") {
  for (const auto& [policy, moments] : every_policy_with_every_moments()) {
    INFO(policy << ", " << to_string(moments));
    Problem problem = tiny_problem(3, 1);
    problem.workload.moments = moments;
    const Schedule schedule = build_schedule(problem, policy, 2);
    const StoreBytes off = store_bytes(schedule, false);
    CHECK(off.address_space() == schedule.use(Tier::ssd).peak_bytes);
    CHECK(off.all() == off.address_space());
    CHECK(off.written_by_commit() == 0);

    const StoreBytes on = store_bytes(schedule, true);
    CHECK(on.tier == off.tier);
    // State on the ssd has its first copy in the tier, state in memory has both beside it.
    const std::uint64_t in_memory = on.memory_copies / 2;
    CHECK(on.second_copies + in_memory == bytes_of_state(schedule));
    CHECK(on.captured() == in_memory);
    CHECK(on.records > 0);
    CHECK(on.all() == on.tier + on.second_copies + on.memory_copies + on.records);
  }
}
