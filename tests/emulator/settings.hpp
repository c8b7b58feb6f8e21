// What tests have set: read when work is enqueued or run.
#pragma once

#include <cstdint>

namespace emulator {

std::uint64_t current_seed();
std::uint64_t delay_seed();
int longest_delay_us();

}  // namespace emulator
