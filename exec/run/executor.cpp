#include "exec/run/executor.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <mutex>

#include "base/errors.hpp"
#include "base/rounding.hpp"
#include "exec/ranks/rank_team.hpp"
#include "exec/run/clipping.hpp"
#include "exec/run/executor_run.hpp"
#include "policies/framework/framework.hpp"

namespace spillway {

std::int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

Executor::Executor(Device& device, SsdStore* store, std::shared_ptr<const Batches> batches,
                   OptimizerSettings settings, StateSafety safety, Throttle* throttle,
                   const FrozenFiles* frozen, RingFactory make_ring)
    : device_(device),
      store_(store),
      batches_(std::move(batches)),
      settings_(settings),
      safety_(safety),
      throttle_(throttle),
      frozen_(frozen),
      make_ring_(std::move(make_ring)),
      streams_(device.streams()),
      start_ns_(now_ns()),
      lanes_(std::make_unique<Lanes>()) {
  if (safety_.gate) next_step_ = announced_ = safety_.gate->points().base_version;
  if (safety_.committer) {
    safety_.committer->on_change([this] {
      if (safety_.committer->failed()) {
        fail(safety_.committer->error());
      }
      wake_caller();
    });
  }
  if (streams_) {
    SPILLWAY_ASSERT(throttle_ == nullptr, "work on streams cannot be slowed down");
    streams_->on_failure([this](std::exception_ptr error) { fail(error); });
  }
  for (int lane = 0; lane < lane_count; ++lane) {
    lanes_->threads.emplace_back([this, lane] { lane_main(static_cast<Lane>(lane)); });
  }
}

Executor::~Executor() {
  if (team_) team_->on_loss({});
  if (safety_.committer) safety_.committer->on_change({});
  if (streams_) streams_->on_failure({});
  lanes_->stopping = true;
  lanes_->generation.fetch_add(1);
  lanes_->generation.notify_all();
  for (std::thread& thread : lanes_->threads) thread.join();
  if (!streams_) return;
  // The last notice of a run may still be waking those who wait for it.
  for (int lane = 0; lane < lane_count; ++lane) {
    if (streams_->lanes().contains(static_cast<Lane>(lane)))
      streams_->drain(static_cast<Lane>(lane));
  }
}

std::vector<std::string> Executor::warnings() const {
  const std::lock_guard lock(lanes_->error_mutex);
  std::vector<std::string> all = lanes_->warnings;
  std::uint64_t read_again = 0;
  for (const auto& count : lanes_->read_again) read_again += count;
  if (read_again > 0) {
    all.push_back(
        fmt::format("{} chunk{} of the SSD store did not match the checksum when read, but did "
                    "when read again: "
                    "check the drive and its cable (smartctl -a)",
                    read_again, read_again == 1 ? "" : "s"));
  }
  return all;
}

void Executor::wake_caller() {
  lanes_->progress.fetch_add(1, std::memory_order_release);
  lanes_->progress.notify_all();
}

// Lanes finish the task they are at and begin no other.
void Executor::end_lanes() {
  lanes_->over.store(true);
  for (auto& signal : lanes_->signal) {
    signal.fetch_add(1);
    signal.notify_all();
  }
  if (safety_.gate) safety_.gate->halt();
}

void Executor::fail(std::exception_ptr error) {
  {
    const std::lock_guard lock(lanes_->error_mutex);
    if (!lanes_->error) lanes_->error = error;
  }
  lanes_->failed.store(true);
  if (throttle_) throttle_->cancel();
  if (team_) team_->fail(error);
  end_lanes();
}

void Executor::request_stop() {
  SPILLWAY_ASSERT(safety_.gate != nullptr, "only runs with a gate can be stopped");
  if (team_) {
    wants_stop_.store(true);
    return;
  }
  stop_here();
}

void Executor::stop_here() {
  safety_.gate->request_stop(next_step_.load() + (paused_ ? 0 : 1));
  wake_caller();
}

void Executor::open(Lane lane, Channels& channels) {
  SPILLWAY_ASSERT(store_ != nullptr || frozen_ != nullptr,
                  "a schedule that uses the ssd tier needs a store");
  if (store_) {
    channels.store = std::make_unique<SsdStore::Channel>(*store_);
    channels.store->register_memory(device_.host_memory());
    const std::lock_guard lock(lanes_->error_mutex);
    for (const std::string& warning : channels.store->warnings())
      lanes_->warnings.push_back(warning);
  }
  if (frozen_ && lane == Lane::ssd_read)
    channels.frozen = std::make_unique<FrozenFiles::Channel>(*frozen_, make_ring_);
}

void Executor::lane_main(Lane lane) {
  Channels channels;
  std::uint32_t seen = 0;
  while (true) {
    lanes_->generation.wait(seen);
    seen = lanes_->generation.load();
    if (lanes_->stopping) break;
    Run& run = *lanes_->run.load();
    try {
      if (is_drive_lane(lane) && !channels.store && !channels.frozen &&
          !run.by_lane[index_of(lane)].empty())
        open(lane, channels);
      if (run.streams && run.streams->is_stream(lane)) {
        issue(run, lane);
      } else {
        work(run, lane, channels);
      }
    } catch (...) {
      fail(std::current_exception());
    }
    if (channels.store) lanes_->read_again[index_of(lane)] = channels.store->read_again();
    run.lanes_left.fetch_sub(1);
    wake_caller();
  }
}

// False when the run is over.
bool Executor::wait_until_ready(const Run& run, TaskId id) {
  std::atomic<std::uint32_t>& signal = lanes_->signal[index_of(run.schedule.tasks()[id].lane)];
  while (true) {
    const std::uint32_t seen = signal.load(std::memory_order_acquire);
    if (lanes_->over.load(std::memory_order_acquire)) return false;
    if (run.waiting_for[id].load(std::memory_order_acquire) == 0) return true;
    signal.wait(seen, std::memory_order_acquire);
  }
}

// Successors on these lanes may start, as far as this predecessor is concerned.
void Executor::release(Run& run, TaskId id, LaneSet lanes) {
  const auto tasks = run.schedule.tasks();
  for (const TaskId next : run.schedule.successors(id)) {
    if (!lanes.contains(tasks[next].lane)) continue;
    if (throttle_) throttle_->released(next, tasks[id].lane, run.end_ns[id]);
    if (run.waiting_for[next].fetch_sub(1, std::memory_order_acq_rel) == 1)
      lanes_->wake(tasks[next].lane);
  }
}

// The task is done: steps may be complete.
void Executor::count_down(Run& run, TaskId id) {
  for (const int step : run.steps_of(run.schedule.tasks()[id])) {
    if (run.open_tasks[static_cast<std::size_t>(step)].fetch_sub(1, std::memory_order_acq_rel) ==
        1) {
      wake_caller();
    }
  }
}

// Before a task that writes state at rest; false: the run is over, write nothing.
bool Executor::enter(const Run& run, TaskId id) {
  if (!safety_.gate || run.state[id].writes == 0) return true;
  return safety_.gate->enter(run.first_step + run.state[id].version);
}

void Executor::leave(const Run& run, TaskId id) {
  if (!safety_.gate || run.state[id].writes == 0) return;
  safety_.gate->leave(run.first_step + run.state[id].version, run.state[id].writes);
  if (safety_.gate->stop_version() >= 0) wake_caller();
}

void Executor::work(Run& run, Lane lane, Channels& channels) {
  for (const TaskId id : run.by_lane[index_of(lane)]) {
    if (!wait_until_ready(run, id)) return;
    const std::int64_t asked_ns = throttle_ ? now_ns() : 0;
    if (!enter(run, id)) return;
    const TaskKind kind = run.schedule.tasks()[id].kind;
    if (team_ && (is_collective(kind) || is_message(kind)) && !begin_collective(lane)) return;
    run.start_ns[id] = now_ns();
    const bool held = throttle_ && safety_.gate && run.state[id].writes > 0;
    if (throttle_) throttle_->begin(id, held ? run.start_ns[id] - asked_ns : 0);
    execute(run, id, channels);
    if (throttle_) throttle_->end(id);
    run.end_ns[id] = now_ns();
    if (team_) team_->task_done(lane);
    check_gradient(run, id);
    leave(run, id);
    release(run, id, LaneSet::all());
    count_down(run, id);
  }
}

std::byte* Executor::address(const Run& run, const Access& access) const {
  const BufferInfo& buffer = run.schedule.buffers()[access.buffer];
  SPILLWAY_ASSERT(!is_drives(buffer.tier));
  const auto memory = buffer.tier == Tier::gpu ? device_.gpu_memory() : device_.host_memory();
  const std::uint64_t begin = buffer.offset + access.offset;
  SPILLWAY_ASSERT(begin + access.bytes <= memory.size());
  return memory.data() + begin;
}

Operands Executor::operands(Run& run, TaskId id) {
  const Task& task = run.schedule.tasks()[id];
  Operands o;
  for (const Access& access : run.schedule.accesses(task)) {
    std::byte* const where = address(run, access);
    switch (access.role) {
      case Role::parameters:
        o.parameters = where;
        break;
      case Role::gradient:
        o.gradient = where;
        break;
      case Role::head_gradient:
        o.head_gradient = where;
        break;
      case Role::optimizer_state:
        o.optimizer_state = where;
        break;
      case Role::input:
        o.input = where;
        break;
      case Role::output:
        o.output = where;
        break;
      case Role::saved:
        o.saved = where;
        break;
      case Role::activation_gradient:
        o.activation_gradient = where;
        break;
      case Role::scratch:
        o.scratch = where;
        break;
      case Role::weight_operands:
        o.weight_operands = where;
        break;
      case Role::norms:
        o.norms = {reinterpret_cast<double*>(where), access.bytes / norm_slot_bytes};
        break;
      case Role::source:  // elsewhere memory that others read meanwhile
        if (task.kind == TaskKind::gradient_add) o.input = where;
        break;
      case Role::destination:
        if (task.kind == TaskKind::gradient_add) o.gradient = where;
        break;
    }
  }
  if (run.streams && run.streams->is_stream(task.lane)) {
    stream_operands(run, id, o);
    return o;
  }
  const Workload& workload = run.schedule.problem().workload;
  if (needs_text(run, task)) {
    const MicroBatchText of_task = text(run, task.step, task.micro_batch);
    o.tokens = of_task.tokens;
    o.targets = of_task.targets;
    o.starts = of_task.starts;
    o.counted_tokens = of_task.counted_tokens;
    o.losses = run.losses.data() + task.step * workload.rank_batch() +
               task.micro_batch * workload.micro_batch;
  }
  if (run.has_noise(task)) {
    run.step_noise = step_noise_key(settings_.seed, settings_.at(run.first_step + task.step).t);
    o.step_noise = &run.step_noise;
  }
  if (task.kind == TaskKind::optimizer) o.adam = settings_.at(run.first_step + task.update);
  o.gradient_square_sum = &run.gradient_square_sums[id];
  return o;
}

// Between host memory and drives.
void Executor::transfer(const Run& run, TaskId id, Channels& channels) {
  const Task& task = run.schedule.tasks()[id];
  const auto accesses = run.schedule.accesses(task);
  const bool reads = task.kind == TaskKind::read;
  const Access& ssd = accesses[reads ? 0 : 1];
  const BufferInfo& buffer = run.schedule.buffers()[ssd.buffer];
  std::uint64_t offset = buffer.offset + ssd.offset;
  std::byte* const memory = address(run, accesses[reads ? 1 : 0]);
  if (frozen_ && buffer.tier == Tier::ssd) {
    if (frozen_->holds(offset)) {
      SPILLWAY_ASSERT(reads, "what is frozen is never written");
      channels.frozen->read(offset, memory, task.bytes);
      return;
    }
    offset = frozen_->in_store(offset);
  }
  if (store_) offset += store_->begin_of(drive_set(buffer.tier));
  if (safety_.gate && run.state[id].part >= 0 && !run.state[id].in_memory) {
    const StatePart& part = safety_.parts[static_cast<std::size_t>(run.state[id].part)];
    const int copy = safety_.gate->points().copy_of(run.first_step + run.state[id].version);
    offset = part.address[static_cast<std::size_t>(copy)] + run.state[id].into;
  }
  if (reads) {
    channels.store->read(offset, memory, task.bytes);
  } else {
    channels.store->write(offset, memory, task.bytes);
  }
}

void Executor::execute(Run& run, TaskId id, Channels& channels) {
  const Task& task = run.schedule.tasks()[id];
  const auto accesses = run.schedule.accesses(task);
  auto& highest = run.highest[index_of(task.lane)];
  for (const Access& access : accesses) {
    const BufferInfo& buffer = run.schedule.buffers()[access.buffer];
    std::uint64_t& most = highest[index_of(buffer.tier)];
    // I/O and compute may use a buffer up to its aligned end.
    const std::uint64_t end =
        round_up(buffer.offset + access.offset + access.bytes, buffer_alignment);
    most = std::max(most, end);
  }
  switch (task.kind) {
    case TaskKind::barrier:
      return;
    case TaskKind::h2d:
    case TaskKind::d2h:
      device_.copy(task.lane, address(run, accesses[1]), address(run, accesses[0]), task.bytes);
      return;
    case TaskKind::read:
    case TaskKind::write:
      return transfer(run, id, channels);
    case TaskKind::broadcast:
    case TaskKind::all_gather:
    case TaskKind::reduce_scatter:
    case TaskKind::all_reduce:
    case TaskKind::norms_reduce:
    case TaskKind::send:
    case TaskKind::receive:
      return collective(run, id);
    default:
      device_.compute(task, operands(run, id));
  }
}

void Executor::check_gradient(const Run& run, TaskId id) const {
  const Task& task = run.schedule.tasks()[id];
  if (task.update < 0) return;
  require_finite_gradient(run.schedule, task, run.gradient_square_sums[id],
                          run.first_step + task.update, run.losses_of(task.update));
}

Executor::Run* Executor::find(const Schedule& schedule) const {
  const auto found = std::find_if(runs_.begin(), runs_.end(),
                                  [&](const auto& one) { return &one->schedule == &schedule; });
  return found != runs_.end() ? found->get() : nullptr;
}

void Executor::prepare(const Schedule& schedule, const Batches& batches) {
  require_own_framework(schedule.problem().framework);
  SPILLWAY_ASSERT(schedule.problem().workload.processes() == (team_ ? team_->size() : 1),
                  "each of several ranks has a team");
  SPILLWAY_ASSERT(schedule.use(Tier::gpu).peak_bytes <= device_.gpu_memory().size());
  SPILLWAY_ASSERT(schedule.use(Tier::host).peak_bytes <= device_.host_memory().size());
  for (int set = 0; set < most_drive_sets; ++set)
    SPILLWAY_ASSERT(schedule.use(drives_tier(set)).peak_bytes <=
                    (store_ ? store_->size_of(set) : 0));
  if (find(schedule) != nullptr) return;
  SPILLWAY_ASSERT(!safety_.gate || !safety_.parts.empty(), "a gate needs to know what to guard");
  runs_.push_back(std::make_unique<Run>(
      schedule, safety_.gate ? safety_.parts : std::span<const StatePart>{}, streams_, batches));
  for (Run::Notice& notice : runs_.back()->notices) notice.executor = this;
}

// All steps up to the requested stop are reported, and durable if anything is.
bool Executor::stop_is_complete() const {
  if (!safety_.gate) return false;
  const std::int64_t stop = safety_.gate->stop_version();
  if (stop < 0 || next_step_.load() < stop) return false;
  return safety_.committer ? safety_.committer->committed() >= stop
                           : safety_.gate->whole_version() >= stop;
}

void Executor::announce_commit(std::int64_t done) {
  if (!safety_.committer) return;
  const std::int64_t committed = safety_.committer->committed();
  if (committed <= announced_ || committed > done) return;
  announced_ = committed;
  if (on_commit_) on_commit_(committed);
}

void Executor::wait_for_commit(std::int64_t version) {
  safety_.committer->wait_for(version);
  announce_commit(version);
}

void Executor::begin(Run& run, std::int64_t first_step) {
  run.reset(first_step);
  lanes_->collectives = {};
  if (throttle_) throttle_->begin_run(run.schedule);
  if (streams_) streams_->set_clock();
  lanes_->run = &run;
  lanes_->generation.fetch_add(1);
  lanes_->generation.notify_all();
}

// All lanes are at rest.
void Executor::end(Run& run) {
  lanes_->run = nullptr;
  for (const auto& lane : run.highest) {
    for (std::size_t tier = 0; tier < lane.size(); ++tier)
      highest_use_[tier] = std::max(highest_use_[tier], lane[tier]);
  }
  if (lanes_->failed) std::rethrow_exception(lanes_->error);
}

int Executor::run(const Schedule& schedule, std::int64_t first_step,
                  const std::function<void(const StepResult&)>& report, Trace* trace, int segment) {
  prepare(schedule);
  Run& run = *find(schedule);
  begin(run, first_step);
  const std::int64_t began = now_ns();

  int reported = 0;
  std::exception_ptr own_error;
  while (true) {
    const std::uint32_t seen = lanes_->progress.load(std::memory_order_acquire);
    const bool all_done = run.lanes_left.load(std::memory_order_acquire) == 0;
    try {
      while (!own_error && reported < schedule.steps() &&
             run.open_tasks[static_cast<std::size_t>(reported)].load(std::memory_order_acquire) ==
                 0) {
        // A step may be through before anything of it is at rest: none beyond the stop is reported.
        if (safety_.gate && !safety_.gate->begin(first_step + reported + 1)) break;
        run.collect(reported, streams_);
        const StepResult result =
            team_ ? shared_result(run, reported, began) : run.result(reported, began);
        ++reported;
        steps_collected(run, reported);
        next_step_ = first_step + reported;
        report(result);
        if (safety_.gate) safety_.gate->reported(first_step + reported);
        announce_commit(first_step + reported);
      }
      if (!own_error) announce_commit(first_step + reported);
    } catch (...) {
      own_error = std::current_exception();
      fail(own_error);
    }
    if (all_done) break;
    if (!lanes_->over && stop_is_complete()) {
      end_lanes();
      try {
        if (team_) finish_collectives(run);
      } catch (...) {
        fail(std::current_exception());
      }
    }
    lanes_->progress.wait(seen, std::memory_order_acquire);
  }
  end(run);
  for (int step = reported; step <= schedule.steps(); ++step) run.collect(step, streams_);
  if (trace) append_spans(run, *trace, segment);
  return reported;
}

}  // namespace spillway
