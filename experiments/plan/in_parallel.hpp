// Independent jobs on several threads.
#pragma once

#include <cstddef>
#include <functional>

namespace spillway {

// Calls job(0) .. job(count - 1), each once, on at most `threads` threads, the caller's among them.
// Returns when all are done. After a failure no further job begins, and the failure of the first
// job that failed, by number, is thrown: all of lower numbers have begun before.
void in_parallel(std::size_t count, unsigned threads, const std::function<void(std::size_t)>& job);

// Threads that the machine runs at once; at least 1.
unsigned usual_threads();

}  // namespace spillway
