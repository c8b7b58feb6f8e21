// One solution of max-min fair sharing after one activity has come or gone, by number of demands.
#include <random>

#include "bench/speed_bench.hpp"
#include "sim/fair_sharing.hpp"

namespace spillway::bench {

namespace {

// `count` demands over half as many resources, three each, all running: one component.
void solve_one_component(benchmark::State& state) {
  const auto count = static_cast<std::uint32_t>(state.range(0));
  std::mt19937_64 random(7);
  std::uniform_real_distribution<double> rate(1e8, 1e10);
  std::vector<Resource> resources(count / 2 + 1);
  for (Resource& resource : resources) resource.capacity = rate(random);
  std::vector<Demand> demands(count);
  for (Demand& demand : demands) {
    for (int use = 0; use < 3; ++use)
      demand.uses(static_cast<std::uint32_t>(random() % resources.size()), 1);
  }
  FairSharing sharing(resources, demands);
  for (std::uint32_t d = 0; d < count; ++d) sharing.join(d);
  sharing.solve();
  std::uint32_t demand = 0;
  for (auto _ : state) {
    sharing.join(demand);
    sharing.solve();
    benchmark::DoNotOptimize(sharing.rate(demand));
    sharing.leave(demand);
    sharing.solve();
    demand = (demand + 1) % count;
  }
  state.SetItemsProcessed(2 * state.iterations());
}

// As many demands, each on a resource of its own: what changes is solved alone.
void solve_many_components(benchmark::State& state) {
  const auto count = static_cast<std::uint32_t>(state.range(0));
  const std::vector<Resource> resources(count, Resource{"", 1e9});
  std::vector<Demand> demands;
  for (std::uint32_t r = 0; r < count; ++r) demands.push_back(Demand().uses(r, 1));
  FairSharing sharing(resources, demands);
  std::uint32_t demand = 0;
  for (auto _ : state) {
    sharing.join(demand);
    sharing.solve();
    benchmark::DoNotOptimize(sharing.rate(demand));
    demand = (demand + 1) % count;
  }
  state.SetItemsProcessed(state.iterations());
}

}  // namespace

void register_sharing_benchmarks() {
  benchmark::RegisterBenchmark("sharing/one-component", solve_one_component)
      ->RangeMultiplier(4)
      ->Range(2, 512);
  benchmark::RegisterBenchmark("sharing/many-components", solve_many_components)
      ->RangeMultiplier(8)
      ->Range(8, 32768);
}

}  // namespace spillway::bench
