// What a framework adds to a program that a policy has emitted: waits of the host thread, wider and
// further copies, passes over host memory, and memory that no task of ours touches.
#pragma once

#include "policies/framework/framework.hpp"
#include "policies/schedule/program.hpp"

namespace spillway {

// Before the memory of `program` is planned; it was recorded whole. Of the result, what `recording`
// says is kept.
void lay_over(Program& program, const Framework& framework, Recording recording = Recording::all);

}  // namespace spillway
