#include "policies/schedule/dependency_graph.hpp"

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wconversion"
#pragma GCC diagnostic ignored "-Wsign-conversion"
#pragma GCC diagnostic ignored "-Wshadow"
#include <boost/graph/compressed_sparse_row_graph.hpp>
#include <boost/graph/dag_shortest_paths.hpp>
#include <boost/graph/graphviz.hpp>
#include <boost/graph/topological_sort.hpp>
#include <boost/property_map/function_property_map.hpp>
#pragma GCC diagnostic pop

#include <algorithm>
#include <iterator>
#include <limits>

#include "base/errors.hpp"

namespace spillway {

namespace {

using Csr =
    boost::compressed_sparse_row_graph<boost::directedS, boost::no_property, boost::no_property,
                                       boost::no_property, std::uint32_t, std::uint32_t>;
using Edge = std::pair<std::uint32_t, std::uint32_t>;

// For Boost's algorithms, which want edges in ascending order of their source.
Csr make_graph(std::uint32_t tasks, const std::vector<Edge>& sorted) {
  return Csr(boost::edges_are_sorted, sorted.begin(), sorted.end(), tasks,
             static_cast<std::uint32_t>(sorted.size()));
}

Csr make_graph(const DependencyGraph& graph) {
  std::vector<Edge> edges;
  edges.reserve(graph.edge_count());
  for (std::uint32_t task = 0; task < graph.tasks(); ++task) {
    for (const std::uint32_t next : graph.successors(task)) edges.emplace_back(task, next);
  }
  return make_graph(graph.tasks(), edges);
}

}  // namespace

DependencyGraph::DependencyGraph(std::span<const std::uint32_t> predecessor_counts,
                                 std::span<const std::uint32_t> predecessors)
    : begins_(predecessor_counts.size() + 1, 0), successors_(predecessors.size()) {
  SPILLWAY_ASSERT(predecessors.size() <= std::numeric_limits<std::uint32_t>::max());
  // A counting sort by source; targets come in ascending order, so each task's successors do too.
  for (const std::uint32_t source : predecessors) ++begins_[source + 1];
  for (std::size_t i = 1; i < begins_.size(); ++i) begins_[i] += begins_[i - 1];
  std::size_t edge = 0;
  for (std::uint32_t task = 0; task < predecessor_counts.size(); ++task) {
    for (std::uint32_t k = 0; k < predecessor_counts[task]; ++k, ++edge) {
      SPILLWAY_ASSERT(predecessors[edge] < task);
      successors_[begins_[predecessors[edge]]++] = task;
    }
  }
  SPILLWAY_ASSERT(edge == predecessors.size());
  // Every begin has become an end.
  std::copy_backward(begins_.begin(), begins_.end() - 1, begins_.end());
  begins_.front() = 0;
}

std::vector<std::uint32_t> DependencyGraph::topological_order() const {
  std::vector<std::uint32_t> order;
  order.reserve(tasks());
  const Csr graph = make_graph(*this);
  boost::topological_sort(graph, std::back_inserter(order));  // reversed order
  std::reverse(order.begin(), order.end());
  return order;
}

void DependencyGraph::write_dot(std::ostream& out,
                                const std::function<std::string(std::uint32_t)>& label,
                                const std::function<std::string(std::uint32_t)>& color) const {
  boost::write_graphviz(
      out, make_graph(*this),
      [&](std::ostream& stream, std::uint32_t task) {
        stream << "[label=" << boost::escape_dot_string(label(task)) << ", fillcolor=\""
               << color(task) << "\"]";
      },
      boost::default_writer(),
      [](std::ostream& stream) {
        stream << "rankdir=LR;\nnode [shape=box, style=filled, fontname=\"sans-serif\"];\n";
      });
}

std::vector<std::uint32_t> DependencyGraph::critical_path(std::span<const std::int64_t> weights,
                                                          std::span<const Edge> lane_edges) const {
  const std::uint32_t count = tasks();
  SPILLWAY_ASSERT(weights.size() == count);
  if (count == 0) return {};
  // Boost's DAG shortest paths on negated weights, from a source joined to every task.
  std::vector<Edge> edges;
  edges.reserve(edge_count() + lane_edges.size() + count);
  for (std::uint32_t t = 0; t < count; ++t) edges.emplace_back(0, t + 1);
  for (std::uint32_t t = 0; t < count; ++t) {
    for (const std::uint32_t s : successors(t)) edges.emplace_back(t + 1, s + 1);
  }
  for (const Edge& edge : lane_edges) edges.emplace_back(edge.first + 1, edge.second + 1);
  std::stable_sort(edges.begin(), edges.end(),
                   [](const Edge& a, const Edge& b) { return a.first < b.first; });
  const Csr graph = make_graph(count + 1, edges);
  const auto weight = boost::make_function_property_map<Csr::edge_descriptor>(
      [&](const auto& edge) { return -weights[boost::target(edge, graph) - 1]; });
  // Measured weights are from a file: their sum may be beyond what a distance holds.
  const auto add = [](std::int64_t a, std::int64_t b) {
    std::int64_t sum = 0;
    return __builtin_add_overflow(a, b, &sum) ? std::numeric_limits<std::int64_t>::min() : sum;
  };
  std::vector<std::int64_t> distance(count + 1);
  std::vector<std::uint32_t> parent(count + 1);
  const auto index = boost::get(boost::vertex_index, graph);
  boost::dag_shortest_paths(
      graph, 0u,
      boost::weight_map(weight)
          .distance_map(boost::make_iterator_property_map(distance.begin(), index))
          .predecessor_map(boost::make_iterator_property_map(parent.begin(), index))
          .distance_inf(std::numeric_limits<std::int64_t>::max())
          .distance_combine(add));
  auto last = static_cast<std::uint32_t>(std::min_element(distance.begin() + 1, distance.end()) -
                                         distance.begin());
  std::vector<std::uint32_t> path;
  for (; last != 0; last = parent[last]) path.push_back(last - 1);
  std::reverse(path.begin(), path.end());
  return path;
}

}  // namespace spillway
