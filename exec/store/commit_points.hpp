// When training commits, and which of two alternating copies holds a version of the state.
//
// Version v is the optimizer state after v updates. Between two commits all versions overwrite one
// copy; after a commit the next version goes to the other one, so that the committed copy stays
// whole until the next commit is durable:
//
//   epoch(v) = base_epoch + ceil(v / interval) - floor(base_version / interval)   for v > base
//   copy(v)  = epoch(v) mod 2
#pragma once

#include <algorithm>
#include <cstdint>

namespace spillway {

struct CommitPoints {
  std::int64_t interval = 1;
  std::int64_t base_version = 0;  // what training starts from
  std::int64_t base_epoch = 0;    // of that version
  std::int64_t last_version = 0;  // always committed

  std::int64_t epoch_of(std::int64_t version) const {
    if (version <= base_version) return base_epoch;
    return base_epoch + (version + interval - 1) / interval - base_version / interval;
  }
  int copy_of(std::int64_t version) const { return static_cast<int>(epoch_of(version) & 1); }
  // The first version after `committed` that is to be committed.
  std::int64_t next(std::int64_t committed) const {
    return std::min((committed / interval + 1) * interval, last_version);
  }
};

}  // namespace spillway
