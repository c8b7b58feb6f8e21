// The planner of one tier's arena, against a list of live runs.
#include <catch2/catch.hpp>

#include <algorithm>
#include <random>

#include "policies/common/policy.hpp"
#include "policies/schedule/memory_planner.hpp"
#include "tests/policies/schedules.hpp"

using namespace spillway;
using namespace spillway::test;

namespace {

struct Run {
  std::uint64_t offset, bytes;
  MemoryPlanner::Block block = MemoryPlanner::no_block;
};

bool overlap(const Run& a, const Run& b) {
  return a.offset < b.offset + b.bytes && b.offset < a.offset + a.bytes;
}

// What the planner is held to: the live runs, their sum, and the highest end ever.
class Checked {
 public:
  void allocate(std::uint64_t bytes) {
    const MemoryPlanner::Block block = planner.allocate(bytes);
    add({planner.offset(block), bytes, block});
  }
  void allocate_at(Run run) {
    const bool is_free =
        run.offset + run.bytes <= extent_ &&
        std::none_of(live.begin(), live.end(), [&](const Run& r) { return overlap(r, run); });
    run.block = planner.allocate_at(run.offset, run.bytes);
    const bool given = run.block != MemoryPlanner::no_block;
    CHECK(given == is_free);
    if (given) add(run);
  }
  void release(std::size_t which) {
    planner.release(live[which].block);
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

// The rules of the planner, written down plainly: a list of free runs in address order, searched
// from end to end.
class PlainPlanner {
 public:
  std::uint64_t allocate(std::uint64_t bytes) {
    auto best = best_run([&](const FreeRun& run) { return run.bytes == bytes; });
    if (best == free_.end()) {
      merge();
      best = best_run([&](const FreeRun& run) { return run.bytes >= bytes; });
    }
    if (best != free_.end()) {
      const std::uint64_t offset = best->offset;
      cut(best, offset, bytes);
      return offset;
    }
    std::uint64_t offset = extent_;
    if (!free_.empty() && free_.back().offset + free_.back().bytes == extent_) {
      offset = free_.back().offset;
      free_.pop_back();
    }
    extent_ = offset + bytes;
    return offset;
  }
  bool allocate_at(std::uint64_t offset, std::uint64_t bytes) {
    for (auto first = free_.begin(); first != free_.end(); ++first) {
      if (first->offset > offset || first->offset + first->bytes <= offset) continue;
      FreeRun whole = *first;
      auto last = std::next(first);
      for (; whole.offset + whole.bytes < offset + bytes; ++last) {
        if (last == free_.end() || last->offset != whole.offset + whole.bytes) return false;
        whole.bytes += last->bytes;
      }
      *first = whole;
      cut(free_.erase(std::next(first), last) - 1, offset, bytes);
      return true;
    }
    return false;
  }
  void release(std::uint64_t offset, std::uint64_t bytes) { add(offset, bytes); }
  std::uint64_t extent() const { return extent_; }

 private:
  struct FreeRun {
    std::uint64_t offset, bytes, freed_at;
  };
  using FreeRuns = std::vector<FreeRun>;

  void add(std::uint64_t offset, std::uint64_t bytes) {
    const auto at = std::find_if(free_.begin(), free_.end(),
                                 [&](const FreeRun& run) { return run.offset > offset; });
    free_.insert(at, {offset, bytes, ++clock_});
  }
  // Of those that qualify the smallest, of these the one that has been free longest.
  template <class Qualifies>
  FreeRuns::iterator best_run(Qualifies qualifies) {
    auto best = free_.end();
    for (auto run = free_.begin(); run != free_.end(); ++run) {
      if (!qualifies(*run)) continue;
      if (best == free_.end() || run->bytes < best->bytes ||
          (run->bytes == best->bytes && run->freed_at < best->freed_at)) {
        best = run;
      }
    }
    return best;
  }
  void cut(FreeRuns::iterator run, std::uint64_t offset, std::uint64_t bytes) {
    const FreeRun whole = *run;
    free_.erase(run);
    if (whole.offset < offset) add(whole.offset, offset - whole.offset);
    const std::uint64_t end = whole.offset + whole.bytes;
    if (offset + bytes < end) add(offset + bytes, end - offset - bytes);
  }
  void merge() {
    for (std::size_t i = 0; i + 1 < free_.size();) {
      if (free_[i].offset + free_[i].bytes != free_[i + 1].offset) {
        ++i;
        continue;
      }
      free_[i].bytes += free_[i + 1].bytes;
      free_[i].freed_at = ++clock_;
      free_.erase(free_.begin() + static_cast<std::ptrdiff_t>(i) + 1);
    }
  }

  FreeRuns free_;  // in address order
  std::uint64_t extent_ = 0, clock_ = 0;
};

}  // namespace

TEST_CASE("Every offset is the one that the rules give") {
  for (unsigned seed = 1; seed <= 200; ++seed) {
    INFO("seed " << seed);
    std::mt19937 random(seed);
    const auto below = [&](std::uint64_t bound) { return random() % bound; };
    MemoryPlanner planner;
    PlainPlanner plain;
    std::vector<Run> live;
    MemoryPlanner::Block hint = MemoryPlanner::no_block;
    const std::uint64_t sizes = 1 + below(12);
    for (int i = 0; i < 1000; ++i) {
      const std::uint64_t choice = below(7), bytes = page * (1 + below(sizes));
      if (choice < 2) {
        const MemoryPlanner::Block block = planner.allocate(bytes);
        const std::uint64_t expected = plain.allocate(bytes);
        if (planner.offset(block) != expected)
          FAIL("request " << i << " got " << planner.offset(block) << ", not " << expected);
        live.push_back({expected, bytes, block});
      } else if (choice < 4) {
        const std::uint64_t offset = page * below(plain.extent() / page + 1);
        const MemoryPlanner::Block block = planner.allocate_at(offset, bytes, hint);
        const bool given = block != MemoryPlanner::no_block;
        if (given != plain.allocate_at(offset, bytes)) FAIL("request " << i << " at " << offset);
        if (given) live.push_back({offset, bytes, block});
      } else if (!live.empty()) {
        const std::size_t which = below(live.size());
        hint = live[which].block;
        planner.release(hint);
        plain.release(live[which].offset, live[which].bytes);
        live.erase(live.begin() + static_cast<std::ptrdiff_t>(which));
      }
      if (planner.extent() != plain.extent()) FAIL("extent after request " << i);
    }
  }
}

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
      const MemoryPlanner::Block block = planner.allocate(bytes);
      given.push_back(planner.offset(block));
      live.push_back({given.back(), bytes, block});
      if (random() % 3 == 0) continue;
      const std::size_t which = random() % live.size();
      planner.release(live[which].block);
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
    std::vector<MemoryPlanner::Block> small, large;
    for (int i = 0; i < 20; ++i) {
      small.push_back(planner.allocate(3 * page));
      large.push_back(planner.allocate(10 * page));
      if (i == 0) continue;
      planner.release(small[small.size() - 2]);
      planner.release(large[large.size() - 2]);
    }
    planner.release(small.back());
    planner.release(large.back());
  };
  round();
  CHECK(planner.extent() == 26 * page);  // two of each
  for (int i = 0; i < 10; ++i) round();
  CHECK(planner.extent() == 26 * page);
}

TEST_CASE("Of two free ranges of the right size the one that has been free longer is given") {
  MemoryPlanner planner;
  const auto allocate = [&] { return planner.allocate(page); };
  const MemoryPlanner::Block a = allocate(), between = allocate(), b = allocate();
  CHECK(planner.offset(a) == 0);
  CHECK(planner.offset(between) == page);
  CHECK(planner.offset(b) == 2 * page);
  planner.release(b);
  planner.release(a);
  CHECK(planner.offset(allocate()) == 2 * page);
  CHECK(planner.offset(allocate()) == 0);
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
