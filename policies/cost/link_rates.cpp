#include "policies/cost/link_rates.hpp"

#include <algorithm>

namespace spillway {

namespace {

double at(double bytes, double rate) { return rate > 0 ? bytes / rate : 0; }

}  // namespace

double LinkRates::seconds(double to_gpu, double from_gpu) const {
  return std::max({at(to_gpu, h2d), at(from_gpu, d2h), at(to_gpu + from_gpu, total)});
}

double LinkRates::one_way() const { return std::min(h2d, d2h); }

double DriveRates::seconds(double bytes_read, double bytes_written) const {
  const double reading = at(bytes_read, read), writing = at(bytes_written, write);
  switch (law) {
    case SsdLaw::simplex:
      return reading + writing;
    case SsdLaw::duplex:
      return std::max(reading, writing);
    case SsdLaw::mixed:
      return std::max({reading, writing, (reading + writing) / mixed_gain});
    case SsdLaw::capped:
      return std::max({reading, writing, at(bytes_read + bytes_written, total)});
  }
  return reading + writing;
}

}  // namespace spillway
