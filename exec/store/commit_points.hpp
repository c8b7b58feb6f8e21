// When training commits, and which of two alternating copies holds a version of the state.
//
// Version v is the optimizer state after v updates. Between two commits all versions overwrite one
// copy; after a commit the next version goes to the other one, so that the committed copy stays
// whole until the next commit is durable:
//
//   epoch(v) = base_epoch + 1 + points(v - 1) - points(base_version)   for v > base_version
//   copy(v)  = epoch(v) mod 2
//
// points(v): the commit points from 1 to v, which are the multiples of `interval` and, where it is
// given, of `also_every`.
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>

namespace spillway {

struct CommitPoints {
  std::int64_t interval = 1;
  std::int64_t base_version = 0;  // what training starts from
  std::int64_t base_epoch = 0;    // of that version
  std::int64_t last_version = 0;  // always committed
  std::int64_t also_every = 0;    // 0: none beside those of the interval

  std::int64_t points(std::int64_t version) const {
    const std::int64_t points = version / interval;
    if (also_every == 0) return points;
    // A step that both name is one point.
    const std::int64_t common = interval / std::gcd(interval, also_every);
    return points + version / also_every - version / also_every / common;
  }
  std::int64_t epoch_of(std::int64_t version) const {
    if (version <= base_version) return base_epoch;
    return base_epoch + 1 + points(version - 1) - points(base_version);
  }
  int copy_of(std::int64_t version) const { return static_cast<int>(epoch_of(version) & 1); }
  // The first version after `committed` that is to be committed.
  std::int64_t next(std::int64_t committed) const {
    const std::int64_t regular = std::min((committed / interval + 1) * interval, last_version);
    return also_every == 0 ? regular : std::min(regular, (committed / also_every + 1) * also_every);
  }
};

}  // namespace spillway
