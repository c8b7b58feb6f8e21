// Building schedules (policies), simulating them, and both.
#include "bench/speed_bench.hpp"

namespace spillway::bench {

void register_schedule_benchmarks() {
  for (const char* group : {"schedule/", "simulate/", "end-to-end/"}) register_speed_tests(group);
}

}  // namespace spillway::bench
