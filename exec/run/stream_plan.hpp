// What running a schedule takes where some lanes are streams (exec/run/streams.hpp), beside
// executor_run.hpp: worked out and allocated once per schedule.
//
// Work on streams is issued up to `slots` steps ahead of the step that was last collected (its
// results taken, its times read). What differs from step to step lies in memory that the device
// reads and writes, once per slot; so do the marks. Therefore a step's work depends on its slot
// only, and where all steps are the same work on one stream, it is replayed as a graph per slot.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "exec/cpu/adam.hpp"
#include "exec/run/arena.hpp"
#include "exec/run/streams.hpp"
#include "policies/schedule/schedule.hpp"

namespace spillway {

class StreamPlan {
 public:
  static constexpr int slots = 3;

  // Registers memory with `streams`, which outlives it, and reserves marks. `guarded`: by task,
  // whether it writes state that a gate guards; may be empty. `has_borders`: whether texts have.
  StreamPlan(const Schedule& schedule, Streams& streams, const std::vector<bool>& guarded,
             bool has_borders);

  // Ready for another run.
  void reset();

  bool is_stream(Lane lane) const { return lanes_.contains(lane); }
  LaneSet lanes() const { return lanes_; }
  LaneSet other_lanes() const { return other_lanes_; }
  static int slot_of(int step) { return step % slots; }

  // Predecessors of a task of a stream on other streams: it starts after their marks.
  std::span<const TaskId> waits(TaskId task) const {
    return std::span(waits_).subspan(wait_begins_[task],
                                     wait_begins_[task + 1] - wait_begins_[task]);
  }
  // Whether the host has to know when the task is done: another lane waits for it, or it is a
  // step's last on its lane.
  bool notifies(TaskId task) const { return notifies_[task]; }
  std::size_t mark(const Task& task, TaskId id) const {
    return static_cast<std::size_t>(slot_of(task.step)) * tasks_per_slot_ +
           (id - step_begins_[static_cast<std::size_t>(task.step)]);
  }
  // Tasks [begin, end) are those that step `step` emitted; the epilogue is the step after the last.
  TaskId begin_of(int step) const { return step_begins_[static_cast<std::size_t>(step)]; }

  // What tasks of a step read and write.
  AdamConstants& adam(int step) const;
  std::span<double> losses(int step) const;               // (batch of this rank)
  double& square_sum(const Task& task, TaskId id) const;  // of updates and norms
  std::byte* text(int step, std::int64_t micro_batch) const;
  // The step whose text of this micro-batch lies there; -1: none.
  std::int64_t& text_step(int step, std::int64_t micro_batch);

  // Whether all steps but the epilogue are the same work at the same places on one stream.
  bool replayable() const { return replayable_; }
  // By slot; absent until it was captured.
  std::array<std::optional<std::size_t>, slots> graphs;
  std::int64_t steps_issued = 0;  // in all runs: what is replayed has been run before

  // Steps collected, for those who issue.
  std::atomic<int> collected{0};
  // Of by_lane[lane]: how many are known to be done. Written by the device's thread.
  std::array<std::atomic<std::size_t>, lane_count> completed{};

 private:
  const Schedule& schedule_;
  LaneSet lanes_, other_lanes_;
  std::vector<TaskId> step_begins_;
  std::size_t tasks_per_slot_ = 0;
  std::vector<std::uint32_t> wait_begins_;
  std::vector<TaskId> waits_;
  std::vector<bool> notifies_;
  bool replayable_ = false;
  std::size_t text_bytes_ = 0, slot_bytes_ = 0, losses_at_ = 0, squares_at_ = 0, text_at_ = 0;
  Arena memory_;
  std::shared_ptr<void> registration_;
  std::vector<std::int64_t> text_steps_;
};

}  // namespace spillway
