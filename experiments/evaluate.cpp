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

bool is_measured_gpu(const Machine& machine) {
  return !machine.gpu.is_cpu && !machine.kernels.empty();
}

EvaluateOne evaluation_on(const Machine& machine) {
  if (is_measured_gpu(machine)) return evaluate_on_gpu;
  return evaluate;
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

namespace {

// How much of the memory that a schedule needs is not there, as the largest share of a tier's.
double shortage(const Schedule& schedule) {
  double largest = 0;
  for (const Tier tier : {Tier::gpu, Tier::host, Tier::ssd}) {
    const TierUse& use = schedule.use(tier);
    if (use.peak_bytes <= use.capacity_bytes) continue;
    largest = std::max(largest, static_cast<double>(use.peak_bytes) /
                                    std::max(1.0, static_cast<double>(use.capacity_bytes)));
  }
  return largest;
}

}  // namespace

Evaluation evaluate_best_micro_batch(Problem problem, const std::string& policy, int steps,
                                     const EvaluateOne& evaluate_one) {
  std::optional<Evaluation> best;
  std::exception_ptr refused;
  std::uint64_t tasks_tried = 0;
  const auto attempt = [&](std::int64_t micro_batch) {
    problem.workload.micro_batch = micro_batch;
    try {
      Evaluation one = evaluate_one(problem, policy, steps);
      tasks_tried += one.schedule.tasks().size();
      const bool better =
          !best || (one.result && (!best->result || one.result->tokens_per_second >
                                                        best->result->tokens_per_second));
      // Of those that do not fit, the one that lacks least.
      if (better || (!best->result && shortage(one.schedule) < shortage(best->schedule)))
        best = std::move(one);
    } catch (const InputError&) {
      // A cut that does not go with the other settings, such as 16-bit gradients with several
      // micro-batches: the next one may.
      if (!refused) refused = std::current_exception();
    }
  };
  const std::vector<std::int64_t> candidates = micro_batch_candidates(problem.workload.batch);
  for (const std::int64_t micro_batch : candidates) {
    // Where nothing fits yet, the smallest one has the best chance.
    if (tasks_tried > most_tasks_tried && (best->result || micro_batch != candidates.back()))
      continue;
    attempt(micro_batch);
  }
  // Many micro-batches gain nothing, but may be the only ones that fit.
  for (const std::int64_t micro_batch : smaller_micro_batches(problem.workload.batch)) {
    if ((best && best->result) || tasks_tried > most_tasks_tried) break;
    attempt(micro_batch);
  }
  if (!best) std::rethrow_exception(refused);
  return std::move(*best);
}

}  // namespace spillway
