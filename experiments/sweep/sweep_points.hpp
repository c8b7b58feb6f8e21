// The points of a sweep: every combination of its axes that is not left out, each checked.
#pragma once

#include <string>
#include <vector>

#include "experiments/sweep/sweep_file.hpp"

namespace spillway {

struct SweepPoint {
  std::vector<std::string>
      cells;                  // value of each axis key, in order; empty: it has no meaning here
  ResolvedSettings settings;  // when it is valid
  bool explains = false;      // SweepFile::explain
  std::string invalid, hint;  // why its settings do not go together; empty: they do
  // Names the point among all results: a hash of all its settings as they were resolved (model and
  // machine with every number, workload, policy), so independent of its place in the file and of
  // how values are spelled.
  std::string identity;
};

struct SweepPlan {
  SweepFile file;
  std::vector<std::string> keys;   // of all axes, in order
  std::vector<SweepPoint> points;  // in axis order: the last axis varies fastest
  std::size_t left_out = 0;        // by skip rules
  std::size_t same = 0;            // written otherwise, but the same as one before: "256000MB"
  std::size_t invalid() const;
};

inline constexpr std::size_t most_sweep_points = 1'000'000;

// An axis that only has options of another policy has no meaning for a point: such points are one.
// A point whose settings do not go together stays, marked invalid. Throws InputError: a required
// setting is missing, a rule or an option that applies to no point, too many points, or no point at
// all that is valid. `program` becomes part of every identity: results of another program (another
// version, another build) are not those of this one.
SweepPlan plan_sweep(SweepFile file, const std::string& program);

}  // namespace spillway
