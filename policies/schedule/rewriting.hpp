// Rewriting: goes over an emitted program task by task and emits it anew, with tasks, waits and
// memory added. This is how a framework is laid over a program (policies/framework/lay_over.cpp).
//
//   Rewriting again(program);
//   for (TaskId id = 0; id < again.tasks().size(); ++id) {
//     again.points(id, [&](HostPoint point) { ... });
//     again.emit(again.tasks()[id], again.accesses(id));
//   }
#pragma once

#include <span>
#include <vector>

#include "policies/schedule/program.hpp"

namespace spillway {

class Rewriting {
 public:
  // Takes all tasks out of `program`, which was recorded whole; its buffers stay. Of what is
  // emitted anew `program` keeps what `recording` says.
  explicit Rewriting(Program& program, Recording recording = Recording::all);

  std::span<const Task> tasks() const { return tasks_; }
  std::span<const Access> accesses(TaskId id) const {
    return std::span(accesses_).subspan(tasks_[id].first_access, tasks_[id].access_count);
  }
  // With the uses that they had before.
  std::span<const BufferInfo> buffers() const { return buffers_; }
  std::span<const HomePart> homes() const { return program_.homes_; }
  // Calls act(HostPoint) for what stands before task `id`, or at the end for the number of tasks;
  // in order of `id`.
  template <class Act>
  void points(TaskId id, const Act& act) {
    for (; next_point_ < points_.size() && points_[next_point_].before <= id; ++next_point_)
      act(points_[next_point_].what);
  }

  // Transient buffers get so many bytes instead of more (by buffer; 0: as they are), because the
  // other program moves smaller pieces. Accesses keep their share of a buffer.
  void shrink(const std::vector<std::uint64_t>& bytes);

  // Of a buffer, after shrink().
  std::uint64_t bytes(BufferId id) const { return program_.buffers_[id].bytes; }

  // A task of the program, changed or not: with its step and phase.
  void emit(Task task, std::span<const Access> accesses);
  // As Program::barrier, in the step and phase of the task emitted last; the host thread works for
  // `host_ns` meanwhile.
  void barrier(LaneSet waits_for, LaneSet holds, std::int64_t host_ns = 0);

 private:
  Program& program_;
  std::vector<Task> tasks_;
  std::vector<Access> accesses_;
  std::vector<BufferInfo> buffers_;
  std::vector<Program::PlacedPoint> points_;
  std::size_t next_point_ = 0;
};

}  // namespace spillway
