// One policy on one problem, as Python has it.
#pragma once

#include "experiments/plan/candidates.hpp"
#include "experiments/plan/problem_request.hpp"
#include "python/core.hpp"

namespace spillway::python {

struct Result {
  Candidate candidate;

  const Schedule& schedule() const { return candidate.evaluation.schedule; }
  // Throws FitError where it was not simulated because it does not fit.
  const SimulationResult& simulation() const;
};

// Every policy named, of which `auto` is all candidates; as `spillway compare` does it.
Candidates evaluate_as_asked(const ProblemRequest& request, const Problem& problem,
                             const std::vector<std::string>& policies, const WholeRun& run,
                             int steps);

}  // namespace spillway::python
