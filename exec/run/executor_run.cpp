#include "exec/run/executor_run.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/errors.hpp"
#include "exec/run/clipping.hpp"

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

Executor::Run::Run(const Schedule& s, std::span<const StatePart> parts, Streams* device,
                   const Batches& all)
    : schedule(s),
      batches(all),
      waiting_for(s.tasks().size()),
      start_ns(s.tasks().size()),
      end_ns(s.tasks().size()),
      gradient_square_sums(s.tasks().size(), 0.0),
      open_tasks(static_cast<std::size_t>(s.steps())),
      last_end_ns(static_cast<std::size_t>(s.steps())),
      counted_tokens(static_cast<std::size_t>(s.steps())),
      tasks_of_step_(static_cast<std::size_t>(s.steps())),
      gradients_of_step_(gradient_tasks(s)),
      bytes_read_(static_cast<std::size_t>(s.steps())),
      bytes_written_(static_cast<std::size_t>(s.steps())) {
  if (s.evaluates()) {
    state.resize(s.tasks().size());  // none touches state at rest but parameters
  } else if (!parts.empty()) {
    state = state_accesses(s, parts);
  }
  const auto tasks = s.tasks();
  const Workload& workload = s.problem().workload;
  for (TaskId id = 0; id < tasks.size(); ++id) {
    const Task& task = tasks[id];
    by_lane[index_of(task.lane)].push_back(id);
    for (const int step : steps_of(task)) tasks_of_step_[static_cast<std::size_t>(step)]++;
    // What is delayed beyond the last step is counted with it.
    const auto step = static_cast<std::size_t>(std::min(task.step, s.steps() - 1));
    if (task.kind == TaskKind::read) bytes_read_[step] += task.bytes;
    if (task.kind == TaskKind::write) bytes_written_[step] += task.bytes;
  }
  losses.resize(static_cast<std::size_t>(s.steps() * workload.rank_batch()), 0.0);
  const auto rows = static_cast<std::size_t>(workload.micro_batch * workload.sequence);
  const bool whole_step = batches.has_borders() && device == nullptr;
  texts.resize(whole_step ? static_cast<std::size_t>(workload.micro_batches()) : 1);
  for (Text& text : texts) {
    text.tokens.resize(rows);
    text.targets.resize(rows);
    if (batches.has_borders()) text.starts.resize(rows);
  }
  step_begins.assign(static_cast<std::size_t>(s.steps()) + 2, 0);
  for (TaskId id = 0; id < tasks.size(); ++id)
    step_begins[static_cast<std::size_t>(tasks[id].step) + 1] = id + 1;
  for (std::size_t step = 1; step < step_begins.size(); ++step)
    step_begins[step] = std::max(step_begins[step], step_begins[step - 1]);
  if (device == nullptr) return;
  std::vector<bool> guarded(state.size());
  for (std::size_t id = 0; id < state.size(); ++id) guarded[id] = state[id].writes > 0;
  streams = std::make_unique<StreamPlan>(s, *device, guarded, batches.has_borders());
  notice_of.assign(tasks.size(), none);
  for (int lane = 0; lane < lane_count; ++lane) {
    const auto& list = by_lane[static_cast<std::size_t>(lane)];
    for (std::size_t i = 0; i < list.size(); ++i) {
      if (!streams->is_stream(static_cast<Lane>(lane)) || !streams->notifies(list[i])) continue;
      notice_of[list[i]] = static_cast<std::uint32_t>(notices.size());
      notices.push_back({nullptr, this, static_cast<Lane>(lane), i + 1});
    }
  }
}

void Executor::Run::reset(std::int64_t first) {
  first_step = first;
  for (TaskId id = 0; id < waiting_for.size(); ++id) {
    waiting_for[id].store(schedule.predecessor_counts()[id], std::memory_order_relaxed);
  }
  std::fill(start_ns.begin(), start_ns.end(), 0);
  std::fill(end_ns.begin(), end_ns.end(), 0);
  std::fill(losses.begin(), losses.end(), 0.0);
  for (std::size_t step = 0; step < open_tasks.size(); ++step) {
    open_tasks[step].store(tasks_of_step_[step], std::memory_order_relaxed);
    last_end_ns[step] = 0;
  }
  for (Text& text : texts) text.step = -1;
  std::fill(counted_tokens.begin(), counted_tokens.end(), 0);
  lanes_left.store(lane_count);
  if (streams) streams->reset();
}

