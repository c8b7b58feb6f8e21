// Timelines of a page: every task of a trace as a bar, with its dependencies, and memory over time,
// packed so that a million tasks can be looked at. page/timeline.js reads it, page/gantt.js draws
// it.
//
// A blob of a timeline is one column of numbers (NumberColumn); differences may be negative. For
// each lane: how many tasks, then, in order of time, of all of them: differences of start (ns) to
// the task before; durations (ns); indices of their classes; differences to the task before on the
// lane of task id, of step, of layer, of micro-batch, of segment. A class is what many tasks have
// in common: kind, phase, bytes, flops, parameters. Then for each tier: how many samples,
// differences of their times, differences of their bytes. Then the critical path: how many tasks,
// differences of their ids.
//
// A blob of dependencies: how many tasks, and for each how many successors and, of each, (id - that
// of the one before it, of the first - that of the task) x 4 + why (0 data, 1 memory, 2 barrier, 3
// turn).
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "experiments/report/html.hpp"
#include "experiments/report/trace_study.hpp"

namespace spillway {

class Timelines {
 public:
  // What `study` recorded and, where it was recorded by a training, what was predicted.
  void add(const TraceStudy& study);

  std::size_t tasks() const { return tasks_; }  // bars of all timelines together
  bool empty() const { return tasks_ == 0; }
  // To be put into a page: "timelines", JSON that says what there is, and a blob for each part.
  std::vector<Blob> blobs() const;

 private:
  struct Part;
  void add(const Part& part);
  std::string add_dependencies(const Schedule& schedule);

  std::string list_;  // JSON texts, joined by commas
  std::vector<Blob> blobs_;
  std::vector<std::uint64_t>
      known_schedules_;  // fingerprints of those whose dependencies are there
  std::size_t tasks_ = 0;
};

}  // namespace spillway
