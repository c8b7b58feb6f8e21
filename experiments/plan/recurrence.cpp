#include "experiments/plan/recurrence.hpp"

#include <algorithm>
#include <array>
#include <cstdlib>

#include "base/errors.hpp"

namespace spillway {

namespace {

// The step that is looked at.
constexpr int middle_step = 1;
// By how much times that should be the same may differ: they are rounded.
constexpr std::int64_t most_apart_ns = 2;
// Relative: how long the GPU may be idle where it computes all the time.
constexpr double most_idle = 1e-6;

// How far a moment is from another one like it.
struct Shift {
  std::int64_t from_ns = 0, to_ns = 0;
  int layers = 0, steps = 0;
};

using LaneTasks = std::vector<TaskId>;

class Lanes {
 public:
  Lanes(const Schedule& schedule, std::span<const ActivityTimes> times)
      : tasks_(schedule.tasks().first(times.size())), times_(times) {
    for (TaskId t = 0; t < tasks_.size(); ++t)
      lanes_[static_cast<std::size_t>(tasks_[t].lane)].push_back(t);
  }

  const LaneTasks& of(Lane lane) const { return lanes_[static_cast<std::size_t>(lane)]; }
  const Task& task(TaskId t) const { return tasks_[t]; }
  const ActivityTimes& times(TaskId t) const { return times_[t]; }

  // Whether all lanes are at the same place: what runs, and what comes next.
  bool are_alike(const Shift& shift) const {
    return std::all_of(lanes_.begin(), lanes_.end(), [&](const LaneTasks& lane) {
      const std::size_t one = next(lane, shift.from_ns), other = next(lane, shift.to_ns);
      return run_alike(lane, one, other, shift) &&
             (one == other || other == lane.size() || is_alike(lane[one], lane[other], shift));
    });
  }
  // Whether what starts from `to_ns` to `end_ns` is what starts from `from_ns` to `to_ns`, at the
  // same times.
  bool go_on_alike(const Shift& shift, std::int64_t end_ns) const {
    return std::all_of(lanes_.begin(), lanes_.end(), [&](const LaneTasks& lane) {
      const std::size_t one = next(lane, shift.from_ns), other = next(lane, shift.to_ns);
      if (next(lane, end_ns) - other != other - one) return false;
      for (std::size_t k = 0; one + k < other; ++k) {
        if (!is_alike(lane[one + k], lane[other + k], shift) ||
            !is_timed_alike(lane[one + k], lane[other + k], shift))
          return false;
      }
      return true;
    });
  }
  // Whether what runs or comes later is `repetition`'s at `shift.from_ns`, and the same a step
  // later at `shift.to_ns`.
  bool repeat(const Shift& shift, const Repetition& repetition) const {
    return std::all_of(lanes_.begin(), lanes_.end(), [&](const LaneTasks& lane) {
      const std::size_t one = next(lane, shift.from_ns), other = next(lane, shift.to_ns);
      if (one == lane.size()) return other == lane.size();
      const bool runs = one > 0 && times_[lane[one - 1]].end_ns > shift.from_ns;
      return lane[runs ? one - 1 : one] >= repetition.from && other < lane.size() &&
             lane[other] == lane[one] + repetition.per_step;
    });
  }
  // When the last task that runs at a moment ends.
  std::int64_t last_end(std::int64_t ns) const {
    std::int64_t end_ns = ns;
    for (const LaneTasks& lane : lanes_) {
      const std::size_t one = next(lane, ns);
      if (one > 0) end_ns = std::max(end_ns, times_[lane[one - 1]].end_ns);
    }
    return end_ns;
  }
  // Whether no lane can have run a task of `schedule` that is not among these by then.
  bool are_whole_until(std::int64_t ns, const Schedule& schedule) const {
    const std::span<const Task> more = schedule.tasks().subspan(tasks_.size());
    return std::all_of(more.begin(), more.end(), [&](const Task& task) {
      const LaneTasks& lane = of(task.lane);
      return !lane.empty() && times_[lane.back()].end_ns >= ns;
    });
  }
  // Whether the GPU computes all the time between two moments.
  bool computes(std::int64_t begin_ns, std::int64_t end_ns) const {
    const LaneTasks& gpu = of(Lane::gpu_compute);
    std::int64_t idle_ns = 0, until = begin_ns;
    for (std::size_t k = next(gpu, begin_ns); k < gpu.size() && until < end_ns; ++k) {
      idle_ns += std::max<std::int64_t>(0, times_[gpu[k]].start_ns - until);
      until = times_[gpu[k]].end_ns;
    }
    return static_cast<double>(idle_ns) <= most_idle * static_cast<double>(end_ns - begin_ns);
  }
  // Whether no task of a layer in a phase of the step is later than the one of a layer before.
  bool none_is_later(Phase phase, int layer, const Shift& shift) const {
    return std::all_of(lanes_.begin(), lanes_.end(), [&](const LaneTasks& lane) {
      const LaneTasks one = of_layer(lane, phase, layer);
      const LaneTasks other = of_layer(lane, phase, layer + shift.layers);
      const auto is_no_later = [&](TaskId a, TaskId b) {
        return is_alike(a, b, shift) &&
               times_[b].end_ns - shift.to_ns <= times_[a].end_ns - shift.from_ns + most_apart_ns;
      };
      return std::equal(one.begin(), one.end(), other.begin(), other.end(), is_no_later);
    });
  }

