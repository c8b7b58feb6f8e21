// A finished schedule: tasks with derived dependencies, buffers with offsets, peaks per tier.
//
// Immutable. Tasks are numbered in program order and every edge points forward, so task order is a
// topological order and no schedule can deadlock. A lane runs its tasks in order, one after the
// other, so edges between two tasks of a lane are left out, and so is an edge from a task that an
// earlier task of the same lane has waited for, or for a later one than that.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <ostream>
#include <span>
#include <string>
#include <vector>

#include "policies/schedule/task.hpp"
#include "policies/workload/problem.hpp"
#include "policies/workload/ranks.hpp"

namespace spillway {

// Home of a contiguous range of a unit's elements: the memory it is in before the first task and
// after the last.
struct HomePart {
  BufferKind kind = BufferKind::parameters;  // parameters or optimizer_state
  std::int32_t unit = 0;
  std::uint64_t first_element = 0;
  std::uint64_t elements = 0;
  // Of parameters: they are not trained. On the SSD and in host memory these have a buffer of their
  // own in each unit.
  bool frozen = false;
  // parameters: elements * parameter_bytes(); optimizer_state: elements * state_bytes(), as [master
  // | m | v]
  Slice where;
};

struct TierUse {
  // Extent of the arena: highest end of any buffer; of the ssd tier without what is read in place.
  std::uint64_t peak_bytes = 0;
  std::uint64_t live_peak_bytes = 0;  // most bytes live at one point of the program
  std::uint64_t capacity_bytes = 0;
  // Of the peak, what is there only because memory was left over (retention=nearest): what it is
  // more than the peak of the schedule that keeps nothing, which would do with less memory.
  std::uint64_t kept_bytes = 0;
  // Of the ssd tier, beside the peak: what is frozen and read in place (Problem::frozen_in_place).
  std::uint64_t in_place_bytes = 0;
};

class Schedule {
 public:
  struct Data;  // built by Program::finish
  explicit Schedule(std::shared_ptr<const Data> data);
  // The same schedule of a problem that it is as right for, with other rates of the machine, and
  // with other memories as far as it suits them.
  Schedule of(const Problem& problem) const;
  // Whether buffers would lie where they do on this machine, too: its GPU and its host have as much
  // memory as the problem's, its drives as much, or both have room for every layout that was tried.
  bool suits(const Machine& machine) const;

  const Problem& problem() const { return *problem_; }
  const std::string& policy() const;  // canonical text, e.g. "greedysnake:alpha=0.2"
  int steps() const;
  // Its steps are batches whose losses are computed, and nothing is trained.
  bool evaluates() const;
  // Memory that was left over when it was built, by tier, and that what is kept longer could have.
  const std::array<std::uint64_t, tier_count>& spare() const;

  std::span<const Task> tasks() const;
  std::span<const Access> accesses(const Task& task) const;
  std::span<const BufferInfo> buffers() const;
  std::span<const TaskId> successors(TaskId task) const;  // ascending
  // The same of all tasks: those of task t are all[begins[t] .. begins[t + 1]).
  struct Successors {
    std::span<const std::uint32_t> begins;
    std::span<const TaskId> all;
  };
  Successors successors() const;
  std::span<const std::uint32_t> predecessor_counts() const;  // edges into each task
  std::size_t edge_count() const;
  // What this rank has of the model states (Problem::ranks); all of them where there is one rank.
  std::span<const HomePart> homes() const;
  // Of the collectives (Task::group), each group once.
  std::span<const RankGroup> groups() const;
  // Among which ranks the parts of a complete gradient are, each once; and how they were summed.
  const RankGroup& gradient_group() const;
  const GradientMeshes& gradient_meshes() const;

  const TierUse& use(Tier tier) const;
  bool fits() const;
  // Throws FitError: tier, shortfall, largest buffers live at the peak, a setting that would make
  // it fit.
  void require_fit() const;

  // A 64-bit hash of everything above: equal schedules have equal fingerprints.
  std::uint64_t fingerprint() const;

  // Tasks that were emitted to build it, also in trials of what its policy left open: what emission
  // took.
  std::uint64_t tasks_emitted() const;
  // Elementary steps of planning memory and deriving dependencies: what building took, but for
  // emission, whatever the machine it ran on.
  std::uint64_t build_operations() const;

  // "forward layer 3 micro-batch 1 step 0"
  std::string describe(TaskId task) const;

  // Tasks on the longest path when task t takes weights[t] (lane order counts as an edge), in
  // order.
  std::vector<TaskId> critical_path(std::span<const std::int64_t> weights) const;

  void write_dot(std::ostream& out) const;  // Graphviz
  void write_explain(
      std::ostream& out) const;  // for people: state placement, then one steady step lane by lane

 private:
  std::shared_ptr<const Data> data_;
  std::shared_ptr<const Problem> problem_;
  std::array<TierUse, tier_count> use_;
};

}  // namespace spillway
