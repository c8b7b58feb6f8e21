#include "experiments/plan/price.hpp"

namespace spillway {

Price price_of(const Evaluation& evaluation) {
  const Schedule& schedule = evaluation.schedule;
  Price price;
  price.fits = schedule.fits();
  price.policy = schedule.policy();
  price.tasks = evaluation.tasks;
  for (const Tier tier : {Tier::gpu, Tier::host, Tier::ssd})
    price.memory[static_cast<std::size_t>(tier)] = schedule.use(tier);
  if (!evaluation.result) return price;
  const SimulationResult& result = *evaluation.result;
  price.step_seconds = result.step_seconds;
  price.tokens_per_second = result.tokens_per_second;
  price.bound_seconds = result.bound_seconds;
  price.bound_by = result.bound_by;
  price.ssd_bytes_written_per_step = result.ssd_bytes_written_per_step;
  return price;
}

Price price(const Problem& problem, const std::string& policy, int steps) {
  return price_of(evaluate(problem, policy, steps));
}

}  // namespace spillway
