// What tests have set: read when work is enqueued or run.
#pragma once

#include <cstdint>
#include <optional>

namespace emulator {

std::uint64_t current_seed();
std::uint64_t delay_seed();
int longest_delay_us();
// A product was computed by this algorithm.
void count_product(int algorithm);
// The clock of set_product_times(), where it is on.
std::optional<std::int64_t> product_clock_ns();

}  // namespace emulator
