// Dependencies: exactly the read-after-write, write-after-read and write-after-write edges, by byte
// range, but for those that the order of the lanes implies.
#include <catch2/catch.hpp>

#include <algorithm>
#include <array>
#include <random>
#include <set>

#include "policies/schedule/program.hpp"
#include "tests/policies/races.hpp"
#include "tests/policies/schedules.hpp"

using namespace spillway;
using namespace spillway::test;

namespace {

using Edges = std::set<std::pair<TaskId, TaskId>>;

Edges edges_of(const Schedule& schedule) {
  Edges edges;
  for (TaskId id = 0; id < schedule.tasks().size(); ++id) {
    for (const TaskId next : schedule.successors(id)) edges.emplace(id, next);
  }
  CHECK(edges.size() == schedule.edge_count());  // no edge twice
  std::vector<std::uint32_t> counts(schedule.tasks().size(), 0);
  for (const auto& [from, to] : edges) ++counts[to];
  const auto given = schedule.predecessor_counts();
  CHECK(counts == std::vector<std::uint32_t>(given.begin(), given.end()));
  return edges;
}

constexpr std::uint64_t page = 4096;

// One persistent buffer per tier, and copies between parts of them.
struct Hand {
  Hand() : program(tiny_problem(1, 1)) {}
  Slice persistent(Tier tier, std::uint64_t pages = 4) {
    return program.persistent(tier, pages * page, BufferKind::scratch);
  }
  Slice transient(Tier tier, std::uint64_t pages = 1) {
    return program.buffer(tier, pages * page, BufferKind::scratch);
  }
  Schedule finish() { return std::move(program).finish("by hand", 1); }

  Program program;
  Slice gpu = persistent(Tier::gpu), host = persistent(Tier::host), other = persistent(Tier::host),
        ssd = persistent(Tier::ssd);
};

}  // namespace

TEST_CASE("A task that reads waits for the one that wrote") {
  Hand hand;
  const TaskId write = hand.program.copy(hand.host, hand.gpu);
  const TaskId read = hand.program.copy(hand.gpu, hand.other);
  CHECK(edges_of(hand.finish()) == Edges{{write, read}});
}

TEST_CASE("A task that overwrites waits for the one that read") {
  Hand hand;
  const TaskId read = hand.program.copy(hand.gpu, hand.host);
  const TaskId write = hand.program.copy(hand.other, hand.gpu);
  CHECK(edges_of(hand.finish()) == Edges{{read, write}});
}

TEST_CASE("A task that overwrites waits for the one that wrote") {
  Hand hand;
  const TaskId first = hand.program.copy(hand.gpu, hand.host);
  const TaskId second = hand.program.copy(hand.ssd, hand.host);
  CHECK(edges_of(hand.finish()) == Edges{{first, second}});
}

TEST_CASE("Two tasks that only read do not wait for one another") {
  Hand hand;
  hand.program.copy(hand.host, hand.gpu);
  hand.program.copy(hand.host, hand.ssd);
  CHECK(edges_of(hand.finish()).empty());
}

TEST_CASE("Halves of one buffer do not depend on one another, one common byte does") {
  for (const std::uint64_t common : {0u, 1u}) {
    INFO(common << " bytes in common");
    Hand hand;
    const std::uint64_t half = 2 * page;
    const TaskId write =
        hand.program.copy(hand.host.part(0, half + common), hand.gpu.part(0, half + common));
    const TaskId read = hand.program.copy(hand.gpu.part(half, half), hand.other.part(0, half));
    CHECK(edges_of(hand.finish()) == (common ? Edges{{write, read}} : Edges{}));
  }
}

TEST_CASE("Tasks of one lane have no edges, and only the last of a lane is waited for") {
  Hand hand;
  hand.program.copy(hand.host, hand.gpu);
  const TaskId last = hand.program.copy(hand.other, hand.gpu);  // the same bytes, the same lane
  hand.program.copy(hand.gpu, hand.host);
  const TaskId read = hand.program.copy(hand.gpu, hand.host);
  const TaskId write = hand.program.copy(hand.other, hand.gpu);
  // 2 reads what 1 wrote; 3 reads it too, after 2 on its lane, which has waited for 1; 4 overwrites
  // it: after 3, which is after 2. 2 writes what 0 read: after 0, which is before 1 on its lane.
  CHECK(edges_of(hand.finish()) == Edges{{last, 2}, {read, write}});
}

