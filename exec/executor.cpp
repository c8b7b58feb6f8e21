#include "exec/executor.hpp"

#include <fmt/format.h>

#include <chrono>
#include <cmath>
#include <mutex>
#include <numbers>

#include "base/errors.hpp"

namespace spillway {

std::int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

AdamStep OptimizerSettings::at(std::int64_t step) const {
  double rate = learning_rate;
  if (step < warmup_steps) {
    rate *= static_cast<double>(step + 1) / static_cast<double>(warmup_steps);
  } else if (decay_steps > warmup_steps) {
    const double progress = std::min(1.0, static_cast<double>(step - warmup_steps) /
                                              static_cast<double>(decay_steps - warmup_steps));
    rate *= 0.1 + 0.9 * 0.5 * (1 + std::cos(std::numbers::pi * progress));
  }
  return {static_cast<float>(rate),    static_cast<float>(beta1),        static_cast<float>(beta2),
          static_cast<float>(epsilon), static_cast<float>(weight_decay), step + 1};
}

namespace {

constexpr std::size_t index_of(Lane lane) { return static_cast<std::size_t>(lane); }
constexpr std::size_t index_of(Tier tier) { return static_cast<std::size_t>(tier); }

bool uses_store(Lane lane) { return lane == Lane::ssd_read || lane == Lane::ssd_write; }

}  // namespace

// What one run of a schedule needs, allocated before it starts.
struct Executor::Run {
  Run(const Schedule& s, std::int64_t first)
      : schedule(s),
        first_step(first),
        waiting_for(s.tasks().size()),
        start_ns(s.tasks().size()),
        end_ns(s.tasks().size()),
        gradient_square_sums(s.tasks().size(), 0.0),
        open_tasks(static_cast<std::size_t>(s.steps())),
        last_end_ns(static_cast<std::size_t>(s.steps())) {
    const auto tasks = s.tasks();
    const Workload& workload = s.problem().workload;
    for (TaskId id = 0; id < tasks.size(); ++id) {
      waiting_for[id].store(s.predecessor_counts()[id], std::memory_order_relaxed);
      by_lane[index_of(tasks[id].lane)].push_back(id);
      for (const int step : steps_of(tasks[id])) open_tasks[static_cast<std::size_t>(step)]++;
    }
    losses.resize(static_cast<std::size_t>(s.steps() * workload.batch), 0.0);
    tokens.resize(static_cast<std::size_t>(workload.micro_batch * workload.sequence));
    targets.resize(tokens.size());
  }

  // Steps whose result a task contributes to: the one it belongs to, and the one whose gradient it
  // applies.
  struct Steps {
    int values[2];
    int count;
    const int* begin() const { return values; }
    const int* end() const { return values + count; }
  };
  Steps steps_of(const Task& task) const {
    Steps steps{{task.step, task.update}, 0};
    if (task.step < schedule.steps()) steps.count = 1;
    if (task.update >= 0 && task.update != task.step) {
      steps.values[steps.count++] = task.update;
    }
    return steps;
  }

