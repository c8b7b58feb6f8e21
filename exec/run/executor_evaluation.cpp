// Evaluations: losses of batches in the midst of a training, by its lanes and from its state.
#include <exception>

#include "base/errors.hpp"
#include "exec/run/executor_run.hpp"

namespace spillway {

Executor::Losses Executor::evaluate(const Schedule& schedule, std::int64_t first) {
  SPILLWAY_ASSERT(schedule.evaluates() && find(schedule) != nullptr);
  Run& run = *find(schedule);
  begin(run, first);
  int collected = 0;
  while (true) {
    const std::uint32_t seen = lanes_->progress.load(std::memory_order_acquire);
    const bool all_done = run.lanes_left.load(std::memory_order_acquire) == 0;
    try {
      for (;
           collected < schedule.steps() &&
           run.open_tasks[static_cast<std::size_t>(collected)].load(std::memory_order_acquire) == 0;
           steps_collected(run, ++collected)) {
        run.collect(collected, streams_);
      }
    } catch (...) {
      fail(std::current_exception());
    }
    if (all_done) break;
    lanes_->progress.wait(seen, std::memory_order_acquire);
  }
  end(run);
  SPILLWAY_ASSERT(collected == schedule.steps(), "an evaluation is not broken off");
  run.collect(schedule.steps(), streams_);
  Losses all;
  for (const double loss : losses_of_all(run)) all.sum += loss;
  all.tokens = tokens_of_all(run);
  return all;
}

}  // namespace spillway