TEST_CASE("A task that reads two things of one task has one edge") {
  Hand hand;
  const TaskId write = hand.program.copy(hand.host, hand.gpu);
  const TaskId forward = hand.program.forward(
      0, 0, hand.gpu.part(0, page), hand.gpu.part(page, page), hand.persistent(Tier::gpu));
  CHECK(edges_of(hand.finish()) == Edges{{write, forward}});
}

TEST_CASE("A write in the middle leaves the ends to the earlier writer") {
  Hand hand;
  const TaskId all = hand.program.copy(hand.gpu, hand.host);
  const TaskId middle = hand.program.copy(hand.ssd.part(0, page), hand.host.part(page, page));
  const TaskId left = hand.program.copy(hand.host.part(0, page), hand.gpu.part(0, page));
  const TaskId inner = hand.program.copy(hand.host.part(page, page), hand.gpu.part(page, page));
  hand.program.copy(hand.host.part(2 * page, 2 * page), hand.gpu.part(2 * page, 2 * page));
  // Each copy back also overwrites what `all` read, which edge (all, left) covers: the others are
  // behind it on their lane.
  CHECK(edges_of(hand.finish()) == Edges{{all, middle}, {all, left}, {middle, inner}});
}

TEST_CASE(
    "A barrier waits for the last task of every lane, and the next of every lane waits for it") {
  Hand hand;
  hand.program.copy(hand.host, hand.gpu);
  const TaskId h2d = hand.program.copy(hand.host, hand.gpu);
  const TaskId write = hand.program.copy(hand.host, hand.ssd);
  const TaskId barrier = hand.program.barrier();
  const TaskId after = hand.program.copy(hand.host, hand.gpu);
  hand.program.copy(hand.host, hand.gpu);
  const TaskId read = hand.program.copy(hand.ssd, hand.other);
  const TaskId second = hand.program.barrier();
  // The second one finds `write` ended, for the first one has waited for it.
  CHECK(edges_of(hand.finish()) == Edges{{h2d, barrier},
                                         {write, barrier},
                                         {barrier, after},
                                         {barrier, read},
                                         {write, read},
                                         {5, second},
                                         {read, second}});
}

TEST_CASE("Memory that is used again makes the new writer wait for the old reader") {
  Hand hand;
  const Slice first = hand.transient(Tier::gpu);
  const Slice apart = hand.transient(Tier::gpu);
  const Slice second = hand.transient(Tier::gpu);
  hand.program.copy(hand.host.part(0, page), first);
  const TaskId last_use = hand.program.copy(first, hand.other.part(0, page));
  const TaskId reuse = hand.program.copy(hand.host.part(0, page), second);
  hand.program.copy(hand.host.part(0, page), apart);  // `second` is still in use: memory of its own
  hand.program.copy(second, hand.other.part(page, page));
  hand.program.copy(apart, hand.other.part(2 * page, page));
  const Schedule schedule = hand.finish();
  const auto buffers = schedule.buffers();
  CHECK(buffers[first.buffer.id].offset == buffers[second.buffer.id].offset);
  CHECK(buffers[apart.buffer.id].offset != buffers[second.buffer.id].offset);
  CHECK(edges_of(schedule) == Edges{{0, last_use}, {last_use, reuse}, {reuse, 4}, {3, 5}});
}

TEST_CASE("A buffer that nobody uses takes no memory") {
  Hand hand;
  const Slice unused = hand.transient(Tier::gpu, 100);
  hand.program.copy(hand.host, hand.gpu);
  const Schedule schedule = hand.finish();
  CHECK(schedule.use(Tier::gpu).peak_bytes == 4 * page);
  CHECK(schedule.buffers()[unused.buffer.id].first_use == none);
}