 private:
  // The first task of a lane that starts at `ns` or later.
  std::size_t next(const LaneTasks& lane, std::int64_t ns) const {
    const auto starts_before = [&](TaskId t) { return times_[t].start_ns < ns; };
    return static_cast<std::size_t>(std::partition_point(lane.begin(), lane.end(), starts_before) -
                                    lane.begin());
  }
  LaneTasks of_layer(const LaneTasks& lane, Phase phase, int layer) const {
    LaneTasks found;
    for (const TaskId t : lane) {
      const Task& task = tasks_[t];
      if (task.step == middle_step && task.phase == phase && task.layer == layer)
        found.push_back(t);
    }
    return found;
  }
  // What runs at both moments is before the tasks `one` and `other` of a lane.
  bool run_alike(const LaneTasks& lane, std::size_t one, std::size_t other,
                 const Shift& shift) const {
    const bool runs = one > 0 && times_[lane[one - 1]].end_ns > shift.from_ns + most_apart_ns;
    const bool other_runs =
        other > 0 && times_[lane[other - 1]].end_ns > shift.to_ns + most_apart_ns;
    if (!runs || !other_runs) return runs == other_runs;
    return is_alike(lane[one - 1], lane[other - 1], shift) &&
           is_timed_alike(lane[one - 1], lane[other - 1], shift);
  }
  bool is_alike(TaskId one, TaskId other, const Shift& shift) const {
    const Task &a = tasks_[one], &b = tasks_[other];
    const int more_updates = a.update < 0 ? 0 : shift.steps;
    return a.kind == b.kind && a.phase == b.phase && a.micro_batch == b.micro_batch &&
           a.bytes == b.bytes && a.params == b.params && b.step == a.step + shift.steps &&
           b.update == a.update + more_updates &&
           (a.layer < 0 ? b.layer < 0 : b.layer == a.layer + shift.layers);
  }
  bool is_timed_alike(TaskId one, TaskId other, const Shift& shift) const {
    const auto is_close = [&](std::int64_t a, std::int64_t b) {
      return std::abs((b - shift.to_ns) - (a - shift.from_ns)) <= most_apart_ns;
    };
    return is_close(times_[one].start_ns, times_[other].start_ns) &&
           is_close(times_[one].end_ns, times_[other].end_ns);
  }

  std::span<const Task> tasks_;
  std::span<const ActivityTimes> times_;
  std::array<LaneTasks, lane_count> lanes_;
};

// A lane comes to a layer.
struct Arrival {
  std::int64_t ns = 0;
  int layer = 0;
};
// Layer after layer, up or down.
struct Pass {
  TaskKind kind = TaskKind::forward;
  Phase phase = Phase::forward;
  std::vector<Arrival> arrivals;

