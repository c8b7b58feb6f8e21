// The plans that `compare` shows and `--policy auto` chooses among, wherever it is given, and the
// choice itself.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "experiments/plan/evaluate.hpp"
#include "experiments/plan/wear.hpp"
#include "sim/explanation.hpp"

namespace spillway {

// Every policy with its defaults, and those of their variants that may be faster.
std::vector<std::string> candidate_policies();

// What `--policy` names: one policy, or all candidates where it is `auto`.
std::vector<std::string> policies_named(const std::string& policy);
// The same of several names, in their order.
std::vector<std::string> policies_named(const std::vector<std::string>& policies);

struct Candidate {
  Evaluation evaluation;  // no result: it does not fit memory, or its store does not fit the drives
  Wear wear;
  std::string asked = {};  // the policy's text as it was asked for
};

// A candidate that cannot run the problem at all.
struct Refusal {
  std::string policy, reason;
};

struct Candidates {
  std::vector<Candidate> all;  // in the order asked for
  std::vector<Refusal> refused;
  // The fastest, which `auto` takes; of those as fast the one that writes least. None: nothing
  // fits.
  std::optional<std::size_t> chosen;
  // One that takes at most as_good_as_fastest longer and writes least, if that is less.
  std::optional<std::size_t> writes_less;
};

inline constexpr double as_good_as_fastest = 0.03;  // of the step time

// The same, and without a result where the store is too large for the drives.
EvaluateOne with_durability(EvaluateOne evaluate_one, const Durability& durability);

// Sets `chosen` and `writes_less`.
void choose(Candidates& candidates);

// Evaluates `policies`, of which `spillway` without settings is searched for (tuned.hpp): `settle`
// makes of a problem, whose micro-batch is set, what evaluate_one builds; empty: nothing. With
// `choose_micro_batch` each has the micro-batch at which it is fastest. Throws InputError when none
// can run the problem, or when one is no policy at all.
Candidates evaluate_candidates(const Problem& problem, bool choose_micro_batch,
                               const std::vector<std::string>& policies, const WholeRun& run,
                               int steps = default_steps,
                               const EvaluateOne& evaluate_one = evaluate,
                               const std::function<void(Problem&)>& settle = {},
                               const Allows& allows = {});

// What it leaves or lacks of the memory that is tightest, the drives with their whole store.
FitMargin margin_of(const Candidate& candidate);

// Throws the FitError of a candidate that does not fit: memory or, naming durability, the drives.
void require_fit(const Candidate& candidate);

// The JSON object of a candidate: that of the simulation, durability and wear.
nlohmann::ordered_json to_json(const Candidate& candidate,
                               const Explanation* explanation = nullptr);

}  // namespace spillway
