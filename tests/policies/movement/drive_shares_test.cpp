// What rests on drives is cut among their sets.
#include "policies/movement/drive_shares.hpp"

#include <array>
#include <catch2/catch.hpp>
#include <map>

#include "policies/common/parsed_policy.hpp"
#include "policies/workload/durability.hpp"
#include "tests/policies/check_schedule.hpp"
#include "tests/policies/drive_sets.hpp"
#include "tests/policies/schedules.hpp"

using namespace spillway;
using namespace spillway::test;

namespace {

Problem problem_with(std::vector<std::array<double, 2>> rates, int layers = 3,
                     int micro_batches = 2) {
  Problem problem = tiny_problem(layers, micro_batches);
  for (std::size_t set = 0; set < rates.size(); ++set) {
    Machine::Ssd& drives = problem.machine.drives(static_cast<int>(set));
    drives.count = 1;
    drives.capacity = plenty;
    drives.read = rates[set][0];
    drives.write = rates[set][1];
    drives.law = SsdLaw::duplex;
  }
  return problem;
}

DriveShares shares_of(const Problem& problem, const std::string& policy) {
  const Plan plan = policy_of(parse_policy(policy))->plan(problem, Costs(problem));
  return {problem, plan, Shards(problem, plan)};
}

// Bytes at rest by tier and kind.
std::map<std::pair<BufferKind, Tier>, std::uint64_t> at_rest(const Schedule& schedule) {
  std::map<std::pair<BufferKind, Tier>, std::uint64_t> bytes;
  for (const HomePart& home : schedule.homes())
    bytes[{home.kind, schedule.buffers()[home.where.buffer.id].tier}] += home.where.bytes;
  return bytes;
}

std::uint64_t moved(const Schedule& schedule, TaskKind kind, Lane lane) {
  std::uint64_t bytes = 0;
  for (const Task& task : schedule.tasks())
    bytes += task.kind == kind && task.lane == lane ? task.bytes : 0;
  return bytes;
}

const std::string all_on_drives =
    "greedysnake:optimizer_ssd=1,parameters_ssd=1,checkpoints_ssd=1,alpha=0";

}  // namespace

TEST_CASE("Sets share what rests on them as they are fast, reading and writing alike") {
  const DriveShares shares = shares_of(problem_with({{3e9, 1e9}, {1e9, 5e8}}), "fuyou");
  REQUIRE(shares.sets() == 2);
  // As many bytes read as written take as long as the slower of both.
  CHECK(shares.share(0) == Approx(2.0 / 3));
  CHECK(shares.share(1) == Approx(1.0 / 3));
  CHECK(shares.ends(9000, 1)[0] == 6000);
  CHECK(shares.ends(9000, 4096)[0] == 4096);
  CHECK(shares.ends(9000, 4096)[1] == 9000);
  // Nobody knows how fast they are: by the number of drives.
  Problem unknown = problem_with({{0, 0}, {0, 0}});
  unknown.machine.drives(1).count = 3;
  CHECK(shares_of(unknown, "fuyou").share(1) == Approx(0.75));
}

TEST_CASE("A set that is too small for its share takes what it holds, and the others the rest") {
  Problem problem = problem_with({{1e9, 1e9}, {1e9, 1e9}, {2e9, 2e9}});
  const double all = static_cast<double>(
      build_schedule(problem_with({{1e9, 1e9}}), "fuyou", 2).use(Tier::ssd).peak_bytes);
  CHECK(shares_of(problem, "fuyou").share(2) == Approx(0.5));
  problem.machine.drives(2).capacity = static_cast<std::uint64_t>(0.4 * all);
  const DriveShares shares = shares_of(problem, "fuyou");
  CHECK(shares.share(2) < 0.3);
  CHECK(shares.share(2) > 0.1);
  CHECK(shares.share(0) == Approx((1 - shares.share(2)) / 2));
  CHECK(shares.share(1) == Approx(shares.share(0)));
  // So it fits, with second copies.
  const Schedule schedule = build_schedule(problem, "fuyou", 2);
  CHECK(schedule.fits());
  CHECK(store_bytes(schedule, true).lacking(problem.machine) == -1);
}

