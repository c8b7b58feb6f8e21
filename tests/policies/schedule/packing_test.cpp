// Offsets for buffers whose lifetimes are known, against what no two live buffers may do.
#include <catch2/catch.hpp>

#include <algorithm>
#include <random>

#include "policies/common/policy.hpp"
#include "policies/schedule/packing.hpp"
#include "tests/policies/schedules.hpp"

using namespace spillway;
using namespace spillway::test;

namespace {

constexpr std::uint64_t page = 4096;

bool share_bytes(const Lifetime& a, const Lifetime& b) {
  return a.offset < b.offset + b.bytes && b.offset < a.offset + a.bytes;
}

// Whether `b` may take the bytes of `a`.
bool may_follow(const Lifetime& a, const Lifetime& b, TaskId distance) {
  return a.last + (a.last_lane == b.first_lane ? 0 : distance) < b.first;
}

std::uint64_t live_peak(const std::vector<Lifetime>& buffers) {
  std::uint64_t peak = 0;
  for (const Lifetime& at : buffers) {
    std::uint64_t live = 0;
    for (const Lifetime& one : buffers) {
      if (one.first <= at.first && at.first <= one.last) live += one.bytes;
    }
    peak = std::max(peak, live);
  }
  return peak;
}

}  // namespace

TEST_CASE("Packed buffers that live at once share no bytes") {
  for (unsigned seed = 0; seed < 200; ++seed) {
    INFO("seed " << seed);
    std::mt19937_64 random(seed);
    const auto below = [&](std::uint64_t limit) { return random() % limit; };
    const auto distance = static_cast<TaskId>(below(2) * below(20));
    std::vector<Lifetime> buffers(1 + below(120));
    for (Lifetime& one : buffers) {
      one.bytes = page * (1 + below(9));
      one.first = static_cast<TaskId>(below(300));
      one.last = one.first + static_cast<TaskId>(below(below(8) == 0 ? 300 : 20));
      one.first_lane = below(2) == 0 ? Lane::pcie_h2d : Lane::gpu_compute;
      one.last_lane = below(2) == 0 ? Lane::pcie_d2h : Lane::gpu_compute;
    }
    const std::optional<std::uint64_t> extent = pack(buffers, distance, no_limit);
    REQUIRE(extent);
    CHECK(*extent >= live_peak(buffers));
    std::uint64_t highest = 0;
    for (std::size_t a = 0; a < buffers.size(); ++a) {
      highest = std::max(highest, buffers[a].offset + buffers[a].bytes);
      for (std::size_t b = 0; b < a; ++b) {
        if (may_follow(buffers[a], buffers[b], distance) ||
            may_follow(buffers[b], buffers[a], distance))
          continue;
        REQUIRE_FALSE(share_bytes(buffers[a], buffers[b]));
      }
    }
    CHECK(*extent == highest);
  }
}

TEST_CASE("Each buffer has the lowest offset that those placed before it leave") {
  for (unsigned seed = 0; seed < 100; ++seed) {
    INFO("seed " << seed);
    std::mt19937_64 random(seed);
    const auto distance = static_cast<TaskId>(random() % 2 * 10);
    std::vector<Lifetime> buffers(150);
    for (Lifetime& one : buffers) {
      one.bytes = page * (1 + random() % 30);
      one.first = static_cast<TaskId>(random() % 100);
      one.last = one.first + static_cast<TaskId>(random() % 40);
      one.first_lane = one.last_lane = random() % 2 == 0 ? Lane::pcie_h2d : Lane::gpu_compute;
    }
    REQUIRE(pack(buffers, distance, no_limit));
    std::stable_sort(buffers.begin(), buffers.end(), is_placed_before);
    for (std::size_t b = 0; b < buffers.size(); ++b) {
      // Nothing but 0 and the ends of others can be lowest.
      Lifetime lowest = buffers[b];
      std::vector<std::uint64_t> offsets = {0};
      for (std::size_t a = 0; a < b; ++a) offsets.push_back(buffers[a].offset + buffers[a].bytes);
      std::sort(offsets.begin(), offsets.end());
      const auto is_free = [&](std::uint64_t offset) {
        lowest.offset = offset;
        return std::none_of(buffers.begin(), buffers.begin() + static_cast<std::ptrdiff_t>(b),
                            [&](const Lifetime& a) {
                              return share_bytes(a, lowest) && !may_follow(a, lowest, distance) &&
                                     !may_follow(lowest, a, distance);
                            });
      };
      const auto first = std::find_if(offsets.begin(), offsets.end(), is_free);
      REQUIRE(first != offsets.end());
      REQUIRE(buffers[b].offset == *first);
    }
  }
}

TEST_CASE("Packing takes no more than what lives at once where taking turns leaves gaps") {
  // A small buffer that stays is between two large ones that come one after the other.
  const Lane lane = Lane::gpu_compute;
  std::vector<Lifetime> buffers = {{2 * page, 0, 2, lane, lane, 0},
                                   {page, 1, 9, lane, lane, 0},
                                   {3 * page, 4, 6, lane, lane, 0}};
  CHECK(pack(buffers, 0, no_limit) == 4 * page);
  CHECK(pack(buffers, 5, no_limit) == 4 * page);  // on one lane nothing has to rest
  buffers[2].first_lane = Lane::pcie_h2d;
  CHECK(pack(buffers, 5, no_limit) == 6 * page);
  CHECK(pack(buffers, 5, 6 * page) == 6 * page);
  CHECK_FALSE(pack(buffers, 5, 6 * page - 1));
}

TEST_CASE("Less memory than a layout takes never makes it larger, and often smaller") {
  int smaller = 0;
  for (const std::string& policy : policy_settings()) {
    INFO(policy);
    Problem problem = tiny_problem(5, 3);
    const Schedule roomy = build_schedule(problem, *make_policy(policy), 3);
    problem.machine.gpu.memory = std::max<std::uint64_t>(1, roomy.use(Tier::gpu).live_peak_bytes);
    problem.machine.host.memory = std::max<std::uint64_t>(1, roomy.use(Tier::host).live_peak_bytes);
    const Schedule tight = build_schedule(problem, *make_policy(policy), 3);
    for (const Tier tier : {Tier::gpu, Tier::host}) {
      CHECK(tight.use(tier).peak_bytes <= roomy.use(tier).peak_bytes);
      smaller += tight.use(tier).peak_bytes < roomy.use(tier).peak_bytes ? 1 : 0;
    }
  }
  CHECK(smaller > 0);
}
