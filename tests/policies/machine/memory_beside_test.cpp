// What frozen weights take that are read in place: nothing of the drives, a buffer of host memory.
#include "policies/machine/memory_beside.hpp"

#include <catch2/catch.hpp>

#include "base/errors.hpp"
#include "base/units.hpp"
#include "policies/workload/durability.hpp"
#include "tests/policies/schedules.hpp"

using namespace spillway;
using namespace spillway::test;

namespace {

constexpr const char* on_the_ssd = "greedysnake:parameters_ssd=1,optimizer_ssd=0.5,alpha=0";

Problem adapters() {
  Problem problem = tiny_problem(6, 2);
  make_llama(problem.model, 0);
  problem.model.lora_rank = 2;
  return problem;
}

std::uint64_t frozen_on_ssd(const Schedule& schedule) {
  std::uint64_t bytes = 0;
  for (const HomePart& home : schedule.homes()) {
    const BufferInfo& buffer = schedule.buffers()[home.where.buffer.id];
    if (home.frozen && buffer.tier == Tier::ssd) bytes += buffer.bytes;
  }
  return bytes;
}

}  // namespace

TEST_CASE("Frozen weights that are read in place take no space of the ssd tier") {
  Problem problem = adapters();
  const Schedule copied = build_schedule(problem, on_the_ssd, 2);
  set_memory_beside(problem, true);
  const Schedule in_place = build_schedule(problem, on_the_ssd, 2);
  const std::uint64_t bytes = frozen_on_ssd(in_place);
  REQUIRE(bytes > 0);
  CHECK(copied.use(Tier::ssd).in_place_bytes == 0);
  CHECK(in_place.use(Tier::ssd).in_place_bytes == bytes);
  CHECK(in_place.use(Tier::ssd).peak_bytes + bytes == copied.use(Tier::ssd).peak_bytes);
  CHECK(in_place.use(Tier::ssd).live_peak_bytes + bytes == copied.use(Tier::ssd).live_peak_bytes);
  const StoreBytes with = store_bytes(copied, true), without = store_bytes(in_place, true);
  CHECK(without.tier + bytes == with.tier);
  CHECK(without.first_fill < with.first_fill);
  CHECK(without.second_copies == with.second_copies);
  // Drives too small for a copy are large enough.
  problem.machine.ssd.capacity = copied.use(Tier::ssd).peak_bytes - 1;
  CHECK(build_schedule(problem, on_the_ssd, 2).fits());
  set_memory_beside(problem, false);
  CHECK_FALSE(build_schedule(problem, on_the_ssd, 2).fits());
}

TEST_CASE("The memory that frozen weights are read through is of the limit of host memory") {
  Problem problem = adapters();
  problem.machine.host.memory = 20'000'000;
  set_memory_beside(problem, true);
  set_memory_beside(problem, true);  // once, however often it is said
  CHECK(problem.machine.host.memory == 20'000'000 - frozen_buffer_bytes);
  const std::uint64_t needed = build_schedule(problem, on_the_ssd, 2).use(Tier::host).peak_bytes;
  problem.machine.host.memory = needed - 1;
  try {
    build_schedule(problem, on_the_ssd, 2).require_fit();
    FAIL("it fits");
  } catch (const FitError& error) {
    CHECK_THAT(std::string(error.what()), Catch::Contains("that frozen weights are read through"));
    // The limit that is advised has room for both.
    CHECK_THAT(error.hint(),
               Catch::Contains(size_setting(round_size(needed + frozen_buffer_bytes, true))));
  }
  problem.machine.host.memory = needed;
  set_memory_beside(problem, false);
  CHECK(problem.machine.host.memory == needed + frozen_buffer_bytes);
  // A limit that leaves nothing, a memory that nobody knows yet, a model of which all is trained.
  problem.machine.host.memory = 1000;
  set_memory_beside(problem, true);
  CHECK(problem.machine.host.memory == 1);
  set_memory_beside(problem, false);
  problem.machine.host.memory = 0;
  set_memory_beside(problem, true);
  CHECK(problem.machine.host.memory == 0);
  Problem whole = tiny_problem(3, 1);
  set_memory_beside(whole, true);
  CHECK_FALSE(whole.frozen_in_place);
  CHECK(whole.machine.host.memory == plenty);
}
