#include "sim/fair_sharing.hpp"

#include <catch2/catch.hpp>

#include <random>

#include "base/errors.hpp"

using namespace spillway;

namespace {

// The rates when `running[d]` activities of demand d run.
std::vector<double> rates(const std::vector<Resource>& resources,
                          const std::vector<Demand>& demands, const std::vector<int>& running) {
  FairSharing sharing(resources, demands);
  for (std::uint32_t d = 0; d < running.size(); ++d) {
    for (int n = 0; n < running[d]; ++n) sharing.join(d);
  }
  sharing.solve();
  std::vector<double> result;
  for (std::uint32_t d = 0; d < running.size(); ++d) result.push_back(sharing.rate(d));
  return result;
}

Demand capped(double cap, double weight = 1) {
  Demand demand;
  demand.rate_cap = cap;
  demand.weight = weight;
  return demand;
}

constexpr double inf = std::numeric_limits<double>::infinity();

}  // namespace

TEST_CASE("Alone, a demand runs at its full rate") {
  // y <= cap, usage * y <= C: min(10, 12 / 2) = 6 and min(3, 12 / 2) = 3.
  CHECK(rates({{"r", 12}}, {capped(10).uses(0, 2)}, {1})[0] == 6);
  CHECK(rates({{"r", 12}}, {capped(3).uses(0, 2)}, {1})[0] == 3);
}

TEST_CASE("Equal demands share a resource equally") {
  // n y = C: y = 12 / 4.
  CHECK(rates({{"r", 12}}, {capped(inf).uses(0, 1)}, {4})[0] == 3);
}

TEST_CASE("Weights divide a resource in proportion") {
  // y_a = 1 lambda, y_b = 3 lambda, y_a + y_b = 12: lambda = 3.
  const auto y = rates({{"r", 12}}, {capped(inf, 1).uses(0, 1), capped(inf, 3).uses(0, 1)}, {1, 1});
  CHECK(y == std::vector<double>{3, 9});
}

TEST_CASE("What a capped demand leaves goes to the others") {
  // y_a <= 2, y_a + 2 y_b = 12 with two of b: lambda = 4 would exceed y_a's cap; so 2, and (12 - 2)
  // / 2.
  const auto y = rates({{"r", 12}}, {capped(2).uses(0, 1), capped(inf).uses(0, 1)}, {1, 2});
  CHECK(y == std::vector<double>{2, 5});
}

TEST_CASE("Max-min over two links: the long flow is held by the tighter one") {
  // y_0 + y_1 <= 10 on link 0, y_0 + y_2 <= 4 on link 1: link 1 saturates at 2; then y_1 = 8.
  const auto y =
      rates({{"0", 10}, {"1", 4}},
            {capped(inf).uses(0, 1).uses(1, 1), capped(inf).uses(0, 1), capped(inf).uses(1, 1)},
            {1, 1, 1});
  CHECK(y == std::vector<double>{2, 8, 2});
}

TEST_CASE("Usage per unit counts: an optimizer that takes 28 bytes of DRAM per parameter") {
  // Weight 1/28: y_copy = lambda, y_adam = lambda / 28; y_copy + 28 y_adam = 56: lambda = 28: equal
  // bytes of DRAM.
  const auto y =
      rates({{"dram", 56}}, {capped(inf).uses(0, 1), capped(inf, 1.0 / 28).uses(0, 28)}, {1, 1});
  CHECK(y[0] == Approx(28));
  CHECK(y[1] == Approx(1));
}

TEST_CASE("A resource that is not exceeded at full rates slows nobody") {
  const auto y = rates({{"r", 12}}, {capped(7).uses(0, 1), capped(5).uses(0, 1)}, {1, 1});
  CHECK(y == std::vector<double>{7, 5});
}

TEST_CASE("A resource without capacity stops only those that use it") {
  const auto y =
      rates({{"none", 0}, {"r", 6}}, {capped(5).uses(0, 1), capped(5).uses(1, 1)}, {1, 2});
  CHECK(y == std::vector<double>{0, 3});
}

