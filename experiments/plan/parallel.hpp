// Jobs that do not depend on each other, on several threads.
#pragma once

#include <functional>
#include <vector>

namespace spillway {

// Runs every job, each on any of at most `threads` threads, the caller's among them; returns when
// all are done, with the failure of the first job that failed, if any, thrown again.
void run_in_parallel(const std::vector<std::function<void()>>& jobs, unsigned threads);

}  // namespace spillway
