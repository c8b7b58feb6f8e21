#include "exec/io/io_ring.hpp"

#include <algorithm>
#include <chrono>
#include <thread>

namespace spillway {

void IoRing::pause(unsigned attempt) {
  // EAGAIN means that the kernel ran out of something for the moment.
  const unsigned doublings = std::min(attempt, 7u);
  std::this_thread::sleep_for(std::chrono::microseconds(std::min(10u << doublings, 1000u)));
}

}  // namespace spillway
