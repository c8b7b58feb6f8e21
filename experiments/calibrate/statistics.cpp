#include "experiments/calibrate/statistics.hpp"

#include <algorithm>
#include <cerrno>
#include <ctime>

#include "base/errors.hpp"

namespace spillway {

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const std::size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

double processor_seconds() {
  timespec time{};
  if (::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time) != 0)
    throw MachineError::from_errno("cannot read the processor time used", errno);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) / 1e9;
}

}  // namespace spillway