  const Schedule& schedule;
  std::int64_t first_step;
  std::array<std::vector<TaskId>, lane_count> by_lane;
  std::vector<std::atomic<std::uint32_t>> waiting_for;  // predecessors not done yet, per task
  std::vector<std::int64_t> start_ns, end_ns;
  std::vector<double> losses;                          // (steps, batch)
  std::vector<double> gradient_square_sums;            // per task
  std::vector<std::atomic<std::uint32_t>> open_tasks;  // per step
  std::vector<std::atomic<std::int64_t>> last_end_ns;  // per step: end of its last own task
  std::vector<std::int32_t> tokens, targets;           // of the micro-batch gpu.compute works on
  std::int64_t tokens_step = -1, tokens_micro_batch = -1;
  std::array<std::array<std::uint64_t, tier_count>, lane_count> highest{};
  std::atomic<std::uint32_t> lanes_left{lane_count};
};

struct Executor::Lanes {
  std::vector<std::thread> threads;
  std::array<std::atomic<std::uint32_t>, lane_count>
      signal{};                              // bumped when a task of the lane becomes ready
  std::atomic<std::uint32_t> generation{0};  // bumped when a run starts or the end has come
  std::atomic<std::uint32_t> progress{0};    // bumped for the calling thread
  std::atomic<bool> failed{false};
  std::atomic<bool> stopping{false};
  std::atomic<Run*> run{nullptr};
  std::mutex error_mutex;  // taken only when something fails, and at start-up
  std::exception_ptr error;
  std::vector<std::string> warnings;
};

Executor::Executor(Device& device, SsdStore* store, const Dataset& dataset,
                   OptimizerSettings settings)
    : device_(device),
      store_(store),
      dataset_(dataset),
      settings_(settings),
      start_ns_(now_ns()),
      lanes_(std::make_unique<Lanes>()) {
  for (int lane = 0; lane < lane_count; ++lane) {
    lanes_->threads.emplace_back([this, lane] { lane_main(static_cast<Lane>(lane)); });
  }
}

Executor::~Executor() {
  lanes_->stopping = true;
  lanes_->generation.fetch_add(1);
  lanes_->generation.notify_all();
  for (std::thread& thread : lanes_->threads) thread.join();
}

std::vector<std::string> Executor::warnings() const {
  const std::lock_guard lock(lanes_->error_mutex);
  return lanes_->warnings;
}

void Executor::fail(std::exception_ptr error) {
  {
    const std::lock_guard lock(lanes_->error_mutex);
    if (!lanes_->error) lanes_->error = error;
  }
  lanes_->failed.store(true);
  for (auto& signal : lanes_->signal) {
    signal.fetch_add(1);
    signal.notify_all();
  }
}

void Executor::lane_main(Lane lane) {
  std::unique_ptr<SsdStore::Channel> channel;
  std::uint32_t seen = 0;
  while (true) {
    lanes_->generation.wait(seen);
    seen = lanes_->generation.load();
    if (lanes_->stopping) return;
    Run& run = *lanes_->run.load();
    try {
      if (uses_store(lane) && !channel && !run.by_lane[index_of(lane)].empty()) {
        SPILLWAY_ASSERT(store_ != nullptr, "a schedule that uses the ssd tier needs a store");
        channel = std::make_unique<SsdStore::Channel>(*store_);
        channel->register_memory(device_.host_memory());
        const std::lock_guard lock(lanes_->error_mutex);
        for (const std::string& warning : channel->warnings()) lanes_->warnings.push_back(warning);
      }
      work(run, lane, channel.get());
    } catch (...) {
      fail(std::current_exception());
    }
    run.lanes_left.fetch_sub(1);
    lanes_->progress.fetch_add(1);
    lanes_->progress.notify_all();
  }
}

void Executor::work(Run& run, Lane lane, SsdStore::Channel* channel) {
  std::atomic<std::uint32_t>& signal = lanes_->signal[index_of(lane)];
  const auto tasks = run.schedule.tasks();
  for (const TaskId id : run.by_lane[index_of(lane)]) {
    while (true) {
      const std::uint32_t seen = signal.load(std::memory_order_acquire);
      if (lanes_->failed.load(std::memory_order_acquire)) return;
      if (run.waiting_for[id].load(std::memory_order_acquire) == 0) break;
      signal.wait(seen, std::memory_order_acquire);
    }
    run.start_ns[id] = now_ns();
    execute(run, id, channel);
    run.end_ns[id] = now_ns();

    for (const TaskId next : run.schedule.successors(id)) {
      if (run.waiting_for[next].fetch_sub(1, std::memory_order_acq_rel) == 1) {
        std::atomic<std::uint32_t>& other = lanes_->signal[index_of(tasks[next].lane)];
        other.fetch_add(1, std::memory_order_release);
        other.notify_one();
      }
    }
    const Task& task = tasks[id];
    if (task.step < run.schedule.steps()) {
      std::atomic<std::int64_t>& last = run.last_end_ns[static_cast<std::size_t>(task.step)];
      std::int64_t before = last.load(std::memory_order_relaxed);
      while (before < run.end_ns[id] && !last.compare_exchange_weak(before, run.end_ns[id])) {
      }
    }
    for (const int step : run.steps_of(task)) {
      if (run.open_tasks[static_cast<std::size_t>(step)].fetch_sub(1, std::memory_order_acq_rel) ==
          1) {
        lanes_->progress.fetch_add(1, std::memory_order_release);
        lanes_->progress.notify_all();
      }
    }
  }
}

std::byte* Executor::address(const Run& run, const Access& access) const {
  const BufferInfo& buffer = run.schedule.buffers()[access.buffer];
  SPILLWAY_ASSERT(buffer.tier != Tier::ssd);
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
      case Role::source:
      case Role::destination:
        break;
    }
  }
  const Workload& workload = run.schedule.problem().workload;
  const bool needs_text = task.kind == TaskKind::embed_forward || task.kind == TaskKind::head ||
                          task.kind == TaskKind::embed_backward;
  if (needs_text) {
    const std::int64_t step = run.first_step + task.step;
    if (run.tokens_step != step || run.tokens_micro_batch != task.micro_batch) {
      dataset_.batch(step, task.micro_batch * workload.micro_batch, workload.micro_batch,
                     workload.sequence, run.tokens.data(), run.targets.data());
      run.tokens_step = step;
      run.tokens_micro_batch = task.micro_batch;
    }
    o.tokens = run.tokens.data();
    o.targets = run.targets.data();
    o.losses =
        run.losses.data() + task.step * workload.batch + task.micro_batch * workload.micro_batch;
  }
  if (task.kind == TaskKind::optimizer) {
    o.adam = settings_.at(run.first_step + task.update);
    o.gradient_square_sum = &run.gradient_square_sums[id];
  }
  return o;
}