TEST_CASE("On two sets a schedule moves the bytes that it moves on one, by the lanes of both") {
  const auto on = [](const std::vector<std::array<double, 2>>& rates,
                     const std::string& policy = all_on_drives) {
    Problem problem = problem_with(rates, 8, 3);
    problem.workload.micro_batch = 16;  // a checkpoint is cut in two
    problem.workload.batch = 48;
    return build_schedule(problem, policy, 3);
  };
  const Schedule one = on({{2e9, 2e9}}), two = on({{2e9, 2e9}, {2e9, 2e9}});
  const auto bytes_of_one = at_rest(one), bytes_of_two = at_rest(two);
  for (const BufferKind kind : {BufferKind::parameters, BufferKind::optimizer_state}) {
    const std::uint64_t first = bytes_of_two.at({kind, Tier::ssd}),
                        second = bytes_of_two.at({kind, drives_tier(1)});
    CHECK(first + second == bytes_of_one.at({kind, Tier::ssd}));
    CHECK(static_cast<double>(first) == Approx(static_cast<double>(second)).epsilon(0.4));
  }
  for (const TaskKind kind : {TaskKind::read, TaskKind::write}) {
    const bool reads = kind == TaskKind::read;
    const std::uint64_t first = moved(two, kind, reads ? Lane::ssd_read : Lane::ssd_write),
                        second = moved(two, kind, reads ? read_lane(1) : write_lane(1));
    CHECK(first + second == moved(one, kind, reads ? Lane::ssd_read : Lane::ssd_write));
    CHECK(second > first / 2);
  }
  // Activations, too, lie on both.
  const Schedule far = on({{2e9, 2e9}, {2e9, 2e9}}, "fuyou:checkpoints_ssd=1");
  const auto holds_checkpoints = [&](Tier tier) {
    return std::any_of(far.buffers().begin(), far.buffers().end(), [&](const BufferInfo& buffer) {
      return buffer.tier == tier && buffer.kind == BufferKind::checkpoint;
    });
  };
  CHECK(holds_checkpoints(Tier::ssd));
  CHECK(holds_checkpoints(drives_tier(1)));
}

TEST_CASE("Every policy on two to four sets: no race, and every task reads what it must") {
  for (const std::string& policy : policy_settings()) {
    for (int sets = 2; sets <= most_drive_sets; ++sets) {
      Problem problem = tiny_problem(3, 3);
      give_drive_sets(problem.machine, sets, 0x2a5c1d3f);
      INFO(policy << ", " << sets << " sets");
      const Schedule schedule = build_schedule(problem, policy, 3);
      check_schedule(schedule);
      CHECK(find_state_write_error(schedule) == "");
    }
  }
}

TEST_CASE("A barrier waits for the lanes of all sets that there are, and names no others") {
  const auto barriers = [](const Problem& problem) {
    Program program(problem);
    program.barrier();
    program.barrier({Lane::ssd_read, read_lane(1)}, {write_lane(1)});
    return std::move(program).finish("none", 1);
  };
  const Schedule two = barriers(problem_with({{1e9, 1e9}, {1e9, 1e9}}));
  const auto tasks = two.tasks();
  CHECK(tasks[0].waits_for().contains(write_lane(1)));
  CHECK(!tasks[0].waits_for().contains(write_lane(2)));
  CHECK(tasks[1].waits_for() == LaneSet{Lane::ssd_read, read_lane(1)});
  CHECK(tasks[1].holds() == LaneSet{write_lane(1)});
  const Schedule one = barriers(problem_with({{1e9, 1e9}}));
  CHECK(one.tasks()[1].waits_for() == LaneSet{Lane::ssd_read});
  CHECK(one.tasks()[1].holds() == LaneSet{});
}
