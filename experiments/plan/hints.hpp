// What would make a plan fit that does not: found by trying, and verified by building the schedule.
//
// Tried are another micro-batch, the policy's own options that take less memory, no durability,
// another policy, and the least more memory. A change names a setting and its value; which flag
// that is, the program knows.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "base/errors.hpp"
#include "experiments/plan/candidates.hpp"
#include "experiments/plan/fit_trials.hpp"

namespace spillway {

// `setting` is micro_batch, policy, durability, or a key of a machine file, where host.memory is
// the host tier: what the policy may use, without host.reserved. gpu.memory includes the workspaces
// of training on a GPU where the question's machine says how much these are.
struct Change {
  std::string setting, value;
  bool operator==(const Change&) const = default;
};

struct Remedy {
  std::vector<Change> changes;  // all of them together
  std::string note;             // may be empty
};

// The remedies that were found, the least change first. A few seconds at most: schedules are tried
// up to a bound on their number and on their size.
std::vector<Remedy> find_remedies(const FitQuestion& question);

// FitError with remedies. Its hint names settings, not flags.
class DoesNotFit : public FitError {
 public:
  DoesNotFit(const std::string& what, std::vector<Remedy> remedies);
  const std::vector<Remedy>& remedies() const { return remedies_; }

 private:
  std::vector<Remedy> remedies_;
};

// "A would make it fit; or B; or C", each change written by `write`; where nothing was found, says
// so.
std::string remedies_text(const std::vector<Remedy>& remedies,
                          const std::function<std::string(const Change&)>& write);

// The candidate that lacks least.
const Candidate& nearest(const Candidates& candidates, const Durability& durability);
// Throws DoesNotFit for the nearest candidate. Call it where none of them fits.
[[noreturn]] void fail_to_fit(const Candidates& candidates, const FitQuestion& question);

}  // namespace spillway