  bool goes_on_to(const Task& task) const {
    const std::size_t n = arrivals.size();
    const int up = task.layer - arrivals.back().layer;
    return kind == task.kind && std::abs(up) == 1 &&
           (n < 2 || up == arrivals[n - 1].layer - arrivals[n - 2].layer);
  }
};

class StepPasses {
 public:
  StepPasses(const Lanes& lanes, int layers) : lanes_(lanes), layers_(layers) {
    std::int64_t computed_ns = 0;
    for (const TaskId t : lanes_.of(Lane::gpu_compute)) {
      const Task& task = lanes_.task(t);
      if (task.step != middle_step ||
          (task.kind != TaskKind::forward && task.kind != TaskKind::backward))
        continue;
      computed_ns = lanes_.times(t).end_ns;
      add(passes_, t);
    }
    // Updates after backward pass through the layers once more; some that are late do not.
    for (const Lane lane : {Lane::gpu_compute, Lane::cpu_optimizer}) {
      std::vector<Pass> updates;
      for (const TaskId t : lanes_.of(lane)) {
        const Task& task = lanes_.task(t);
        if (task.step == middle_step && task.kind == TaskKind::optimizer &&
            lanes_.times(t).start_ns >= computed_ns)
          add(updates, t);
      }
      std::erase_if(updates, [&](const Pass& pass) { return !is_whole(pass); });
      passes_.insert(passes_.end(), updates.begin(), updates.end());
    }
  }

  // By how much longer they are with `period` more layers.
  std::optional<PhaseSeconds> growth(int period) const {
    const auto passes = [&](TaskKind kind) {
      return std::count_if(passes_.begin(), passes_.end(),
                           [&](const Pass& pass) { return pass.kind == kind; });
    };
    const bool in_rows = passes(TaskKind::forward) == 1 && passes(TaskKind::backward) == 1;
    PhaseSeconds sum;
    for (const Pass& pass : passes_) {
      const std::optional<std::int64_t> ns =
          is_whole(pass) ? growth(pass, period, in_rows) : std::nullopt;
      if (!ns) return std::nullopt;
      (pass.kind == TaskKind::forward    ? sum.forward
       : pass.kind == TaskKind::backward ? sum.backward
                                         : sum.optimizer) += static_cast<double>(*ns) * 1e-9;
    }
    return sum;
  }

 private:
  // The last layer is left out, where forward and backward may take turns.
  void add(std::vector<Pass>& passes, TaskId t) const {
    const Task& task = lanes_.task(t);
    if (task.layer >= layers_ - 1) return;
    const Arrival arrival = {lanes_.times(t).start_ns, task.layer};
    if (!passes.empty() && passes.back().kind == task.kind &&
        passes.back().arrivals.back().layer == task.layer)
      return;
    if (passes.empty() || !passes.back().goes_on_to(task))
      passes.push_back({task.kind, task.phase, {}});
    passes.back().arrivals.push_back(arrival);
  }
  bool is_whole(const Pass& pass) const {
    return static_cast<int>(pass.arrivals.size()) == layers_ - 1;
  }
  // How long `period` layers take once they repeat.
  std::optional<std::int64_t> growth(const Pass& pass, int period, bool in_rows) const {
    const auto apart = static_cast<std::size_t>(period);
    for (std::size_t last = pass.arrivals.size(); last-- > 2 * apart;) {
      const Arrival &one = pass.arrivals[last - 2 * apart], &two = pass.arrivals[last - apart];
      const std::int64_t end_ns = pass.arrivals[last].ns;
      const Shift shift = {one.ns, two.ns, two.layer - one.layer, 0};
      if (std::abs(end_ns - two.ns - (two.ns - one.ns)) > most_apart_ns) continue;
      const bool recurs = lanes_.go_on_alike(shift, end_ns) && lanes_.are_alike(shift);
      const bool keeps_pace = in_rows && pass.kind != TaskKind::optimizer &&
                              lanes_.computes(one.ns, end_ns) &&
                              lanes_.none_is_later(pass.phase, one.layer, shift);
      if (recurs || keeps_pace) return two.ns - one.ns;
    }
    return std::nullopt;
  }

