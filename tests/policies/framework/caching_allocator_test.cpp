// PyTorch's allocator by its documented sizes, and what fragmentation adds.
#include "policies/framework/caching_allocator.hpp"

#include <catch2/catch.hpp>

#include "policies/framework/framework.hpp"
#include "tests/policies/schedules.hpp"

using namespace spillway;
using namespace spillway::test;

namespace {

constexpr std::uint64_t mib = std::uint64_t{1} << 20;
constexpr std::uint64_t unlimited = std::uint64_t{1} << 40;

std::uint64_t reserved_for(std::uint64_t bytes) {
  CachingAllocator allocator(unlimited);
  REQUIRE(allocator.allocate(bytes));
  return allocator.reserved();
}

}  // namespace

TEST_CASE("A tensor is asked of CUDA in segments of 2 MiB, of 20 MiB, or rounded up to 2 MiB") {
  CHECK(reserved_for(1) == 2 * mib);
  CHECK(reserved_for(mib) == 2 * mib);
  CHECK(reserved_for(mib + 1) == 20 * mib);
  CHECK(reserved_for(10 * mib - 512) == 20 * mib);
  CHECK(reserved_for(10 * mib) == 10 * mib);
  CHECK(reserved_for(11 * mib + 1) == 12 * mib);
}

TEST_CASE("Blocks are split, joined with free neighbours, and chosen by the best fit") {
  CachingAllocator allocator(unlimited);
  const auto first = allocator.allocate(8 * mib);
  const auto second = allocator.allocate(8 * mib);  // the rest of the same 20 MiB
  CHECK(allocator.reserved() == 20 * mib);
  allocator.release(*first);
  CHECK(allocator.allocate(9 * mib));  // more than either hole
  CHECK(allocator.reserved() == 40 * mib);
  allocator.release(*second);
  CHECK(allocator.allocate(20 * mib));  // the first segment is whole again
  CHECK(allocator.reserved() == 40 * mib);
  // Less than 1 MiB of a large block is not given back.
  CachingAllocator tight(unlimited);
  REQUIRE(tight.allocate(19 * mib + 1));
  CHECK(tight.reserved() == 20 * mib);
  REQUIRE(tight.allocate(2 * mib));
  CHECK(tight.reserved() == 40 * mib);
}

TEST_CASE("Segments that nothing uses are given back before memory is out") {
  CachingAllocator allocator(64 * mib);
  const auto first = allocator.allocate(40 * mib);
  CHECK_FALSE(allocator.allocate(30 * mib));
  allocator.release(*first);
  CHECK(allocator.allocate(60 * mib));
  CHECK(allocator.reserved() == 60 * mib);
}

TEST_CASE("A hole that is too small for the next tensor is memory that is needed, too") {
  // 40 | 20 | 40 of one segment of 100; the 40s go, and one of 60 has no place.
  const ReplayedMemory memory = replay({{0, 100 * mib},
                                        {0, 0},
                                        {1, 40 * mib},
                                        {2, 20 * mib},
                                        {3, 40 * mib},
                                        {1, 0},
                                        {3, 0},
                                        {4, 60 * mib}});
  CHECK(memory.live == 100 * mib);
  CHECK(memory.needed >= memory.live);
  CHECK(memory.needed <= 160 * mib);
  // Tensors in whole segments, one after the other, need no more than the largest two at once.
  const ReplayedMemory stack =
      replay({{0, 64 * mib}, {1, 32 * mib}, {1, 0}, {0, 0}, {2, 64 * mib}, {3, 32 * mib}});
  CHECK(stack.needed == stack.live);
  CHECK(replay({}).needed == 0);
}

TEST_CASE("What the allocator adds to a schedule follows from the tensors, and is not negative") {
  Problem problem = tiny_problem(4, 2);
  const auto peak = [&](const std::string& framework) {
    problem.framework = framework;
    return build_schedule(problem, "fuyou", 2).use(Tier::gpu).live_peak_bytes;
  };
  const std::uint64_t without = peak("spillway:memory.whole_micro_batch=true");
  const std::uint64_t with =
      peak("spillway:memory.whole_micro_batch=true,memory.caching_allocator=true");
  // Tiny tensors: one segment of 2 MiB for the small ones, and 20 for what is larger.
  CHECK(with > without);
  CHECK(with < without + 64 * mib);
}
