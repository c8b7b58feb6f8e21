// How much of the memory that a program leaves over what it keeps can have.
#pragma once

#include <functional>
#include <optional>

#include "policies/machine/machine.hpp"
#include "policies/schedule/program.hpp"

namespace spillway {

// `emit(spare)`: the program with `spare` bytes of GPU and host memory for what it keeps. What is
// kept longer fits less well beside the rest: the first program that fits, of those with all that
// `plain` leaves over and with less of the memory in which it was too much. Nothing where none
// fits; where `plain` lacks host memory alone one may. What it takes more than `plain` is there
// only because memory was left (TierUse::kept_bytes).
std::optional<Program> use_spare_memory(Program& plain, const Machine& machine,
                                        const std::function<Program(const TierBytes&)>& emit);

}  // namespace spillway
