#include "experiments/plan/in_parallel.hpp"

#include <algorithm>
#include <atomic>
#include <exception>
#include <thread>
#include <vector>

namespace spillway {

void in_parallel(std::size_t count, unsigned threads, const std::function<void(std::size_t)>& job) {
  std::vector<std::exception_ptr> failures(count);
  std::atomic<std::size_t> next{0};
  std::atomic<bool> has_failed = false;
  const auto work = [&] {
    for (std::size_t k = next++; k < count && !has_failed; k = next++) {
      try {
        job(k);
      } catch (...) {
        failures[k] = std::current_exception();
        has_failed = true;
      }
    }
  };
  std::vector<std::thread> others;
  for (std::size_t k = 1; k < std::min<std::size_t>(threads, count); ++k) others.emplace_back(work);
  work();
  for (std::thread& other : others) other.join();
  for (const std::exception_ptr& failure : failures) {
    if (failure) std::rethrow_exception(failure);
  }
}

unsigned usual_threads() { return std::max(1u, std::thread::hardware_concurrency()); }

}  // namespace spillway