  const Lanes& lanes_;
  const int layers_;
  std::vector<Pass> passes_;
};

// With what the GPU begins a step; nothing: the step is not there.
std::optional<TaskId> beginning(std::span<const Task> tasks, int step) {
  for (TaskId t = 0; t < tasks.size(); ++t) {
    if (tasks[t].step == step && tasks[t].kind == TaskKind::embed_forward) return t;
  }
  return std::nullopt;
}

// The first task of a step that is there.
TaskId first_of(std::span<const Task> tasks, int step) {
  const auto first =
      std::find_if(tasks.begin(), tasks.end(), [&](const Task& task) { return task.step == step; });
  return static_cast<TaskId>(first - tasks.begin());
}

// The first task after all those of the steps up to this one.
TaskId end_of(std::span<const Task> tasks, int step) {
  TaskId end = 0;
  for (TaskId t = 0; t < tasks.size(); ++t) {
    if (tasks[t].step <= step && tasks[t].phase != Phase::epilogue) end = t + 1;
  }
  return end;
}

// As docs/metrics.md has it: up to the end of each compute task for its phase, what is left for the
// optimizer.
PhaseSeconds phases_of(const Lanes& lanes, int step, std::int64_t begin_ns, std::int64_t end_ns) {
  std::array<std::int64_t, phase_count> spent{};
  std::int64_t reached = begin_ns;
  const auto divide = [&](Phase phase, std::int64_t until) {
    const std::int64_t end = std::min(until, end_ns);
    if (end <= reached) return;
    spent[static_cast<std::size_t>(phase)] += end - reached;
    reached = end;
  };
  for (const TaskId t : lanes.of(Lane::gpu_compute)) {
    if (lanes.task(t).step == step) divide(lanes.task(t).phase, lanes.times(t).end_ns);
  }
  divide(Phase::optimizer, end_ns);
  const auto seconds = [&](Phase phase) {
    return static_cast<double>(spent[static_cast<std::size_t>(phase)]) * 1e-9;
  };
  return {seconds(Phase::forward), seconds(Phase::backward), seconds(Phase::optimizer)};
}

// Whether the tasks of the next step are alike and touch the same memory.
bool next_has_same_memory(const Schedule& schedule) {
  std::array<LaneTasks, 2> steps;
  const std::span<const Task> tasks = schedule.tasks();
  for (TaskId t = 0; t < tasks.size(); ++t) {
    const int after = tasks[t].step - middle_step;
    if ((after == 0 || after == 1) && tasks[t].phase != Phase::epilogue)
      steps[static_cast<std::size_t>(after)].push_back(t);
  }
  const std::span<const BufferInfo> buffers = schedule.buffers();
  const auto is_same_memory = [&](const Access& a, const Access& b) {
    return a.mode == b.mode && a.bytes == b.bytes &&
           buffers[a.buffer].tier == buffers[b.buffer].tier &&
           buffers[a.buffer].offset + a.offset == buffers[b.buffer].offset + b.offset;
  };
  const auto is_same = [&](TaskId one, TaskId other) {
    const Task &a = tasks[one], &b = tasks[other];
    const std::span<const Access> of_a = schedule.accesses(a), of_b = schedule.accesses(b);
    return a.kind == b.kind && a.lane == b.lane && a.bytes == b.bytes &&
           std::equal(of_a.begin(), of_a.end(), of_b.begin(), of_b.end(), is_same_memory);
  };
  return std::equal(steps[0].begin(), steps[0].end(), steps[1].begin(), steps[1].end(), is_same);
}

// Two moments a step apart, of which the first is when `step` begins.
struct StepBegins {
  std::int64_t ns = 0, next_ns = 0;
  Shift shift() const { return {ns, next_ns, 0, 1}; }
};
std::optional<StepBegins> begins_of(std::span<const Task> tasks,
                                    std::span<const ActivityTimes> times, int step) {
  const std::optional<TaskId> one = beginning(tasks, step), next = beginning(tasks, step + 1);
  if (!one || !next) return std::nullopt;
  return StepBegins{times[*one].start_ns, times[*next].start_ns};
}

// Of a step that begins like the next one, from where the one before has ended to its own end.
PhaseSeconds phases_of_step(const Lanes& lanes, int step, const StepBegins& begins,
                            std::int64_t end_ns) {
  return phases_of(lanes, step, end_ns - (begins.next_ns - begins.ns), end_ns);
}

// Of the tasks of a step.
std::int64_t last_end(std::span<const Task> tasks, std::span<const ActivityTimes> times, int step) {
  std::int64_t end_ns = 0;
  for (TaskId t = 0; t < tasks.size(); ++t) {
    if (tasks[t].step == step) end_ns = std::max(end_ns, times[t].end_ns);
  }
  return end_ns;
}

// Whether all that a task costs, and what waits for it, is the same `apart` tasks later.
bool is_alike_later(const Schedule& schedule, TaskId task, TaskId apart) {
  if (apart >= schedule.tasks().size() - task) return false;
  const Task &a = schedule.tasks()[task], &b = schedule.tasks()[task + apart];
  const int more_updates = a.update < 0 ? 0 : 1;
  if (a.kind != b.kind || a.lane != b.lane || a.phase != b.phase || a.layer != b.layer ||
      a.micro_batch != b.micro_batch || b.step != a.step + 1 ||
      b.update != a.update + more_updates || a.bytes != b.bytes || a.params != b.params ||
      a.flops != b.flops || a.available != b.available || a.saves != b.saves ||
      a.group != b.group || a.pass_bytes != b.pass_bytes || a.pageable != b.pageable ||
      a.first_micro_batch != b.first_micro_batch || a.recomputes_output != b.recomputes_output ||
      a.loss_only != b.loss_only || a.in_caches != b.in_caches)
    return false;
  const std::span<const TaskId> of_a = schedule.successors(task);
  const std::span<const TaskId> of_b = schedule.successors(task + apart);
  return std::equal(of_a.begin(), of_a.end(), of_b.begin(), of_b.end(),
                    [&](TaskId one, TaskId other) { return other == one + apart; });
}

}  // namespace

StopAt stop_after(const Schedule& schedule, int step) {
  const std::span<const Task> tasks = schedule.tasks();
  const std::optional<TaskId> next = beginning(tasks, step + 1);
  SPILLWAY_ASSERT(next, "a step after it");
  return {*next, end_of(tasks, step)};
}

std::optional<PhaseSeconds> repeated_step(const Schedule& schedule,
                                          std::span<const ActivityTimes> times) {
  const Lanes lanes(schedule, times);
  const std::optional<StepBegins> begins = begins_of(schedule.tasks(), times, middle_step);
  if (!begins || !lanes.are_alike(begins->shift()) || !next_has_same_memory(schedule))
    return std::nullopt;
  return phases_of_step(lanes, middle_step, *begins,
                        last_end(schedule.tasks(), times, middle_step));
}

std::optional<Repetition> repetition_of(const Schedule& schedule) {
  const std::span<const Task> tasks = schedule.tasks();
  const int steps = schedule.steps();
  if (steps < 4) return std::nullopt;
  const std::optional<TaskId> one = beginning(tasks, steps - 3), next = beginning(tasks, steps - 2);
  if (!one || !next) return std::nullopt;
  Repetition found;
  found.per_step = *next - *one;
  found.from = end_of(tasks, steps - 3);
  while (found.from > 0 && is_alike_later(schedule, found.from - 1, found.per_step)) --found.from;
  for (found.step = 1; found.step <= steps - 3; ++found.step) {
    const std::optional<TaskId> begin = beginning(tasks, found.step);
    const std::optional<TaskId> end = beginning(tasks, found.step + 2);
    if (!begin || !end) return std::nullopt;
    found.tasks = *end;
    if (first_of(tasks, found.step) < found.from || *end < end_of(tasks, found.step)) continue;
    found.stop = stop_after(schedule, found.step);
    return found;
  }
  return std::nullopt;
}

std::optional<PhaseSeconds> repeated_step(const Schedule& schedule,
                                          std::span<const ActivityTimes> times,
                                          const Repetition& repetition) {
  const Lanes lanes(schedule, times);
  const std::span<const Task> tasks = schedule.tasks().first(times.size());
  const std::optional<StepBegins> begins = begins_of(tasks, times, repetition.step);
  if (!begins || !lanes.are_alike(begins->shift()) || !lanes.repeat(begins->shift(), repetition))
    return std::nullopt;
  const std::int64_t end_ns = last_end(tasks, times, repetition.step);
  if (!lanes.are_whole_until(std::max(end_ns, lanes.last_end(begins->next_ns)), schedule))
    return std::nullopt;
  return phases_of_step(lanes, repetition.step, *begins, end_ns);
}

std::optional<PhaseSeconds> growth_by_layers(const Schedule& schedule,
                                             std::span<const ActivityTimes> times, int period) {
  const Lanes lanes(schedule, times);
  return StepPasses(lanes, static_cast<int>(schedule.problem().model.layers)).growth(period);
}

}  // namespace spillway
