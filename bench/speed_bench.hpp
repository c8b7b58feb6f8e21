// A speed test as a benchmark.
#pragma once

#include <benchmark/benchmark.h>

#include "experiments/speed/speed.hpp"

namespace spillway::bench {

// Repeats the test's work; reports items/s, ns/task, and bytes and operations per task where the
// test knows them.
void run_speed_test(benchmark::State& state, const SpeedTest& test);

// Registers the speed tests whose name begins with `prefix`.
void register_speed_tests(const char* prefix);

// One per file; main.cpp calls them.
void register_engine_benchmarks();
void register_sharing_benchmarks();
void register_schedule_benchmarks();
void register_memory_benchmarks();

}  // namespace spillway::bench
