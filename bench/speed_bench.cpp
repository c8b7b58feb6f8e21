#include "bench/speed_bench.hpp"

namespace spillway::bench {

void run_speed_test(benchmark::State& state, const SpeedTest& test) {
  const std::function<SpeedRun()> work = test.prepare();
  SpeedRun run;
  double items = 0;
  for (auto _ : state) {
    run = work();
    items += static_cast<double>(run.items);
  }
  const double one = static_cast<double>(run.items);
  state.SetItemsProcessed(static_cast<std::int64_t>(items));
  state.counters["ns/task"] =
      benchmark::Counter(items * 1e-9, benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
  if (run.bytes > 0) state.counters["bytes/task"] = static_cast<double>(run.bytes) / one;
  if (run.operations > 0)
    state.counters["operations/task"] = static_cast<double>(run.operations) / one;
}

void register_speed_tests(const char* prefix) {
  for (const SpeedTest& test : speed_tests()) {
    if (test.name.rfind(prefix, 0) != 0) continue;
    benchmark::RegisterBenchmark(test.name.c_str(), [test](benchmark::State& state) {
      run_speed_test(state, test);
    })->Unit(benchmark::kMillisecond);
  }
}

}  // namespace spillway::bench
