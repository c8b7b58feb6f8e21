#include "exec/run/stream_plan.hpp"

#include <algorithm>
#include <tuple>

#include "base/errors.hpp"

namespace spillway {

namespace {

std::size_t aligned(std::size_t bytes) { return (bytes + 255) / 256 * 256; }

// Whether two tasks are the same work at the same places.
bool same_work(const Schedule& schedule, const Task& a, const Task& b) {
  const auto of_kind = [](const Task& t) {
    return std::tuple(t.kind, t.lane, t.available, t.saves, t.first_micro_batch,
                      t.recomputes_output, t.layer, t.micro_batch,
                      t.update < 0 ? -1 : t.step - t.update, t.bytes, t.params, t.first_element);
  };
  if (of_kind(a) != of_kind(b)) return false;
  const auto first = schedule.accesses(a), second = schedule.accesses(b);
  const auto same = [&](const Access& x, const Access& y) {
    const BufferInfo &p = schedule.buffers()[x.buffer], &q = schedule.buffers()[y.buffer];
    return x.role == y.role && x.bytes == y.bytes && p.tier == q.tier &&
           p.offset + x.offset == q.offset + y.offset;
  };
  return std::equal(first.begin(), first.end(), second.begin(), second.end(), same);
}

}  // namespace

StreamPlan::StreamPlan(const Schedule& schedule, Streams& streams, const std::vector<bool>& guarded,
                       bool has_borders)
    : schedule_(schedule), lanes_(streams.lanes()), other_lanes_(LaneSet::all().without(lanes_)) {
  const auto tasks = schedule.tasks();
  const Workload& workload = schedule.problem().workload;
  step_begins_.assign(static_cast<std::size_t>(schedule.steps()) + 2, 0);
  for (TaskId id = 0; id < tasks.size(); ++id) {
    SPILLWAY_ASSERT(id == 0 || tasks[id].step >= tasks[id - 1].step, "steps follow one another");
    step_begins_[static_cast<std::size_t>(tasks[id].step) + 1] = id + 1;
  }
  for (std::size_t step = 1; step < step_begins_.size(); ++step) {
    step_begins_[step] = std::max(step_begins_[step], step_begins_[step - 1]);
    tasks_per_slot_ =
        std::max<std::size_t>(tasks_per_slot_, step_begins_[step] - step_begins_[step - 1]);
  }

  std::vector<std::vector<TaskId>> waits(tasks.size());
  notifies_.assign(tasks.size(), false);
  std::array<TaskId, lane_count> last_of_lane, last_update;
  last_of_lane.fill(none);
  last_update.fill(none);
  bool one_stream = true;
  for (TaskId id = 0; id < tasks.size(); ++id) {
    const Lane lane = tasks[id].lane;
    one_stream = one_stream && lane == Lane::gpu_compute;
    if (!is_stream(lane)) continue;
    TaskId& last = last_of_lane[static_cast<std::size_t>(lane)];
    if (last != none && tasks[last].step != tasks[id].step) notifies_[last] = true;
    last = id;
    // What counts for an earlier step must not be heard of with the rest of its own: that may have
    // to wait until the earlier one is reported and committed.
    if (tasks[id].update >= 0 && tasks[id].update != tasks[id].step) {
      TaskId& late = last_update[static_cast<std::size_t>(lane)];
      if (late != none && tasks[late].update != tasks[id].update) notifies_[late] = true;
      late = id;
    }
    if (!guarded.empty() && guarded[id]) notifies_[id] = true;
    for (const TaskId next : schedule.successors(id)) {
      if (!is_stream(tasks[next].lane)) {
        notifies_[id] = true;
      } else if (tasks[next].lane != lane) {
        waits[next].push_back(id);
      }
    }
  }
  for (const auto& lasts : {last_of_lane, last_update}) {
    for (const TaskId last : lasts) {
      if (last != none) notifies_[last] = true;
    }
  }
  wait_begins_.push_back(0);
  for (const auto& of_task : waits) {
    waits_.insert(waits_.end(), of_task.begin(), of_task.end());
    wait_begins_.push_back(static_cast<std::uint32_t>(waits_.size()));
  }

  replayable_ = one_stream && is_stream(Lane::gpu_compute) && schedule.steps() > 1;
  for (int step = 1; replayable_ && step < schedule.steps(); ++step) {
    const TaskId first = begin_of(0), other = begin_of(step), count = begin_of(1) - first;
    replayable_ = begin_of(step + 1) - other == count;
    for (TaskId i = 0; replayable_ && i < count; ++i)
      replayable_ = same_work(schedule, tasks[first + i], tasks[other + i]);
  }

  text_bytes_ = aligned(streams.text_bytes(workload.micro_batch * workload.sequence, has_borders));
  losses_at_ = aligned(sizeof(AdamConstants) + sizeof(std::int64_t));
  squares_at_ =
      losses_at_ + aligned(static_cast<std::size_t>(workload.rank_batch()) * sizeof(double));
  text_at_ = squares_at_ + aligned(tasks_per_slot_ * sizeof(double));
  slot_bytes_ = text_at_ + static_cast<std::size_t>(workload.micro_batches()) * text_bytes_;
  memory_ = Arena(slots * slot_bytes_, "what steps hand to the device");
  std::fill(memory_.data(), memory_.data() + memory_.size(), std::byte{0});
  registration_ = streams.register_memory(memory_.span());
  text_steps_.resize(slots * static_cast<std::size_t>(workload.micro_batches()));
  streams.reserve_marks(slots * tasks_per_slot_);
}

void StreamPlan::reset() {
  collected.store(0);
  for (auto& count : completed) count.store(0);
  std::fill(text_steps_.begin(), text_steps_.end(), -1);
}

AdamConstants& StreamPlan::adam(int step) const {
  return *reinterpret_cast<AdamConstants*>(memory_.data() +
                                           static_cast<std::size_t>(slot_of(step)) * slot_bytes_);
}

std::span<double> StreamPlan::losses(int step) const {
  std::byte* const slot = memory_.data() + static_cast<std::size_t>(slot_of(step)) * slot_bytes_;
  return {reinterpret_cast<double*>(slot + losses_at_),
          static_cast<std::size_t>(schedule_.problem().workload.rank_batch())};
}

double& StreamPlan::square_sum(const Task& task, TaskId id) const {
  std::byte* const slot =
      memory_.data() + static_cast<std::size_t>(slot_of(task.step)) * slot_bytes_;
  return reinterpret_cast<double*>(slot + squares_at_)[id - begin_of(task.step)];
}

std::byte* StreamPlan::text(int step, std::int64_t micro_batch) const {
  return memory_.data() + static_cast<std::size_t>(slot_of(step)) * slot_bytes_ + text_at_ +
         static_cast<std::size_t>(micro_batch) * text_bytes_;
}

std::int64_t& StreamPlan::text_step(int step, std::int64_t micro_batch) {
  return text_steps_[static_cast<std::size_t>(
      slot_of(step) * schedule_.problem().workload.micro_batches() + micro_batch)];
}

}  // namespace spillway