void Executor::execute(Run& run, TaskId id, SsdStore::Channel* channel) {
  const Task& task = run.schedule.tasks()[id];
  const auto accesses = run.schedule.accesses(task);
  auto& highest = run.highest[index_of(task.lane)];
  for (const Access& access : accesses) {
    const BufferInfo& buffer = run.schedule.buffers()[access.buffer];
    std::uint64_t& most = highest[index_of(buffer.tier)];
    // I/O and compute may use a buffer up to its aligned end.
    const std::uint64_t end =
        (buffer.offset + access.offset + access.bytes + buffer_alignment - 1) / buffer_alignment *
        buffer_alignment;
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
    case TaskKind::write: {
      const bool reads = task.kind == TaskKind::read;
      const Access& ssd = accesses[reads ? 0 : 1];
      const std::uint64_t offset = run.schedule.buffers()[ssd.buffer].offset + ssd.offset;
      if (reads) {
        channel->read(offset, address(run, accesses[1]), task.bytes);
      } else {
        channel->write(offset, address(run, accesses[0]), task.bytes);
      }
      return;
    }
    default:
      device_.compute(task, operands(run, id));
  }
}

void Executor::run(const Schedule& schedule, std::int64_t first_step,
                   const std::function<void(const StepResult&)>& report, Trace* trace,
                   int segment) {
  SPILLWAY_ASSERT(schedule.use(Tier::gpu).peak_bytes <= device_.gpu_memory().size());
  SPILLWAY_ASSERT(schedule.use(Tier::host).peak_bytes <= device_.host_memory().size());
  SPILLWAY_ASSERT(schedule.use(Tier::ssd).peak_bytes <= (store_ ? store_->size() : 0));
  Run run(schedule, first_step);
  const Workload& workload = schedule.problem().workload;
  std::vector<StepResult> results(static_cast<std::size_t>(schedule.steps()));
  for (const Task& task : schedule.tasks()) {
    if (task.step >= schedule.steps()) continue;
    StepResult& result = results[static_cast<std::size_t>(task.step)];
    if (task.kind == TaskKind::read) result.ssd_bytes_read += task.bytes;
    if (task.kind == TaskKind::write) result.ssd_bytes_written += task.bytes;
  }

  lanes_->run = &run;
  const std::int64_t began = now_ns();
  lanes_->generation.fetch_add(1);
  lanes_->generation.notify_all();
  const auto finish = [&](int step) {
    const auto s = static_cast<std::size_t>(step);
    StepResult& result = results[s];
    result.step = first_step + step;
    for (std::int64_t i = 0; i < workload.batch; ++i)
      result.loss +=
          run.losses[s * static_cast<std::size_t>(workload.batch) + static_cast<std::size_t>(i)];
    result.loss /= static_cast<double>(workload.tokens_per_step());
    double squares = 0;
    for (TaskId id = 0; id < schedule.tasks().size(); ++id) {
      if (schedule.tasks()[id].update == step) squares += run.gradient_square_sums[id];
    }
    result.gradient_norm = std::sqrt(squares);
    const std::int64_t before = step == 0 ? began : run.last_end_ns[s - 1].load();
    result.seconds = static_cast<double>(run.last_end_ns[s].load() - before) / 1e9;
    report(result);
  };

  int reported = 0;
  std::exception_ptr own_error;
  while (true) {
    const std::uint32_t seen = lanes_->progress.load(std::memory_order_acquire);
    const bool all_done = run.lanes_left.load(std::memory_order_acquire) == 0;
    try {
      while (!own_error && reported < schedule.steps() &&
             run.open_tasks[static_cast<std::size_t>(reported)].load(std::memory_order_acquire) ==
                 0) {
        finish(reported++);
      }
    } catch (...) {
      own_error = std::current_exception();
      fail(own_error);
    }
    if (all_done) break;
    lanes_->progress.wait(seen, std::memory_order_acquire);
  }
  lanes_->run = nullptr;
  for (const auto& lane : run.highest) {
    for (std::size_t tier = 0; tier < lane.size(); ++tier)
      highest_use_[tier] = std::max(highest_use_[tier], lane[tier]);
  }
  if (lanes_->failed) std::rethrow_exception(lanes_->error);
  if (trace) append_spans(run, *trace, segment);
}

void Executor::append_spans(const Run& run, Trace& trace, int segment) const {
  const auto tasks = run.schedule.tasks();
  for (TaskId id = 0; id < tasks.size(); ++id) {
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

}  // namespace spillway
