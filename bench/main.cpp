// The benchmark program; see --help for Google Benchmark's options.
#include "bench/speed_bench.hpp"

int main(int argc, char** argv) {
  spillway::bench::register_engine_benchmarks();
  spillway::bench::register_sharing_benchmarks();
  spillway::bench::register_schedule_benchmarks();
  spillway::bench::register_memory_benchmarks();
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
}
