// Tasks of several ranks together: collectives, and messages between the stages of a pipeline.
#include <algorithm>

#include "base/errors.hpp"
#include "policies/schedule/program.hpp"

namespace spillway {

namespace {

Access operand(Slice slice, Role role, Mode mode) {
  return {slice.buffer.id, role, mode, slice.offset, slice.bytes};
}

}  // namespace

Task Program::collective(TaskKind kind, Lane lane, const RankGroup& group, int layer,
                         int micro_batch) {
  SPILLWAY_ASSERT(group.size() > 1 && lanes_of_ranks.contains(lane));
  auto known = std::find(groups_.begin(), groups_.end(), group);
  if (known == groups_.end()) known = groups_.insert(groups_.end(), group);
  constexpr std::ptrdiff_t most_groups = 256;
  SPILLWAY_ASSERT(known - groups_.begin() < most_groups);
  Task task;
  task.kind = kind;
  task.lane = lane;
  task.group = static_cast<std::uint8_t>(known - groups_.begin());
  task.layer = layer;
  task.micro_batch = micro_batch;
  return task;
}

TaskId Program::all_gather(Lane lane, const RankGroup& group, Slice part, Slice whole, int layer,
                           int micro_batch) {
  require_tier(part, Tier::gpu, "all_gather part");
  require_tier(whole, Tier::gpu, "all_gather whole");
  Task task = collective(TaskKind::all_gather, lane, group, layer, micro_batch);
  task.bytes = whole.bytes;
  return emit(task, {operand(part, Role::source, Mode::read),
                     operand(whole, Role::destination, Mode::write)});
}

TaskId Program::broadcast(Lane lane, const RankGroup& group, int from, Slice part, int layer,
                          int micro_batch) {
  require_tier(part, Tier::gpu, "broadcast part");
  SPILLWAY_ASSERT(from >= 0 && from < group.size());
  Task task = collective(TaskKind::broadcast, lane, group, layer, micro_batch);
  task.bytes = part.bytes;
  task.saves = static_cast<std::uint16_t>(from);
  return emit(task, {operand(part, Role::destination, Mode::read_write)});
}

TaskId Program::reduce_scatter(Lane lane, const RankGroup& group, Slice whole, Slice part,
                               bool adds, int layer, int micro_batch) {
  require_tier(whole, Tier::gpu, "reduce_scatter whole");
  require_tier(part, Tier::gpu, "reduce_scatter part");
  Task task = collective(TaskKind::reduce_scatter, lane, group, layer, micro_batch);
  task.bytes = whole.bytes;
  task.first_micro_batch = !adds;
  return emit(task, {operand(whole, Role::source, Mode::read),
                     operand(part, Role::destination, adds ? Mode::read_write : Mode::write)});
}

TaskId Program::all_reduce(Lane lane, const RankGroup& group, Slice whole, int layer,
                           int micro_batch) {
  require_tier(whole, Tier::gpu, "all_reduce whole");
  Task task = collective(TaskKind::all_reduce, lane, group, layer, micro_batch);
  task.bytes = whole.bytes;
  return emit(task, {operand(whole, Role::destination, Mode::read_write)});
}

TaskId Program::message(TaskKind kind, Lane lane, int stage, Slice message, int layer,
                        int micro_batch) {
  require_tier(message, Tier::gpu, "message");
  SPILLWAY_ASSERT(is_message(kind) && lanes_of_stages.contains(lane) && stage != problem_.rank &&
                  stage < problem_.workload.pipeline);
  Task task;
  task.kind = kind;
  task.lane = lane;
  task.group = static_cast<std::uint8_t>(stage);
  task.layer = layer;
  task.micro_batch = micro_batch;
  task.bytes = message.bytes;
  const bool sends = kind == TaskKind::send;
  return emit(task, {operand(message, sends ? Role::source : Role::destination,
                             sends ? Mode::read : Mode::write)});
}

// Sums of squares of parts of gradients, over the ranks that have the other parts. Of the stages of
// a pipeline each has those of its units, and 0 for all others.
void Program::reduce_norms(Slice slots, int unit) {
  if (gradient_group_.size() == 1) return;
  Task task = collective(TaskKind::norms_reduce, Lane::ranks_reduce, gradient_group_, unit, -1);
  task.bytes = slots.bytes;
  task.update = step_;
  emit(task, {operand(slots, Role::norms, Mode::read_write)});
}

}  // namespace spillway
