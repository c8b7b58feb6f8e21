// How many threads OpenBLAS uses for a matrix product: one, unless more are asked for, because a
// lane is one thread and its speed must be repeatable. A product is divided among threads by rows
// and columns of its result, never along the sum, so its bits do not depend on their number.
#pragma once

namespace spillway {

// For the whole process; cheap where nothing changes; thread-safe.
void use_blas_threads(int threads);

}  // namespace spillway