TEST_CASE("Rates go stale when the running activities change, and not when they change back") {
  const std::vector<Resource> resources = {{"r", 12}};
  const std::vector<Demand> demands = {capped(inf).uses(0, 1), capped(inf).uses(0, 1)};
  FairSharing sharing(resources, demands);
  CHECK_FALSE(sharing.stale());
  sharing.join(0);
  sharing.join(1);
  CHECK(sharing.stale());
  sharing.solve();
  CHECK_FALSE(sharing.stale());
  sharing.leave(0);
  CHECK(sharing.stale());
  sharing.join(0);
  CHECK_FALSE(sharing.stale());
  CHECK(sharing.rate(0) == 6);
  sharing.leave(1);
  sharing.solve();
  CHECK(sharing.rate(0) == 12);
}

TEST_CASE("A demand may use any number of resources: the tightest one holds it") {
  // Fifty resources r of capacity 100 + r, usage 1 each, shared by two of demand 0. Of resource 20
  // demand 1 takes as much as it can: 2 y_0 + y_1 = 120, y_0 = y_1 = 40. Without it 2 y_0 <= 100.
  std::vector<Resource> resources;
  Demand wide = capped(inf);
  for (std::uint32_t r = 0; r < 50; ++r) {
    resources.push_back({"r", 100.0 + r});
    wide.uses(r, 1);
  }
  CHECK(wide.usages.size() == 50);
  CHECK(rates(resources, {wide, capped(inf).uses(20, 1)}, {2, 1}) == std::vector<double>{40, 40});
  CHECK(rates(resources, {wide, capped(inf).uses(20, 1)}, {2, 0})[0] == 50);
}

TEST_CASE("Using a resource twice adds up, using none of it leaves it out") {
  // y = C / (1 + 2) = 4.
  const Demand demand = capped(inf).uses(0, 1).uses(0, 2).uses(1, 0);
  CHECK(demand.usages.size() == 1);
  CHECK(demand.usage_count == 1);
  CHECK(rates({{"r", 12}, {"s", 1}}, {demand}, {1})[0] == 4);
}

TEST_CASE("Rates depend on what runs, not on the order in which it came and went") {
  const std::uint64_t seed = 5;
  INFO("seed " << seed);
  std::mt19937_64 random(seed);
  std::uniform_real_distribution<double> real(0.1, 10);
  std::vector<Resource> resources;
  for (int r = 0; r < 6; ++r) resources.push_back({"r", 10 * real(random)});
  std::vector<Demand> demands;
  for (int d = 0; d < 12; ++d) {
    Demand demand = capped(10 * real(random), real(random));
    for (std::uint32_t r = 0; r < 6; ++r) {
      if (random() % 2 == 0) demand.uses(r, real(random));
    }
    demands.push_back(demand);
  }
  FairSharing walked(resources, demands);
  std::vector<int> running(demands.size(), 0);
  for (int step = 0; step < 2000; ++step) {
    const auto d = static_cast<std::uint32_t>(random() % demands.size());
    if (running[d] > 0 && random() % 2 == 0) {
      walked.leave(d);
      --running[d];
    } else if (running[d] < 4) {
      walked.join(d);
      ++running[d];
    }
    if (step % 3 != 0) continue;
    if (walked.stale()) walked.solve();
    const std::vector<double> fresh = rates(resources, demands, running);
    for (std::uint32_t k = 0; k < demands.size(); ++k) {
      if (running[k] > 0) REQUIRE(walked.rate(k) == fresh[k]);
    }
  }
}

TEST_CASE("Demands that share nothing do not affect each other, and one alone is never slowed") {
  // Resources 0 and 1 are joined by demand 1; demand 3 uses what cannot saturate.
  const std::vector<Resource> resources = {{"0", 10}, {"1", 10}, {"2", 6}, {"3", 100}};
  const std::vector<Demand> demands = {capped(inf).uses(0, 1), capped(inf).uses(0, 1).uses(1, 1),
                                       capped(inf).uses(2, 1), capped(5).uses(3, 1)};
  const std::vector<char> can_saturate = {1, 1, 1, 0};
  FairSharing sharing(resources, demands, can_saturate);
  CHECK(sharing.can_be_slowed(0));
  CHECK_FALSE(sharing.can_be_slowed(3));
  CHECK(sharing.rate(3) == 5);
  for (const std::uint32_t d : {0U, 1U, 2U, 3U}) sharing.join(d);
  sharing.solve();
  CHECK(sharing.changed_rates().size() == 3);
  CHECK(sharing.rate(1) == 5);
  sharing.join(2);
  sharing.solve();
  REQUIRE(sharing.changed_rates().size() == 1);
  CHECK(sharing.changed_rates()[0] == 2);
  CHECK(sharing.rate(2) == 3);
  sharing.join(3);
  CHECK_FALSE(sharing.stale());
}

