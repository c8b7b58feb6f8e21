// What tasks are given of the batches.
#include <fmt/format.h>

#include "base/errors.hpp"
#include "exec/run/executor_run.hpp"

namespace spillway {

namespace {

// Kernels go by the starts without a look at them.
void require_documents(const std::vector<std::int32_t>& starts, std::int64_t sequence_length) {
  std::int32_t start = 0;
  for (std::size_t row = 0; row < starts.size(); ++row) {
    const auto token = static_cast<std::int32_t>(row % static_cast<std::size_t>(sequence_length));
    if (token == 0 || starts[row] != start) start = token;
    SPILLWAY_ASSERT(starts[row] == start, fmt::format("token {}: {}", token, starts[row]));
  }
}

}  // namespace

// Where there are borders, layers need them.
bool Executor::needs_text(const Run& run, const Task& task) {
  switch (task.kind) {
    case TaskKind::embed_forward:
    case TaskKind::head:
    case TaskKind::embed_backward:
      return true;
    case TaskKind::forward:
    case TaskKind::backward:
      return run.batches.has_borders();
    default:
      return false;
  }
}

MicroBatchText Executor::text(Run& run, int step, std::int64_t micro_batch) {
  const Workload& workload = run.schedule.problem().workload;
  const std::int64_t global_step = run.first_step + step;
  Run::Text& text = run.text_of(micro_batch);
  std::int32_t* const starts = text.starts.empty() ? nullptr : text.starts.data();
  if (text.step != step || text.micro_batch != micro_batch) {
    run.batches.batch(global_step, micro_batch * workload.micro_batch, workload.micro_batch,
                      workload.sequence, text.tokens.data(), text.targets.data(), starts);
    require_documents(text.starts, workload.sequence);
    text.step = step;
    text.micro_batch = micro_batch;
  }
  std::int64_t& counted = run.counted_tokens[static_cast<std::size_t>(step)];
  if (counted == 0)
    counted = run.batches.counted_tokens(global_step, workload.batch, workload.sequence);
  return {text.tokens.data(),   text.targets.data(), starts,
          workload.micro_batch, workload.sequence,   counted};
}

}  // namespace spillway
