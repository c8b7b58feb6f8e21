// OpenBLAS runs single-threaded inside Spillway: a lane is one thread, its speed must be
// repeatable, and the order of a sum must not depend on how many cores the machine has.
#pragma once

namespace spillway {

// Sets the number of OpenBLAS threads of this process to one. Cheap after the first call;
// thread-safe.
void use_one_blas_thread();

}  // namespace spillway
