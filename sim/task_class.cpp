#include "sim/task_class.hpp"

#include <algorithm>

#include "policies/schedule/moved.hpp"

namespace spillway {

namespace {

constexpr std::size_t buffer_choices = buffer_kind_count + 1;  // the last one: none

bool moves_bytes(TaskKind kind) {
  return kind == TaskKind::h2d || kind == TaskKind::d2h || kind == TaskKind::read ||
         kind == TaskKind::write;
}

std::string in_words(const char* name) {
  std::string text = name;
  std::replace(text.begin(), text.end(), '_', ' ');
  return text;
}

// What ranks do together, by what it is for.
const char* name_among_ranks(const TaskClass& task_class) {
  if (task_class.kind == TaskKind::norms_reduce) return "norms added up over the ranks";
  switch (task_class.lane) {
    case Lane::ranks_gather:
      return "parameters gathered from the ranks";
    case Lane::ranks_reduce:
      return "gradients added up over the ranks";
    default:
      return "updated parameters spread to the ranks";
  }
}

}  // namespace

TaskClass class_of(const Schedule& schedule, const Task& task) {
  TaskClass result{task.lane, task.kind, std::nullopt};
  if (!moves_bytes(task.kind) || task.access_count == 0) return result;
  result.buffer = schedule.buffers()[moved_by(task, schedule.accesses(task)).buffer].kind;
  return result;
}

std::string to_string(const TaskClass& task_class) {
  if (task_class.kind == TaskKind::barrier) return "barrier";
  if (is_collective(task_class.kind)) return name_among_ranks(task_class);
  if (task_class.lane == Lane::cpu_optimizer && task_class.kind == TaskKind::optimizer)
    return to_string(Lane::cpu_optimizer);
  // Copies by their direction: a policy may have both on one lane.
  const Lane named = task_class.kind == TaskKind::h2d   ? Lane::pcie_h2d
                     : task_class.kind == TaskKind::d2h ? Lane::pcie_d2h
                                                        : task_class.lane;
  const std::string lane = to_string(named);
  if (task_class.buffer) return lane + " " + in_words(to_string(*task_class.buffer));
  return lane + " " + in_words(to_string(task_class.kind));
}

std::size_t index_of(const TaskClass& task_class) {
  const std::size_t buffer = task_class.buffer ? static_cast<std::size_t>(*task_class.buffer)
                                               : static_cast<std::size_t>(buffer_kind_count);
  return (static_cast<std::size_t>(task_class.lane) * task_kind_count +
          static_cast<std::size_t>(task_class.kind)) *
             buffer_choices +
         buffer;
}

TaskClass task_class_at(std::size_t index) {
  const std::size_t buffer = index % buffer_choices;
  const std::size_t rest = index / buffer_choices;
  TaskClass result{static_cast<Lane>(rest / task_kind_count),
                   static_cast<TaskKind>(rest % task_kind_count), std::nullopt};
  if (buffer < buffer_kind_count) result.buffer = static_cast<BufferKind>(buffer);
  return result;
}

}  // namespace spillway
