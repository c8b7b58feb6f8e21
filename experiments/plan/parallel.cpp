#include "experiments/plan/parallel.hpp"

#include <algorithm>
#include <atomic>
#include <exception>
#include <thread>

namespace spillway {

void run_in_parallel(const std::vector<std::function<void()>>& jobs, unsigned threads) {
  std::vector<std::exception_ptr> failures(jobs.size());
  std::atomic<std::size_t> next{0};
  const auto work = [&] {
    for (std::size_t k = next++; k < jobs.size(); k = next++) {
      try {
        jobs[k]();
      } catch (...) {
        failures[k] = std::current_exception();
      }
    }
  };
  std::vector<std::thread> others;
  const std::size_t workers = std::min<std::size_t>(threads, jobs.size());
  for (std::size_t k = 1; k < workers; ++k) others.emplace_back(work);
  work();
  for (std::thread& other : others) other.join();
  for (const std::exception_ptr& failure : failures) {
    if (failure) std::rethrow_exception(failure);
  }
}

}  // namespace spillway
