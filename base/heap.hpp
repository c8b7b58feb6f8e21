// The heap of a program that builds and drops many schedules.
#pragma once

namespace spillway {

// From here on, memory that is freed stays with the program instead of going back to the kernel,
// which would have to clear its pages again for the next schedule. Call it once, at the start.
void keep_freed_memory();

}  // namespace spillway
