// The dependency graph of a schedule, in compressed sparse rows: every task's successors, one after
// the other. Orders, paths and pictures are Boost.Graph's, on a graph of its own that is made when
// one is asked for; it stays behind this interface, for it costs seconds of compile time in every
// file that sees it.
#pragma once

#include <cstdint>
#include <functional>
#include <ostream>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace spillway {

class DependencyGraph {
 public:
  // Task t waits for predecessor_counts[t] earlier tasks; `predecessors` lists them, task by task,
  // without duplicates.
  DependencyGraph(std::span<const std::uint32_t> predecessor_counts,
                  std::span<const std::uint32_t> predecessors);

  std::uint32_t tasks() const { return static_cast<std::uint32_t>(begins_.size() - 1); }
  std::span<const std::uint32_t> successors(std::uint32_t task) const {  // ascending
    return {successors_.data() + begins_[task], begins_[task + 1] - begins_[task]};
  }
  std::size_t edge_count() const { return successors_.size(); }
  // Those of task t are successors[begins[t] .. begins[t + 1]).
  std::span<const std::uint32_t> begins() const { return begins_; }
  std::span<const std::uint32_t> all_successors() const { return successors_; }

  // Tasks in a topological order (Boost's); throws a bug() if there is a cycle, which cannot be.
  std::vector<std::uint32_t> topological_order() const;
  // Boost's Graphviz writer; `label(task)` and `color(task)` decorate the nodes.
  void write_dot(std::ostream& out, const std::function<std::string(std::uint32_t)>& label,
                 const std::function<std::string(std::uint32_t)>& color) const;
  // The heaviest path when task t weighs weights[t]; `lane_edges` are added to the graph's own
  // edges.
  std::vector<std::uint32_t> critical_path(
      std::span<const std::int64_t> weights,
      std::span<const std::pair<std::uint32_t, std::uint32_t>> lane_edges) const;

 private:
  std::vector<std::uint32_t> begins_;  // tasks + 1
  std::vector<std::uint32_t> successors_;
};

}  // namespace spillway