void Executor::Run::collect(int step, Streams* device) {
  const auto s = static_cast<std::size_t>(step);
  std::int64_t last = 0;
  for (TaskId id = step_begins[s]; id < step_begins[s + 1]; ++id) {
    if (end_ns[id] == done_unread) {
      const Streams::Times times = device->times(streams->mark(schedule.tasks()[id], id));
      start_ns[id] = times.start_ns;
      end_ns[id] = times.end_ns;
    }
    last = std::max(last, end_ns[id]);
  }
  if (step >= schedule.steps()) return;
  last_end_ns[s] = last;
  if (!streams) return;
  const std::span<const double> from = streams->losses(step);
  std::copy(from.begin(), from.end(),
            losses.begin() + static_cast<std::ptrdiff_t>(s * from.size()));
}

std::span<const double> Executor::Run::losses_of(int step) const {
  if (streams) return streams->losses(step);
  const auto batch = static_cast<std::size_t>(schedule.problem().workload.rank_batch());
  return std::span(losses).subspan(static_cast<std::size_t>(step) * batch, batch);
}

Executor::Run::Steps Executor::Run::steps_of(const Task& task) const {
  Steps steps{{task.step, task.update}, 0};
  if (task.step < schedule.steps()) steps.count = 1;
  if (task.update >= 0 && task.update != task.step) steps.values[steps.count++] = task.update;
  return steps;
}

StepResult Executor::Run::times(int step, std::int64_t began_ns) const {
  const auto s = static_cast<std::size_t>(step);
  StepResult result;
  result.step = first_step + step;
  const std::int64_t before = step == 0 ? began_ns : last_end_ns[s - 1];
  result.seconds = static_cast<double>(last_end_ns[s] - before) / 1e9;
  result.ssd_bytes_read = bytes_read_[s];
  result.ssd_bytes_written = bytes_written_[s];
  return result;
}

std::vector<double> Executor::Run::unit_squares(int step) const {
  return spillway::unit_squares(schedule, gradients_of_step_[static_cast<std::size_t>(step)],
                                gradient_square_sums);
}

StepResult Executor::Run::result(int step, std::int64_t began_ns) const {
  const auto s = static_cast<std::size_t>(step);
  const auto batch = static_cast<std::size_t>(schedule.problem().workload.rank_batch());
  StepResult result = times(step, began_ns);
  for (std::size_t i = 0; i < batch; ++i) result.loss += losses[s * batch + i];
  // Where no task asked for text there is no loss either.
  if (counted_tokens[s] > 0) result.loss /= static_cast<double>(counted_tokens[s]);
  const StepGradient gradient = step_gradient(schedule, unit_squares(step));
  result.gradient_norm = gradient.norm;
  result.skipped_unit = gradient.nonfinite_unit;
  return result;
}

void Executor::append_spans(const Run& run, Trace& trace, int segment) const {
  const auto tasks = run.schedule.tasks();
  for (TaskId id = 0; id < tasks.size(); ++id) {
    if (run.end_ns[id] == 0) continue;  // a stop came first
    const Task& task = tasks[id];
    Span span;
    span.task = id;
    span.lane = static_cast<std::uint16_t>(task.lane);
    span.kind = static_cast<std::uint16_t>(task.kind);
    span.phase = static_cast<std::uint16_t>(task.phase);
    span.segment = segment;
    span.step = static_cast<std::int32_t>(run.first_step + task.step);
    span.layer = task.layer;
    span.micro_batch = task.micro_batch;
    span.start_ns = run.start_ns[id] - start_ns_;
    span.end_ns = run.end_ns[id] - start_ns_;
    span.bytes = task.bytes;
    span.flops = task.flops;
    span.params = task.params;
    trace.spans.push_back(span);
  }
}

// -- what tasks are given of the batches --

// Where there are borders, layers need them.
bool Executor::needs_text(const Run& run, const Task& task) {
  switch (task.kind) {
    case TaskKind::embed_forward:
    case TaskKind::head:
    case TaskKind::embed_backward:
      return true;
    case TaskKind::forward:
    case TaskKind::backward:
    case TaskKind::input_gradient:
      return run.batches.has_borders();
    default:
      return false;
  }
}

MicroBatchText Executor::text(Run& run, int step, std::int64_t micro_batch) {
  const Problem& problem = run.schedule.problem();
  const Workload& workload = problem.workload;
  const std::int64_t global_step = run.first_step + step;
  const std::int64_t first = problem.first_sequence() + micro_batch * workload.micro_batch;
  Run::Text& text = run.text_of(micro_batch);
  std::int32_t* const starts = text.starts.empty() ? nullptr : text.starts.data();
  if (text.step != step || text.micro_batch != micro_batch) {
    run.batches.batch(global_step, first, workload.micro_batch, workload.sequence,
                      text.tokens.data(), text.targets.data(), starts);
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
