// How often a training commits where the user does not say: what a commit costs the drives in time
// and in wear, against the work that a crash loses (docs/store.md).
#pragma once

#include <cstdint>

#include "policies/workload/durability.hpp"
#include "policies/workload/problem.hpp"

namespace spillway {

// What the interval rests on where the machine file does not say otherwise.
namespace commit_assumptions {
inline constexpr double seconds_between_failures = 86'400;  // a crash or power cut a day
inline constexpr double years_of_drive_life = 3;  // commits alone wear the drives out no sooner
inline constexpr double rewrites = 600;           // ssd.tbw of a drive: 600 times its capacity
inline constexpr double drive_bytes = 1e12;       // capacity of drives nobody has described
inline constexpr double write_rate = 1e9;         // bytes/s of such drives
inline constexpr double cpu_flops = 1e10, gpu_flops = 1e14;  // of a processor nobody has described
}  // namespace commit_assumptions

inline constexpr double seconds_per_year = 365.25 * 86'400;

// Bytes that the drives of the machine may be written in their life, by ssd.tbw, until those of the
// set that wears out first are worn out, as fast as its part is; 0: it is not
// known.
double rated_bytes(const Machine& machine);

struct CommitInterval {
  std::int64_t steps = 1;
  double seconds = 0;       // that many steps, as far as their time is known
  double cost_seconds = 0;  // for which one commit takes the drives' write bandwidth
};

// Steps between commits where the user names none: every step where commits copy nothing, else the
// larger of
//   sqrt(2 x cost x seconds between failures)    (Young 1974, Daly 2006): least time lost
//   captured bytes / (rated bytes / years of drive life)    wear
// `step_seconds`: as predicted; 0: the model's FLOPs at the rate of the machine's GPU. The same
// arguments always give the same interval.
CommitInterval commit_interval(const StoreBytes& bytes, const Problem& problem,
                               double step_seconds);

}  // namespace spillway
