// Lanes that are streams. A lane's thread issues its tasks in order: it waits for predecessors on
// other lanes of the host to be done, and for those on other streams to be issued; the device waits
// for their marks. Work is known to be done when the device says so (work_done), for all tasks of
// the lane up to the one that notifies.

#include "base/errors.hpp"
#include "exec/run/executor_run.hpp"

namespace spillway {

namespace {

// A slot is free again once the step that last used it was collected.
bool slot_is_free(const StreamPlan& plan, int step) {
  return plan.collected.load(std::memory_order_acquire) > step - StreamPlan::slots;
}

}  // namespace

void Executor::issue(Run& run, Lane lane) {
  StreamPlan& plan = *run.streams;
  std::size_t issued = 0;
  bool whole = false;
  try {
    whole = issue_tasks(run, lane, issued);
  } catch (...) {
    fail(std::current_exception());
  }
  std::atomic<std::uint32_t>& signal = lanes_->signal[index_of(lane)];
  while (whole && !lanes_->over.load(std::memory_order_acquire)) {
    const std::uint32_t seen = signal.load(std::memory_order_acquire);
    if (plan.completed[index_of(lane)].load(std::memory_order_acquire) == issued) return;
    if (lanes_->over.load(std::memory_order_acquire)) break;
    signal.wait(seen, std::memory_order_acquire);
  }
  // Broken off: what was issued still runs, in memory that may soon be gone.
  streams_->drain(lane);
}

// False: the run is over.
bool Executor::wait_for_slot(const Run& run, Lane lane, int step) {
  std::atomic<std::uint32_t>& signal = lanes_->signal[index_of(lane)];
  while (true) {
    const std::uint32_t seen = signal.load(std::memory_order_acquire);
    if (lanes_->over.load(std::memory_order_acquire)) return false;
    if (slot_is_free(*run.streams, step)) return true;
    signal.wait(seen, std::memory_order_acquire);
  }
}

// False: the run is over before all was issued.
bool Executor::issue_tasks(Run& run, Lane lane, std::size_t& issued) {
  StreamPlan& plan = *run.streams;
  const auto& list = run.by_lane[index_of(lane)];
  int step = -1;
  while (issued < list.size()) {
    const TaskId id = list[issued];
    const Task& task = run.schedule.tasks()[id];
    if (task.step != step) {
      step = task.step;
      if (!wait_for_slot(run, lane, step)) return false;
      if (lane == Lane::gpu_compute) {
        if (step < run.schedule.steps()) {
          plan.adam(step) = adam_constants(settings_.at(run.first_step + step));
          plan.steps_issued++;
        }
        if (plan.replayable() && step < run.schedule.steps() &&
            plan.steps_issued > StreamPlan::slots) {
          if (!replay_step(run, lane, step)) return false;
          issued += plan.begin_of(step + 1) - plan.begin_of(step);
          continue;
        }
      }
    }
    if (!wait_until_ready(run, id) || !enter(run, id)) return false;
    for (const TaskId before : plan.waits(id))
      streams_->wait(lane, plan.mark(run.schedule.tasks()[before], before));
    issue_work(run, id);
    release(run, id, plan.lanes());
    if (plan.notifies(id)) notify(run, id);
    ++issued;
  }
  return true;
}

void Executor::issue_work(Run& run, TaskId id) {
  const Task& task = run.schedule.tasks()[id];
  const std::size_t mark = run.streams->mark(task, id);
  streams_->begin(task.lane, mark, task, id);
  Channels none;
  execute(run, id, none);
  streams_->end(task.lane, mark);
}

void Executor::notify(Run& run, TaskId id) {
  streams_->notify(run.schedule.tasks()[id].lane, &Executor::work_done,
                   &run.notices[run.notice_of[id]]);
}

// All of a step at once. The first time in a slot, its work is captured.
bool Executor::replay_step(Run& run, Lane lane, int step) {
  StreamPlan& plan = *run.streams;
  const TaskId begin = plan.begin_of(step), end = plan.begin_of(step + 1);
  for (TaskId id = begin; id < end; ++id) {
    if (!wait_until_ready(run, id) || !enter(run, id)) return false;
  }
  const Workload& workload = run.schedule.problem().workload;
  for (std::int64_t m = 0; m < workload.micro_batches(); ++m) stage_text(run, step, m);
  auto& graph = plan.graphs[static_cast<std::size_t>(StreamPlan::slot_of(step))];
  if (!graph) {
    streams_->begin_graph(lane);
    for (TaskId id = begin; id < end; ++id) issue_work(run, id);
    graph = streams_->end_graph(lane);
  }
  streams_->replay(lane, *graph);
  notify(run, end - 1);  // of one stream: the step's last task tells of all
  return true;
}

void Executor::stage_text(Run& run, int step, std::int64_t micro_batch) {
  std::int64_t& staged = run.streams->text_step(step, micro_batch);
  if (staged == step) return;
  streams_->stage_text(text(run, step, micro_batch), run.streams->text(step, micro_batch));
  staged = step;
}

void Executor::stream_operands(Run& run, TaskId id, Operands& o) {
  const StreamPlan& plan = *run.streams;
  const Task& task = run.schedule.tasks()[id];
  const Workload& workload = run.schedule.problem().workload;
  if (needs_text(run, task)) {
    o.has_borders = run.batches.has_borders();
    stage_text(run, task.step, task.micro_batch);
    o.text = plan.text(task.step, task.micro_batch);
    o.losses = plan.losses(task.step).data() + task.micro_batch * workload.micro_batch;
  }
  if (run.has_noise(task)) o.step_noise = &plan.adam(task.step).noise;
  if (task.kind == TaskKind::optimizer) {
    o.adam = settings_.at(run.first_step + task.update);
    o.adam_constants = &plan.adam(task.update);
  }
  o.gradient_square_sum = &plan.square_sum(task, id);
}

// On a thread of the device's: all tasks of a lane up to one are done.
void Executor::work_done(void* argument) {
  const Run::Notice& notice = *static_cast<const Run::Notice*>(argument);
  Executor& self = *notice.executor;
  Run& run = *notice.run;
  StreamPlan& plan = *run.streams;
  std::atomic<std::size_t>& completed = plan.completed[index_of(notice.lane)];
  const auto& list = run.by_lane[index_of(notice.lane)];
  try {
    for (std::size_t i = completed.load(std::memory_order_relaxed); i < notice.done; ++i) {
      const TaskId id = list[i];
      const Task& task = run.schedule.tasks()[id];
      if (task.update >= 0) run.gradient_square_sums[id] = plan.square_sum(task, id);
      if (self.lanes_->failed.load(std::memory_order_acquire)) break;
      run.end_ns[id] = Run::done_unread;
      self.check_gradient(run, id);
      self.leave(run, id);
      self.release(run, id, plan.other_lanes());
      self.count_down(run, id);
    }
  } catch (...) {
    self.fail(std::current_exception());
  }
  completed.store(notice.done, std::memory_order_release);
  self.lanes_->wake(notice.lane);
}

// Slots of these steps may be used again.
void Executor::steps_collected(Run& run, int steps) {
  if (!run.streams) return;
  run.streams->collected.store(steps, std::memory_order_release);
  for (int lane = 0; lane < lane_count; ++lane) {
    if (run.streams->is_stream(static_cast<Lane>(lane))) lanes_->wake(static_cast<Lane>(lane));
  }
}

}  // namespace spillway
