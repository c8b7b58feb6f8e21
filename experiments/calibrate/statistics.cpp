#include "experiments/calibrate/statistics.hpp"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <ctime>
#include <numeric>

#include "base/errors.hpp"

namespace spillway {

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const std::size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

double trimmed_mean(std::vector<double> values) {
  if (values.size() < 3) return median(std::move(values));
  std::sort(values.begin(), values.end());
  const auto cut = std::lround(0.1 * static_cast<double>(values.size()));
  return std::accumulate(values.begin() + cut, values.end() - cut, 0.0) /
         static_cast<double>(values.size() - 2 * static_cast<std::size_t>(cut));
}

double processor_seconds() {
  timespec time{};
  if (::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time) != 0)
    throw MachineError::from_errno("cannot read the processor time used", errno);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) / 1e9;
}

}  // namespace spillway
