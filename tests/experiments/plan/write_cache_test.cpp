// The fast write cache of consumer drives: when it is full, and at which rate steps write.
#include "experiments/plan/write_cache.hpp"

#include <catch2/catch.hpp>

#include "experiments/plan/price.hpp"

#include "experiments/plan/wear.hpp"
#include "policies/common/policy.hpp"

namespace spillway {
namespace {

// All of the optimizer's state goes over the drives; whole gigabytes a second.
Schedule writing(const Machine& machine) {
  Problem problem;
  problem.model = load_model("gpt2-1.5b");
  problem.machine = machine;
  problem.workload = {4, 4, 1024, Precision::bf16, GradientWidth::automatic};
  return build_schedule(problem, "zero-infinity", 6);
}

Machine cached(double recovery) {
  Machine machine = load_machine("rtx4090-2ssd");
  machine.ssd.cache_recovery = recovery;
  return machine;
}

Machine writing_at(Machine machine, double rate) {
  machine.ssd.write = rate;
  return machine;
}

TEST_CASE("A cache fills by what is written less what the drives empty meanwhile") {
  const WriteCache cache{100e9, 10e9, 2e9, 0.5e9};
  // 6 GB in 2 s, of which 1 GB is emptied: 5 GB more each step.
  CHECK(*cache.steps_until_full(6e9, 2) == Approx(20));
  CHECK_FALSE(cache.steps_until_full(6e9, 12));  // just as fast as it is emptied
  CHECK(cache.holds(6e9, 12));
  CHECK_FALSE(cache.holds(6e9, 11.9));
  CHECK(cache.holds(0, 1));
}

TEST_CASE("A machine has a write cache where its file gives one that is faster than its drives") {
  const Machine machine = load_machine("rtx4090-2ssd");
  const auto cache = write_cache_of(machine);
  REQUIRE(cache);
  CHECK(cache->bytes == 2 * 226e9);
  CHECK(cache->write == Approx(13.8e9));
  CHECK(cache->when_full == Approx(2.8e9));
  CHECK(cache->recovery == 0);
  const auto one = write_cache_of(load_machine("rtx4090-1ssd"));
  REQUIRE(one);
  CHECK(one->bytes == 226e9);
  CHECK(one->write == Approx(6.9e9));
  CHECK_FALSE(write_cache_of(load_machine("rtx4090-12ssd")));
  CHECK_FALSE(write_cache_of(load_machine("rtx4090-2ssd", {"ssd.write=14GB/s"})));
}

TEST_CASE("Steps that never fill the cache write at its rate, all others at the drives'") {
  const Schedule schedule = writing(cached(0));
  const auto seconds = [&](const Machine& machine) {
    return simulate_long_run(schedule, machine).step_seconds;
  };
  const SimulationResult full = simulate(schedule);
  const double in_cache = simulate(schedule, writing_at(cached(0), 13.8e9)).step_seconds;
  REQUIRE(full.step_seconds > 1.05 * in_cache);
  const double written = full.ssd_bytes_written_per_step;
  CHECK(seconds(cached(0)) == full.step_seconds);
  CHECK(seconds(cached(0.9 * written / full.step_seconds)) == full.step_seconds);
  // Slow enough for the cache at the drives' pace, but not at its own.
  CHECK(seconds(cached(1.02 * written / full.step_seconds)) == full.step_seconds);
  CHECK(seconds(cached(1.01 * written / in_cache)) == in_cache);
}

TEST_CASE("A run that is over before the cache is full is told from one that is not") {
  const Schedule schedule = writing(cached(0));
  const SimulationResult result = simulate(schedule);
  const auto wear = [&](std::int64_t steps) {
    return wear_of(schedule, &result, {{DurabilityMode::off, 0}, steps});
  };
  const Wear many = wear(1000);
  REQUIRE(many.steps_until_cache_full());
  CHECK(*many.steps_until_cache_full() ==
        Approx((452e9 - many.start_bytes) / many.bytes_per_step()));
  CHECK_FALSE(many.ends_in_cache());
  CHECK(wear(2).ends_in_cache());
}

TEST_CASE("A run is as fast as its cache until that is full") {
  const Schedule schedule = writing(cached(0));
  const SimulationResult result = simulate(schedule);
  const double in_cache = simulate(schedule, writing_at(cached(0), 13.8e9)).step_seconds;
  REQUIRE(result.step_seconds > 1.05 * in_cache);
  const auto wear = [&](std::int64_t steps) {
    return wear_of(schedule, &result, {{DurabilityMode::off, 0}, steps});
  };
  CHECK(*wear(2).step_seconds_in_cache == in_cache);
  CHECK(*wear(2).run_seconds() == Approx(2 * in_cache));
  const Wear many = wear(1000);
  const double fast = (452e9 - many.start_bytes) / many.bytes_per_step();
  CHECK(many.steps_in_cache() == Approx(fast));
  CHECK(*many.run_seconds() == Approx(fast * in_cache + (1000 - fast) * result.step_seconds));
  // Nobody knows how long a training without a number of steps is.
  CHECK_FALSE(wear_of(schedule, &result, {{DurabilityMode::off, 0}, {}}).step_seconds_in_cache);
  // A cache that never fills has no other pace.
  const Schedule slow = writing(cached(20e9));
  const SimulationResult held = simulate(slow);
  CHECK_FALSE(wear_of(slow, &held, {{DurabilityMode::off, 0}, 10}).step_seconds_in_cache);
}

TEST_CASE("a schedule on drives with a write cache is priced as it is simulated") {
  Problem problem;
  problem.model = load_model("gpt-65b");
  problem.machine = load_machine(
      "rtx4090-12ssd", {"ssd.cache=200GB", "ssd.cache_write=40GB/s", "ssd.cache_recovery=40GB/s",
                        "ssd.write=2GB/s", "ssd.read=20GB/s", "ssd.total=40GB/s"});
  problem.workload.batch = 16;
  problem.workload.micro_batch = 4;
  CHECK_FALSE(quick_price(problem, "greedysnake"));
  const Price whole = price(problem, "greedysnake");
  CHECK(whole.step_seconds == evaluate(problem, "greedysnake").result->step_seconds);
  // A cache that is emptied too slowly is full, as miniatures have it.
  problem.machine.ssd.cache_recovery = 1e6;
  const std::optional<Price> slow = quick_price(problem, "greedysnake");
  REQUIRE(slow);
  CHECK(slow->step_seconds ==
        Approx(evaluate(problem, "greedysnake").result->step_seconds).epsilon(1e-3));
  problem.machine.ssd.cache = 0;
  CHECK(quick_price(problem, "greedysnake"));
}

}  // namespace
}  // namespace spillway
