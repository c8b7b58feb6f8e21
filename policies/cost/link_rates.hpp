// Rates of links and of drives that carry both ways, and the laws by which the two ways share them.
// Bytes and bytes/s; a rate of 0 is not known, and limits nothing.
#pragma once

#include <array>
#include <string>
#include <vector>

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

// What the drives can do at one moment, with r bytes/s read and w written:
// r per_read + w per_written <= capacity. A capacity of 0 is not known.
struct DriveLimit {
  std::string name;  // "ssd.read"
  double capacity = 0, per_read = 0, per_written = 0;
};

struct DriveRates {
  double read = 0, write = 0;  // alone
  std::vector<DriveLimit> limits;

  // The least time in which so many bytes are read and written.
  double seconds(double bytes_read, double bytes_written) const;
};

// The limits of the law of `ssd` with bandwidths `rates`, which need not be those of `ssd`:
//
//   simplex   ssd.time: r/R + w/W <= 1
//   duplex    ssd.read: r <= R; ssd.write: w <= W
//   capped    both, and ssd.total: r + w <= RW (0: the larger of R and W)
//   mixed     both, and ssd.mixed: r/R + w/W <= mixed_gain; or, where there are rows by read share,
//             the edges of the upper hull of what was measured, at the machine's queue depth where
//             rows say of which they are, in the plane of r/R and w/W:
//             ssd.mixed.1, .2, ... from few bytes read to many. A row of read share s and gain g is
//             the point of that share where r/R + w/W = g; alone, reads reach R and writes W
DriveRates drive_rates(const Machine::Ssd& ssd, const Machine::Ssd::Row& rates);

// Of each set of drives the share of what rests on all of them, where each has a part in proportion
// to what it does of as many bytes read as written; of drives whose speed nobody knows, to their
// number. Their sum is 1.
std::array<double, most_drive_sets> speed_shares(const Machine& machine);

// Of a table of gains by read share: the gain that the hull of all of its rows gives a mix of that
// share, 0 <= share <= 1, with `read` and `write` bytes/s alone. At least that of the row, and at
// least 1, for reads and writes can take turns.
double gain_of_hull(const std::map<double, double>& by_read_share, double read, double write,
                    double share);

}  // namespace spillway
