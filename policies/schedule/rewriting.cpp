#include "policies/schedule/rewriting.hpp"

#include <algorithm>
#include <utility>

#include "base/errors.hpp"
#include "base/rounding.hpp"

namespace spillway {

Rewriting::Rewriting(Program& program, Recording recording)
    : program_(program),
      tasks_(std::exchange(program.tasks_, {})),
      accesses_(std::exchange(program.accesses_, {})),
      buffers_(program.buffers_),
      points_(std::exchange(program.points_, {})) {
  SPILLWAY_ASSERT(program.recording_ == Recording::all, "only a whole program is rewritten");
  SPILLWAY_ASSERT(!program.plan_, "a program is rewritten before its memory is planned");
  for (BufferInfo& buffer : program.buffers_) buffer.first_use = buffer.last_use = none;
  program.next_task_ = 0;
  program.recording_ = recording;
  if (!tasks_.empty()) program.at(tasks_.front().step, tasks_.front().phase);
  if (recording != Recording::all) return;
  program.tasks_.reserve(tasks_.size() / 2 * 3);
  program.accesses_.reserve(accesses_.size() / 4 * 5);
}

void Rewriting::emit(Task task, std::span<const Access> accesses) {
  const TaskId id = program_.next_task_++;
  if (id >= most_tasks) program_.fail_too_long();
  task.first_access = static_cast<std::uint32_t>(program_.accesses_.size());
  task.access_count = static_cast<std::uint8_t>(accesses.size());
  for (const Access& access : accesses) {
    BufferInfo& buffer = program_.buffers_[access.buffer];
    if (buffer.first_use == none) buffer.first_use = id;
    buffer.last_use = id;
  }
  program_.at(task.step, task.phase);
  if (program_.recording_ != Recording::all) return;
  program_.accesses_.insert(program_.accesses_.end(), accesses.begin(), accesses.end());
  program_.tasks_.push_back(task);
}

void Rewriting::shrink(const std::vector<std::uint64_t>& bytes) {
  std::vector<std::uint64_t> after(buffers_.size());  // 0: as before
  for (BufferId id = 0; id < buffers_.size(); ++id) {
    if (bytes[id] == 0) continue;
    BufferInfo& buffer = program_.buffers_[id];
    SPILLWAY_ASSERT(!buffer.persistent);
    const std::uint64_t aligned = round_up(bytes[id], buffer_alignment);
    if (aligned < buffer.bytes) buffer.bytes = after[id] = aligned;
  }
  for (Access& access : accesses_) {
    const std::uint64_t now = after[access.buffer], before = buffers_[access.buffer].bytes;
    if (now == 0) continue;
    const double share = static_cast<double>(now) / static_cast<double>(before);
    const auto scaled = [&](std::uint64_t at) {
      return static_cast<std::uint64_t>(static_cast<double>(at) * share);
    };
    const std::uint64_t end = std::min(scaled(access.offset + access.bytes), now);
    access.offset = std::min(scaled(access.offset), now - 1);
    access.bytes = std::max<std::uint64_t>(end, access.offset + 1) - access.offset;
  }
}

void Rewriting::barrier(LaneSet waits_for, LaneSet holds, std::int64_t host_ns) {
  program_.barrier(waits_for, holds, host_ns);
}

}  // namespace spillway
