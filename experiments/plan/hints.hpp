// What would make a plan fit that does not: found by trying, and verified by building the schedule.
//
// Tried are another micro-batch, the policy's own options that take less memory, no durability,
// another policy, and the least more memory.
#pragma once

#include <string>
#include <vector>

#include "base/errors.hpp"
#include "experiments/plan/candidates.hpp"
#include "experiments/plan/fit_trials.hpp"

namespace spillway {

// The settings are micro_batch, policy, durability, or a key of a machine file, where host.memory
// is the host tier: what the policy may use, without host.reserved. gpu.memory includes the
// workspaces of training on a GPU where the question's machine says how much these are.
struct Remedy {
  std::vector<Setting> changes;  // all of them together
  std::string note;              // may be empty
};

// The remedies that were found, the least change first. A few seconds at most: schedules are tried
// up to a bound on their number and on their size.
std::vector<Remedy> find_remedies(const FitQuestion& question);

// "A would make it fit; or B; or C"; where nothing was found, says so.
Message advice_of(const std::vector<Remedy>& remedies);

// The candidate that lacks least.
const Candidate& nearest(const Candidates& candidates, const Durability& durability);
// Throws FitError with remedies for the nearest candidate. Call it where none of them fits.
[[noreturn]] void fail_to_fit(const Candidates& candidates, const FitQuestion& question);

}  // namespace spillway
