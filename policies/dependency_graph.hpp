// The dependency graph of a schedule: a Boost.Graph compressed-sparse-row graph behind a small
// interface, because Boost.Graph costs seconds of compile time in every file that sees it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <ostream>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace spillway {

class DependencyGraph {
 public:
  // `edges` are (from, to) with from < to, in ascending order of `to`; no duplicates.
  DependencyGraph(std::uint32_t tasks,
                  std::span<const std::pair<std::uint32_t, std::uint32_t>> edges);
  ~DependencyGraph();
  DependencyGraph(const DependencyGraph&) = delete;
  DependencyGraph& operator=(const DependencyGraph&) = delete;

  std::span<const std::uint32_t> successors(std::uint32_t task) const;  // ascending
  std::size_t edge_count() const;
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
  struct Graph;
  std::unique_ptr<Graph> graph_;
};

}  // namespace spillway
