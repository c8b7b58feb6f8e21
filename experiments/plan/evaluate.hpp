// One policy on one problem: built, checked, simulated. And the choice of the micro-batch.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "experiments/plan/steady_results.hpp"
#include "policies/common/policy.hpp"
#include "policies/common/schedule_reuse.hpp"
#include "sim/simulate.hpp"

namespace spillway {

// What points that are evaluated one after the other share. Results do not depend on it.
struct EvaluationReuse {
  ScheduleReuse schedules;
  SteadyResults results;
};

// One stage of a pipeline.
struct StageEvaluation {
  std::int64_t layers = 0;
  TierBytes peaks{};    // bytes that its schedule takes
  double computes = 0;  // share of the step in which its GPU computes
};

struct Evaluation {
  Schedule schedule;  // of a pipeline: of the first stage, or of the first that does not fit
  std::optional<SimulationResult> result;  // absent when it does not fit
  double schedule_seconds = 0;             // real time it took to build the schedule
  double simulate_seconds = 0;             // and to simulate it
  std::uint64_t tasks = 0;     // emitted and simulated for it, and for what was tried before it
  bool by_some_steps = false;  // SteadyResult::by_some_steps
  std::vector<StageEvaluation> stages = {};  // of a pipeline
  // No micro-batch that was tried fits, and this one and smaller ones, which take long to try, were
  // not; 0: all were.
  std::int64_t left_untried = 0;
};

// Steps that are simulated unless asked otherwise: three to fill the pipeline and to settle where
// memory goes, two to measure, and one for the last of these to work ahead into.
inline constexpr int default_steps = 6;

// Throws InputError for a problem or policy that is wrong; one that does not fit has no result.
Evaluation evaluate(const Problem& problem, const std::string& policy, int steps = default_steps);

// The same; where the times of tasks are not asked for, by SteadyResults.
Evaluation evaluate_with(EvaluationReuse& reuse, const Problem& problem, const std::string& policy,
                         int steps, bool asks_times);

// The same, as training on a GPU has it unless told otherwise:
// Problem::use_gpu_sequences_at_once().
Evaluation evaluate_on_gpu(Problem problem, const std::string& policy, int steps);

// How one policy is evaluated at one micro-batch.
using EvaluateOne =
    std::function<Evaluation(const Problem& problem, const std::string& policy, int steps)>;

// Whether a policy may be taken for a problem, beside what it says itself; empty: it may.
using Allows = std::function<bool(const Problem& problem, const std::string& policy)>;

// Whether the machine's file was measured on a GPU by calibrate.
bool is_measured_gpu(const Machine& machine);

// How to evaluate on this machine: evaluate_on_gpu where it was measured, because its kernels are
// timed that way.
EvaluateOne evaluation_on(const Machine& machine);

// The micro-batches worth a try: divisors of the batch, the largest first, that make at most
// most_micro_batches micro-batches. More of them take more time, to build and to run, and gain
// nothing.
inline constexpr std::int64_t most_micro_batches = 256;
std::vector<std::int64_t> micro_batch_candidates(std::int64_t batch);
// Of these, the largest first, the ones to try first: all of a few; of many, each below three
// quarters of the one before, and the last.
std::vector<std::int64_t> spread_out(const std::vector<std::int64_t>& candidates);
// The candidates between the best of those that were spread out and its neighbours among these.
std::vector<std::int64_t> candidates_beside(std::int64_t best,
                                            const std::vector<std::int64_t>& candidates);
// So many tasks together take some ten seconds to emit and to simulate: Evaluation::tasks of one
// answer, whatever it takes to find it.
inline constexpr std::uint64_t most_tasks_tried = 8'000'000;

// The same with the micro-batch that gives the most tokens/s among the candidates for which
// it fits; where none does, with the largest smaller divisor that fits; with the one that lacks
// least, and no result, when none fits. Cuts that the other settings do not go with are left out;
// throws InputError when all are. Once `most_tasks` have been tried, the best so far is the answer.
Evaluation evaluate_best_micro_batch(Problem problem, const std::string& policy,
                                     int steps = default_steps,
                                     const EvaluateOne& evaluate_one = evaluate,
                                     std::uint64_t most_tasks = most_tasks_tried);

// What of an evaluation was left untried, to be put behind why it does not fit: "; micro-batches of
// 2 and fewer, which take long to plan, were not tried". Empty: nothing.
std::string untried_text(const Evaluation& evaluation);

}  // namespace spillway
