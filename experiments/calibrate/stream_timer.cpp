#include "experiments/calibrate/stream_timer.hpp"

#include "base/errors.hpp"

namespace spillway {

StreamTimer::StreamTimer(Device& device) : device_(device), streams_(*device.streams()) {
  streams_.reserve_marks(most_pieces);
  streams_.set_clock();
}

std::size_t StreamTimer::issue(const Task& task, const std::function<void()>& work) {
  SPILLWAY_ASSERT(used_ < most_pieces);
  const std::size_t mark = used_++;
  streams_.begin(task.lane, mark, task, static_cast<TaskId>(mark));
  work();
  streams_.end(task.lane, mark);
  return mark;
}

std::size_t StreamTimer::issue_task(const Task& task, const Operands& operands) {
  return issue(task, [&] { device_.compute(task, operands); });
}

std::size_t StreamTimer::issue_copy(Lane lane, std::byte* to, const std::byte* from,
                                    std::uint64_t bytes) {
  Task task;
  task.kind = lane == Lane::pcie_h2d ? TaskKind::h2d : TaskKind::d2h;
  task.lane = lane;
  task.bytes = bytes;
  return issue(task, [&] { device_.copy(lane, to, from, bytes); });
}

void StreamTimer::finish() {
  for (const Lane lane : {Lane::pcie_h2d, Lane::gpu_compute, Lane::pcie_d2h}) streams_.drain(lane);
}

}  // namespace spillway
