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

struct Remedies : std::vector<Remedy> {
  using std::vector<Remedy>::vector;
  bool other_policies = true;  // were asked for
  bool cut_short = false;      // some ways were left untried, for they take long to try
};
// The remedies that were found: another micro-batch, then options of the policy, no durability,
// more memory, and other policies. Some seconds at most: schedules are tried up to a bound on their
// number and on their size.
Remedies find_remedies(const FitQuestion& question);

// "A would make it fit; or B; or C"; where nothing was found, says so.
Message advice_of(const Remedies& remedies);

// The candidate for which it is least hard to have what it lacks (Need::difficulty()).
const Candidate& nearest(const Candidates& candidates, const Durability& durability);
// Throws FitError with remedies for the nearest candidate. Call it where none of them fits.
[[noreturn]] void fail_to_fit(const Candidates& candidates, const FitQuestion& question);

}  // namespace spillway
