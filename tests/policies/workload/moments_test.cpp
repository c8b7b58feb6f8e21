// AdamW's moments in bf16: 8 bytes of optimizer state a parameter in place of 12, in every policy,
// in every memory and on every link, and nothing else that changes.
#include <array>
#include <catch2/catch.hpp>
#include <map>
#include <string>
#include <utility>

#include "policies/workload/durability.hpp"
#include "tests/policies/check_schedule.hpp"
#include "tests/policies/input_error.hpp"
#include "tests/policies/schedules.hpp"

using namespace spillway;
using namespace spillway::test;

namespace {

Problem with_moments(Problem problem, MomentWidth moments) {
  problem.workload.moments = moments;
  return problem;
}

// Of the homes of optimizer state, by tier.
std::array<std::uint64_t, tier_count> state_at_rest(const Schedule& schedule) {
  std::array<std::uint64_t, tier_count> bytes{};
  for (const HomePart& home : schedule.homes()) {
    if (home.kind != BufferKind::optimizer_state) continue;
    bytes[static_cast<std::size_t>(schedule.buffers()[home.where.buffer.id].tier)] +=
        home.where.bytes;
  }
  return bytes;
}

// Bytes of step 2 by copy kind, and whether it is optimizer state that moves. Gradients may pass
// through the slots that state is read into.
std::map<std::pair<TaskKind, bool>, std::uint64_t> moved(const Schedule& schedule) {
  std::map<std::pair<TaskKind, bool>, std::uint64_t> bytes;
  for (const Task& task : schedule.tasks()) {
    const bool is_copy = task.kind == TaskKind::h2d || task.kind == TaskKind::d2h ||
                         task.kind == TaskKind::read || task.kind == TaskKind::write;
    if (!is_copy || task.step != 2) continue;
    const auto is_state = [&](std::size_t access) {
      return schedule.buffers()[schedule.accesses(task)[access].buffer].kind ==
             BufferKind::optimizer_state;
    };
    bytes[{task.kind, is_state(0) && is_state(1)}] += task.bytes;
  }
  return bytes;
}

}  // namespace

TEST_CASE("Moments are fp32 unless asked for, and named as they are given") {
  CHECK(Workload{}.moments == MomentWidth::fp32);
  for (const MomentWidth moments : {MomentWidth::fp32, MomentWidth::bf16})
    CHECK(parse_moments(to_string(moments)) == moments);
  check_error([] { parse_moments("fp16"); }, "moments = fp16: neither fp32 nor bf16", "bf16: 8");
}

TEST_CASE("State takes 12 or 8 bytes a parameter, and AdamW moves it both ways") {
  Problem problem = tiny_problem(1, 1);  // one micro-batch: 16-bit gradients
  CHECK(problem.state_bytes() == 12);
  CHECK(problem.adam_bytes() == 24 + 2 + 2);
  CHECK(problem.adam_share_of_fp32() == 1);
  problem.workload.moments = MomentWidth::bf16;
  CHECK(problem.state_bytes() == 8);
  CHECK(problem.adam_bytes() == 16 + 2 + 2);
  CHECK(problem.adam_share_of_fp32() == Approx(20.0 / 28));
  problem.workload.precision = Precision::fp32;
  CHECK(problem.adam_share_of_fp32() == Approx(24.0 / 32));
}

TEST_CASE("With bf16 moments every policy's schedule is free of races and computes what it must") {
  for (const Precision precision : {Precision::bf16, Precision::fp32}) {
    for (const int layers : {1, 3}) {
      for (const int micro_batches : {1, 3}) {
        const Problem problem =
            with_moments(tiny_problem(layers, micro_batches, precision), MomentWidth::bf16);
        for (const std::string& policy : policy_settings()) {
          INFO(policy << ", " << layers << " layers, " << micro_batches << " micro-batches");
          check_schedule(build_schedule(problem, policy, 3));
        }
      }
    }
  }
}

TEST_CASE("With bf16 moments state at rest and on the way is two thirds, and all else as before") {
  for (const int micro_batches : {1, 3}) {
    const Problem wide = tiny_problem(3, micro_batches),
                  narrow = with_moments(wide, MomentWidth::bf16);
    for (const std::string& policy : policy_settings()) {
      INFO(policy << ", " << micro_batches << " micro-batches");
      // The settled policy: what is left at auto may be settled otherwise where there is more room.
      const Schedule before = build_schedule(wide, policy, 3);
      const Schedule after = build_schedule(narrow, before.policy(), 3);
      const auto at_rest = state_at_rest(before), less_at_rest = state_at_rest(after);
      for (std::size_t tier = 0; tier < tier_count; ++tier)
        CHECK(3 * less_at_rest[tier] == 2 * at_rest[tier]);
      auto expected = moved(before);
      for (auto& [what, bytes] : expected) {
        if (what.second) bytes = bytes / 3 * 2;
      }
      CHECK(moved(after) == expected);
      // What commits copy, and both copies in the store.
      const StoreBytes on = store_bytes(before, true), less = store_bytes(after, true);
      CHECK(3 * less.captured() == 2 * on.captured());
      CHECK(3 * less.second_copies == 2 * on.second_copies);
      for (const Tier tier : {Tier::gpu, Tier::host, Tier::ssd})
        CHECK(after.use(tier).peak_bytes <= before.use(tier).peak_bytes);
    }
  }
}

// Master, m and v of a sub-group take two thirds of the memory.
TEST_CASE("zero-infinity's slots hold a sub-group's state, which is smaller with bf16 moments") {
  const auto host = [](MomentWidth moments, const char* options) {
    const std::string policy = std::string("zero-infinity:max_reuse_distance=0") + options;
    return build_schedule(with_moments(tiny_problem(2, 1), moments), policy, 2)
        .use(Tier::host)
        .peak_bytes;
  };
  // One sub-group of all: 2 layers of 14336 elements and an embedding of 4096.
  const std::uint64_t slot = 4 * (2 * 14336 + 4096);
  CHECK(host(MomentWidth::fp32, "") - host(MomentWidth::bf16, "") == slot);
  CHECK(host(MomentWidth::fp32, ",pipeline_read=on") -
            host(MomentWidth::bf16, ",pipeline_read=on") ==
        2 * slot);
}