TEST_CASE("Random platforms: the rates are feasible and max-min fair") {
  // Feasible: no capacity exceeded, no cap exceeded. Max-min: whoever is below its full rate uses a
  // saturated resource on which nobody has a higher level y / weight.
  const std::uint64_t seed = 20240611;
  INFO("seed " << seed);
  std::mt19937_64 random(seed);
  const auto below = [&](std::uint64_t n) { return static_cast<std::uint32_t>(random() % n); };
  for (int round = 0; round < 2000; ++round) {
    INFO("round " << round);
    std::vector<Resource> resources;
    for (std::uint32_t r = 0, n = 1 + below(6); r < n; ++r)
      resources.push_back({"r", 1.0 + below(100)});
    std::vector<Demand> demands;
    std::vector<int> running;
    for (std::uint32_t d = 0, n = 1 + below(8); d < n; ++d) {
      Demand demand = capped(1.0 + below(80), 1.0 + below(4));
      for (std::uint32_t r = 0; r < resources.size(); ++r) {
        if (below(2)) demand.uses(r, 0.5 * (1 + below(6)));
      }
      demands.push_back(demand);
      running.push_back(static_cast<int>(below(4)));
    }
    const std::vector<double> y = rates(resources, demands, running);
    std::vector<double> taken(resources.size(), 0);
    std::vector<double> highest(resources.size(), 0);
    for (std::size_t d = 0; d < demands.size(); ++d) {
      if (running[d] == 0) continue;
      for (std::uint32_t u = 0; u < demands[d].usage_count; ++u) {
        const Usage& usage = demands[d].usages[u];
        taken[usage.resource] += running[d] * y[d] * usage.per_unit;
        highest[usage.resource] = std::max(highest[usage.resource], y[d] / demands[d].weight);
      }
    }
    for (std::size_t r = 0; r < resources.size(); ++r)
      REQUIRE(taken[r] <= resources[r].capacity * (1 + 1e-9));
    const FairSharing sharing(resources, demands);
    for (std::uint32_t d = 0; d < demands.size(); ++d) {
      if (running[d] == 0) continue;
      REQUIRE(y[d] <= sharing.full_rate(d) * (1 + 1e-12));
      if (y[d] >= sharing.full_rate(d) * (1 - 1e-9)) continue;
      bool held = false;
      for (std::uint32_t u = 0; u < demands[d].usage_count; ++u) {
        const std::uint32_t r = demands[d].usages[u].resource;
        held = held || (taken[r] >= resources[r].capacity * (1 - 1e-9) &&
                        y[d] / demands[d].weight >= highest[r] * (1 - 1e-9));
      }
      REQUIRE(held);
    }
  }
}

TEST_CASE("Senseless demands and resources are refused") {
  const std::vector<Resource> resources = {{"r", 1}, {"unlimited", inf}};
  const auto make = [&](const Demand& demand) {
    const std::vector<Demand> demands = {demand};
    FairSharing sharing(resources, demands);
  };
  CHECK_THROWS_AS(make(capped(inf)), InputError);
  CHECK_THROWS_AS(make(capped(inf).uses(1, 1)), InputError);
  CHECK_THROWS_AS(make(capped(1, 0)), InputError);
  CHECK_THROWS_AS(make(capped(-1)), InputError);
  CHECK_THROWS_AS(make(capped(1).uses(2, 1)), InputError);
  CHECK_THROWS_AS(make(capped(1).uses(0, -1)), InputError);
  const std::vector<Resource> negative = {{"r", -1}};
  CHECK_THROWS_AS(FairSharing(negative, {}), InputError);
}
