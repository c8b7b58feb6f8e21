#include "experiments/evaluate.hpp"

#include <algorithm>
#include <chrono>
#include <exception>

#include "base/errors.hpp"

namespace spillway {

namespace {

class Stopwatch {
 public:
  double seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - began_).count();
  }

 private:
  std::chrono::steady_clock::time_point began_ = std::chrono::steady_clock::now();
};

}  // namespace

Evaluation evaluate(const Problem& problem, const std::string& policy, int steps) {
  const Stopwatch building;
  Evaluation evaluation{build_schedule(problem, policy, steps), std::nullopt, 0, 0};
  evaluation.schedule_seconds = building.seconds();
  if (!evaluation.schedule.fits()) return evaluation;
  const Stopwatch simulating;
  evaluation.result = simulate(evaluation.schedule);
  evaluation.simulate_seconds = simulating.seconds();
  return evaluation;
}

Evaluation evaluate_on_gpu(Problem problem, const std::string& policy, int steps) {
  problem.use_gpu_sequences_at_once();
  return evaluate(problem, policy, steps);
}

EvaluateOne evaluation_on(const Machine& machine) {
  if (machine.gpu.is_cpu || machine.kernels.empty()) return evaluate;
  return evaluate_on_gpu;
}

std::vector<std::int64_t> micro_batch_candidates(std::int64_t batch) {
  std::vector<std::int64_t> candidates;
  for (std::int64_t parts = 1; parts <= std::min(batch, most_micro_batches); ++parts) {
    if (batch % parts == 0) candidates.push_back(batch / parts);
  }
  return candidates;
}

namespace {

// The divisors of the batch below the candidates, the largest first.
std::vector<std::int64_t> smaller_micro_batches(std::int64_t batch) {
  std::vector<std::int64_t> smaller;
  for (std::int64_t size = batch / (most_micro_batches + 1); size >= 1; --size) {
    if (batch % size == 0) smaller.push_back(size);
  }
  return smaller;
}

}  // namespace

Evaluation evaluate_best_micro_batch(Problem problem, const std::string& policy, int steps,
                                     const EvaluateOne& evaluate_one) {
  std::optional<Evaluation> best;
  std::exception_ptr refused;
  const auto attempt = [&](std::int64_t micro_batch) {
    problem.workload.micro_batch = micro_batch;
    try {
      Evaluation one = evaluate_one(problem, policy, steps);
      const bool better =
          !best || (one.result && (!best->result || one.result->tokens_per_second >
                                                        best->result->tokens_per_second));
      if (better || !best->result) best = std::move(one);
    } catch (const InputError&) {
      // A cut that does not go with the other settings, such as 16-bit gradients with several
      // micro-batches: the next one may.
      if (!refused) refused = std::current_exception();
    }
  };
  for (const std::int64_t micro_batch : micro_batch_candidates(problem.workload.batch))
    attempt(micro_batch);
  // Many micro-batches gain nothing, but may be the only ones that fit.
  for (const std::int64_t micro_batch : smaller_micro_batches(problem.workload.batch)) {
    if (best && best->result) break;
    attempt(micro_batch);
  }
  if (!best) std::rethrow_exception(refused);
  return std::move(*best);
}

std::vector<Evaluation> evaluate_policies(const Problem& problem, bool choose_micro_batch,
                                          const std::vector<std::string>& policies,
                                          const EvaluateOne& evaluate_one) {
  std::vector<std::string> names = policies;
  if (names.empty()) {
    for (const PolicyInfo& info : builtin_policies()) names.push_back(info.name);
  }
  std::vector<Evaluation> all;
  for (const std::string& name : names) {
    all.push_back(choose_micro_batch
                      ? evaluate_best_micro_batch(problem, name, default_steps, evaluate_one)
                      : evaluate_one(problem, name, default_steps));
  }
  return all;
}

std::optional<std::size_t> fastest(const std::vector<Evaluation>& evaluations) {
  std::optional<std::size_t> best;
  for (std::size_t i = 0; i < evaluations.size(); ++i) {
    if (!evaluations[i].result) continue;
    if (!best ||
        evaluations[i].result->tokens_per_second > evaluations[*best].result->tokens_per_second)
      best = i;
  }
  return best;
}

}  // namespace spillway
