// The planner of one tier's arena, against a list of live runs.
#include <catch2/catch.hpp>

#include <algorithm>
#include <random>

#include "policies/memory_planner.hpp"
#include "policies/policy.hpp"
#include "tests/policies/schedules.hpp"

using namespace spillway;
using namespace spillway::test;

namespace {

struct Run {
  std::uint64_t offset, bytes;
};

bool overlap(const Run& a, const Run& b) {
  return a.offset < b.offset + b.bytes && b.offset < a.offset + a.bytes;
}

// What the planner is held to: the live runs, their sum, and the highest end ever.
class Checked {
 public:
  void allocate(std::uint64_t bytes) { add({planner.allocate(bytes), bytes}); }
  void allocate_at(Run run) {
    const bool is_free =
        run.offset + run.bytes <= extent_ &&
        std::none_of(live.begin(), live.end(), [&](const Run& r) { return overlap(r, run); });
    const bool given = planner.allocate_at(run.offset, run.bytes);
    CHECK(given == is_free);
    if (given) add(run);
  }
  void release(std::size_t which) {
    planner.release(live[which].offset, live[which].bytes);
    live_bytes_ -= live[which].bytes;
    live.erase(live.begin() + static_cast<std::ptrdiff_t>(which));
    check();
  }
  std::vector<Run> live;
  MemoryPlanner planner;

 private:
  void add(Run run) {
    const auto taken =
        std::find_if(live.begin(), live.end(), [&](const Run& r) { return overlap(r, run); });
    if (taken != live.end()) {
      FAIL("[" << run.offset << " + " << run.bytes << ") overlaps [" << taken->offset << " + "
               << taken->bytes << ")");
    }
    live.push_back(run);
    live_bytes_ += run.bytes;
    extent_ = std::max(extent_, run.offset + run.bytes);
    check();
  }
  void check() const {
    if (planner.live_bytes() != live_bytes_)
      FAIL(planner.live_bytes() << " live bytes, not " << live_bytes_);
    if (planner.extent() != extent_) FAIL("extent " << planner.extent() << ", not " << extent_);
  }
  std::uint64_t live_bytes_ = 0, extent_ = 0;
};

constexpr std::uint64_t page = 4096;

}  // namespace

TEST_CASE("Live runs never overlap and the extent is the highest end") {
  for (unsigned seed = 1; seed <= 50; ++seed) {
    INFO("seed " << seed);
    std::mt19937 random(seed);
    const auto below = [&](std::uint64_t bound) {
      return std::uniform_int_distribution<std::uint64_t>(0, bound - 1)(random);
    };
    Checked checked;
    const std::uint64_t sizes = 1 + below(12);
    for (int i = 0; i < 1000; ++i) {
      const std::uint64_t choice = below(5);
      if (choice < 2) {
        checked.allocate(page * (1 + below(sizes)));
      } else if (choice == 2 && checked.planner.extent() > 0) {
        checked.allocate_at(
            {page * below(checked.planner.extent() / page + 1), page * (1 + below(sizes))});
      } else if (!checked.live.empty()) {
        checked.release(below(checked.live.size()));
      }
    }
    while (!checked.live.empty()) checked.release(0);
    // All is free again: one run as long as the extent fits without growing.
    const std::uint64_t extent = checked.planner.extent();
    checked.allocate(extent);
    CHECK(checked.planner.extent() == extent);
  }
}

TEST_CASE("The same requests get the same offsets") {
  const auto offsets = [] {
    std::mt19937 random(7);
    MemoryPlanner planner;
    std::vector<Run> live;
    std::vector<std::uint64_t> given;
    for (int i = 0; i < 2000; ++i) {
      const std::uint64_t bytes = page * (1 + random() % 6);
      given.push_back(planner.allocate(bytes));
      live.push_back({given.back(), bytes});
      if (random() % 3 == 0) continue;
      const std::size_t which = random() % live.size();
      planner.release(live[which].offset, live[which].bytes);
      live.erase(live.begin() + static_cast<std::ptrdiff_t>(which));
    }
    return given;
  };
  CHECK(offsets() == offsets());
}

TEST_CASE("A loop that asks for the same sizes does not grow after its first round") {
  MemoryPlanner planner;
  const auto round = [&] {
    // A window of two of each size alive, as prefetching one ahead has it.
    std::vector<std::uint64_t> small, large;
    for (int i = 0; i < 20; ++i) {
      small.push_back(planner.allocate(3 * page));
      large.push_back(planner.allocate(10 * page));
      if (i == 0) continue;
      planner.release(small[small.size() - 2], 3 * page);
      planner.release(large[large.size() - 2], 10 * page);
    }
    planner.release(small.back(), 3 * page);
    planner.release(large.back(), 10 * page);
  };
  round();
  CHECK(planner.extent() == 26 * page);  // two of each
  for (int i = 0; i < 10; ++i) round();
  CHECK(planner.extent() == 26 * page);
}

TEST_CASE("Of two free runs of the right size the one that has been free longer is given") {
  MemoryPlanner planner;
  const std::uint64_t a = planner.allocate(page), between = planner.allocate(page),
                      b = planner.allocate(page);
  planner.release(b, page);
  planner.release(a, page);
  CHECK(planner.allocate(page) == b);
  CHECK(planner.allocate(page) == a);
  CHECK(between == page);
}

TEST_CASE("Persistent buffers lie in the same places however many steps there are") {
  for (const std::string& policy : policy_settings()) {
    INFO(policy);
    const auto places = [&](int steps) {
      std::vector<std::pair<Tier, std::uint64_t>> all;
      const Schedule schedule = build_schedule(tiny_problem(3, 3), policy, steps);
      for (const BufferInfo& buffer : schedule.buffers()) {
        if (buffer.persistent) all.emplace_back(buffer.tier, buffer.offset);
      }
      return all;
    };
    const auto two = places(2);
    CHECK(two == places(1));
    CHECK(two == places(7));
  }
}

TEST_CASE("Memory does not creep up from step to step") {
  // A step is placed where the one before was; the first ones may still settle.
  for (const int layers : {2, 3, 7}) {
    for (const int micro_batches : {1, 3, 8}) {
      for (const std::string& policy : policy_settings()) {
        INFO(policy << ", " << layers << " layers, " << micro_batches << " micro-batches");
        const Schedule few = build_schedule(tiny_problem(layers, micro_batches), policy, 8);
        const Schedule many = build_schedule(tiny_problem(layers, micro_batches), policy, 16);
        for (const Tier tier : {Tier::gpu, Tier::host, Tier::ssd}) {
          CHECK(many.use(tier).peak_bytes == few.use(tier).peak_bytes);
        }
      }
    }
  }
}
