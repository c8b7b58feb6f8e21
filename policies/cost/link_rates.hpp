// Rates of links and of drives that carry both ways, and the laws by which the two ways share them.
// Bytes and bytes/s; a rate of 0 is not known, and limits nothing.
#pragma once

#include "policies/machine/machine.hpp"

namespace spillway {

// PCIe, as copies from and to pinned memory have it.
struct LinkRates {
  double h2d = 0, d2h = 0;
  double total = 0;  // both ways together; 0: independent

  // The least time in which so many bytes go each way.
  double seconds(double to_gpu, double from_gpu) const;
  // What either way carries: the slower of both.
  double one_way() const;
};

struct DriveRates {
  double read = 0, write = 0;
  double total = 0;              // law capped: both together
  SsdLaw law = SsdLaw::simplex;  // times add
  double mixed_gain = 1;         // law mixed

  // The least time in which so many bytes are read and written.
  double seconds(double bytes_read, double bytes_written) const;
};

}  // namespace spillway
