// Classes of tasks for people: "ssd.read parameters", "gpu.compute backward", "cpu.optimizer".
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "policies/schedule/schedule.hpp"

namespace spillway {

struct TaskClass {
  Lane lane = Lane::gpu_compute;
  TaskKind kind = TaskKind::forward;
  std::optional<BufferKind> buffer;  // what is moved; none for tasks that move nothing
  bool operator==(const TaskClass&) const = default;
};

TaskClass class_of(const Schedule& schedule, const Task& task);

// "ssd.read optimizer state", "gpu.compute forward", "cpu.optimizer", "barrier".
std::string to_string(const TaskClass& task_class);

// Classes numbered 0 .. task_class_count - 1, so that sums by class are flat arrays.
inline constexpr std::size_t task_class_count =
    static_cast<std::size_t>(lane_count) * task_kind_count * (buffer_kind_count + 1);
std::size_t index_of(const TaskClass& task_class);
TaskClass task_class_at(std::size_t index);

}  // namespace spillway