namespace {

// The same edges, worked out byte by byte.
class ByteByByte {
 public:
  explicit ByteByByte(std::size_t bytes) {
    for (auto& tier : tiers_) tier.resize(bytes);
    last_.fill(none);
    barrier_.fill(none);
  }
  void task(TaskId id, Lane lane, const std::vector<std::pair<Tier, Access>>& accesses) {
    std::array<TaskId, lane_count> after;
    after.fill(none);
    const auto wait = [&](TaskId task, std::size_t on) {
      if (task != none && (after[on] == none || after[on] < task)) after[on] = task;
    };
    for (const auto& [tier, access] : accesses) {
      for (std::uint64_t at = access.offset; at < access.offset + access.bytes; ++at) {
        Byte& byte = tiers_[static_cast<std::size_t>(tier)][at];
        if (byte.writer != none) wait(byte.writer, byte.writer_lane);
        if (access.mode == Mode::read) {
          byte.readers[static_cast<std::size_t>(lane)] = id;
        } else {
          for (std::size_t l = 0; l < lane_count; ++l) wait(byte.readers[l], l);
          byte = {id, static_cast<std::size_t>(lane), nobody()};
        }
      }
    }
    constexpr auto sync = static_cast<std::size_t>(Lane::host_sync);
    if (lane == Lane::host_sync) {
      for (std::size_t l = 0; l < lane_count; ++l) wait(last_[l], l);
      barrier_.fill(id);
    } else {
      wait(std::exchange(barrier_[static_cast<std::size_t>(lane)], none), sync);
    }
    for (std::size_t l = 0; l < lane_count; ++l) {
      if (l != static_cast<std::size_t>(lane) && after[l] != none) edges.emplace(after[l], id);
    }
    last_[static_cast<std::size_t>(lane)] = id;
  }
  Edges edges;

 private:
  using PerLane = std::array<TaskId, lane_count>;
  static PerLane nobody() {
    PerLane all;
    all.fill(none);
    return all;
  }
  struct Byte {
    TaskId writer = none;
    std::size_t writer_lane = 0;
    PerLane readers = nobody();
  };
  std::array<std::vector<Byte>, tier_count> tiers_;
  PerLane last_, barrier_;
};

// An edge is implied where an earlier task of the same lane waits for the same task, or for a later
// one on its lane.
Edges without_implied(const Schedule& schedule, const Edges& edges) {
  const auto one_lane = [&](TaskId a, TaskId b) {
    return schedule.tasks()[a].lane == schedule.tasks()[b].lane;
  };
  Edges rest;
  for (const auto& [from, to] : edges) {
    const bool implied = std::any_of(edges.begin(), edges.end(), [&, from = from, to = to](auto e) {
      return e.second < to && e.first >= from && one_lane(e.second, to) && one_lane(e.first, from);
    });
    if (!implied) rest.emplace(from, to);
  }
  return rest;
}

}  // namespace

TEST_CASE("Edges of random programs are those found byte by byte") {
  for (unsigned seed = 1; seed <= 40; ++seed) {
    INFO("seed " << seed);
    std::mt19937 random(seed);
    const auto below = [&](std::uint64_t bound) {
      return std::uniform_int_distribution<std::uint64_t>(0, bound - 1)(random);
    };
    Program program(tiny_problem(1, 1));
    const std::array<Slice, tier_count> arena = {
        program.persistent(Tier::gpu, page, BufferKind::scratch),
        program.persistent(Tier::host, page, BufferKind::scratch),
        program.persistent(Tier::ssd, page, BufferKind::scratch)};
    constexpr std::array<std::pair<Tier, Tier>, 4> hops = {{{Tier::host, Tier::gpu},
                                                            {Tier::gpu, Tier::host},
                                                            {Tier::ssd, Tier::host},
                                                            {Tier::host, Tier::ssd}}};
    for (int i = 0; i < 200; ++i) {
      if (below(25) == 0) {
        program.barrier();
        continue;
      }
      const auto [from, to] = hops[below(hops.size())];
      const std::uint64_t bytes = 1 + below(200);
      const auto slice = [&](Tier tier) {
        return arena[static_cast<std::size_t>(tier)].part(below(1000 - bytes), bytes);
      };
      program.copy(slice(from), slice(to));
    }
    const Schedule schedule = std::move(program).finish("random", 1);
    ByteByByte expected(page);
    for (TaskId id = 0; id < schedule.tasks().size(); ++id) {
      std::vector<std::pair<Tier, Access>> accesses;
      for (const Access& access : schedule.accesses(schedule.tasks()[id])) {
        accesses.emplace_back(schedule.buffers()[access.buffer].tier, access);
      }
      expected.task(id, schedule.tasks()[id].lane, accesses);
    }
    CHECK(edges_of(schedule) == without_implied(schedule, expected.edges));
    CHECK(find_race(schedule) == "");
  }
}

