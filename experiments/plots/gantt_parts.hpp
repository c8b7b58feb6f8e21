// What Gantt charts are drawn from: the tasks of one steady step as boxes in rows.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "policies/schedule/schedule.hpp"
#include "sim/simulate.hpp"

namespace spillway {

// Kinds of task that are told apart by colour.
struct GanttClass {
  const char* name;
  const char* colour;
};
std::span<const GanttClass> gantt_classes();

struct GanttBox {
  std::size_t of_class = 0;  // index into gantt_classes()
  int lane = 0;
  std::int64_t start_ns = 0, end_ns = 0;  // from the begin of the window
};

struct GanttWindow {
  int step = 0;
  std::int64_t begin_ns = 0, end_ns = 0;
};

// The last step but one: the last has no next step to work ahead into (docs/metrics.md).
GanttWindow steady_step(const SimulationResult& result);

// Boxes lane by lane in order of time, cut to the window, as long in all as the lane is busy. Tasks
// of one kind without gaps are one box; where their gaps are narrower than a picture can show, each
// column of the picture has a box as wide as they take of it.
std::vector<GanttBox> boxes_of(const Schedule& schedule, const SimulationResult& result,
                               const GanttWindow& window);

}  // namespace spillway
