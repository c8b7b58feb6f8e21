// The event engine: cost per task against the number of tasks, from 10^4 to 10^7, and on real
// schedules.
#include "bench/speed_bench.hpp"

namespace spillway::bench {

void register_engine_benchmarks() { register_speed_tests("engine/"); }

}  // namespace spillway::bench