TEST_CASE("Random programs on transient buffers neither overlap nor race") {
  for (unsigned seed = 1; seed <= 40; ++seed) {
    INFO("seed " << seed);
    std::mt19937 random(seed);
    const auto below = [&](std::uint64_t bound) {
      return std::uniform_int_distribution<std::uint64_t>(0, bound - 1)(random);
    };
    Program program(tiny_problem(1, 1));
    const Slice source = program.persistent(Tier::ssd, 16 * page, BufferKind::scratch);
    std::vector<Slice> on_gpu;
    for (int i = 0; i < 150; ++i) {
      program.at(i / 50, Phase::forward);
      const std::uint64_t pages = 1 + below(4);
      const Slice host = program.buffer(Tier::host, pages * page, BufferKind::scratch);
      const Slice gpu = program.buffer(Tier::gpu, pages * page, BufferKind::scratch);
      program.copy(source.part(0, pages * page), host);
      program.copy(host, gpu);
      on_gpu.push_back(gpu);
      const Slice old = on_gpu[below(on_gpu.size())];
      const Slice back = program.buffer(Tier::host, old.bytes, BufferKind::scratch);
      program.copy(old, back);
      program.copy(back, source.part(8 * page, old.bytes));
    }
    const Schedule schedule = std::move(program).finish("random", 3);
    CHECK(find_overlap(schedule) == "");
    CHECK(find_race(schedule) == "");
    for (const Tier tier : {Tier::gpu, Tier::host}) {
      std::uint64_t end = 0;
      for (const BufferInfo& buffer : schedule.buffers()) {
        if (buffer.tier == tier) end = std::max(end, buffer.offset + buffer.bytes);
      }
      CHECK(schedule.use(tier).peak_bytes == end);
      CHECK(schedule.use(tier).peak_bytes >= schedule.use(tier).live_peak_bytes);
    }
  }
}

TEST_CASE("kernel_shape: what changes a kernel's time changes its key, and nothing else does") {
  Problem problem;
  problem.model = load_model("gpt-tiny", {});
  problem.workload.batch = 8;
  problem.workload.micro_batch = 4;
  problem.workload.sequence = 64;
  Task forward, backward;
  forward.kind = TaskKind::forward;
  backward.kind = TaskKind::backward;
  const std::string alone = kernel_shape(problem, forward), wide = kernel_shape(problem, backward);
  CHECK(alone == "gpt,C128,NH4,KV4,F512,b4,T64,bf16,keeps-nothing");
  problem.workload.batch = 16;
  CHECK(kernel_shape(problem, forward) == alone);
  // Sequences worked on at once, where there are several.
  problem.workload.sequences_at_once = 2;
  CHECK(kernel_shape(problem, forward) == "gpt,C128,NH4,KV4,F512,b4,T64,bf16,s2,keeps-nothing");
  problem.workload.sequences_at_once = 1;
  // A single micro-batch makes 16-bit gradients; forward makes none.
  problem.workload.batch = 4;
  REQUIRE(problem.gradient_bytes() == 2);
  CHECK(kernel_shape(problem, forward) == alone);
  CHECK(wide == "gpt,C128,NH4,KV4,F512,b4,T64,bf16,saved00");
  CHECK(kernel_shape(problem, backward) == "gpt,C128,NH4,KV4,F512,b4,T64,bf16,g16,saved00");
}
