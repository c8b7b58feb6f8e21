#include "policies/dependency_graph.hpp"

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

// Stable counting sort by source, so that each task's successors stay ascending.
std::vector<Edge> sorted_by_source(std::uint32_t tasks, std::span<const Edge> edges) {
  std::vector<std::uint32_t> next(std::size_t{tasks} + 1, 0);
  for (const Edge& edge : edges) ++next[edge.first + 1];
  for (std::size_t i = 1; i < next.size(); ++i) next[i] += next[i - 1];
  std::vector<Edge> sorted(edges.size());
  for (const Edge& edge : edges) sorted[next[edge.first]++] = edge;
  return sorted;
}

Csr make_graph(std::uint32_t tasks, std::span<const Edge> edges) {
  const std::vector<Edge> sorted = sorted_by_source(tasks, edges);
  return Csr(boost::edges_are_sorted, sorted.begin(), sorted.end(), tasks,
             static_cast<std::uint32_t>(sorted.size()));
}

}  // namespace

struct DependencyGraph::Graph {
  Csr csr;
};

DependencyGraph::DependencyGraph(std::uint32_t tasks, std::span<const Edge> edges)
    : graph_(std::make_unique<Graph>(Graph{make_graph(tasks, edges)})) {}

DependencyGraph::~DependencyGraph() = default;

std::span<const std::uint32_t> DependencyGraph::successors(std::uint32_t task) const {
  const auto& forward = graph_->csr.m_forward;
  const std::uint32_t begin = forward.m_rowstart[task];
  return {forward.m_column.data() + begin, forward.m_rowstart[task + 1] - begin};
}

std::size_t DependencyGraph::edge_count() const { return graph_->csr.m_forward.m_column.size(); }

std::vector<std::uint32_t> DependencyGraph::topological_order() const {
  std::vector<std::uint32_t> order;
  order.reserve(boost::num_vertices(graph_->csr));
  boost::topological_sort(graph_->csr, std::back_inserter(order));  // reversed order
  std::reverse(order.begin(), order.end());
  return order;
}

void DependencyGraph::write_dot(std::ostream& out,
                                const std::function<std::string(std::uint32_t)>& label,
                                const std::function<std::string(std::uint32_t)>& color) const {
  boost::write_graphviz(
      out, graph_->csr,
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
  const auto tasks = static_cast<std::uint32_t>(boost::num_vertices(graph_->csr));
  SPILLWAY_ASSERT(weights.size() == tasks);
  if (tasks == 0) return {};
  // Boost's DAG shortest paths on negated weights, from a source joined to every task.
  std::vector<Edge> edges;
  edges.reserve(edge_count() + lane_edges.size() + tasks);
  for (std::uint32_t t = 0; t < tasks; ++t) {
    for (const std::uint32_t s : successors(t)) edges.emplace_back(t + 1, s + 1);
    edges.emplace_back(0, t + 1);
  }
  for (const Edge& edge : lane_edges) edges.emplace_back(edge.first + 1, edge.second + 1);
  const Csr graph = make_graph(tasks + 1, edges);
  const auto weight = boost::make_function_property_map<Csr::edge_descriptor>(
      [&](const auto& edge) { return -weights[boost::target(edge, graph) - 1]; });
  std::vector<std::int64_t> distance(tasks + 1);
  std::vector<std::uint32_t> parent(tasks + 1);
  const auto index = boost::get(boost::vertex_index, graph);
  boost::dag_shortest_paths(
      graph, 0u,
      boost::weight_map(weight)
          .distance_map(boost::make_iterator_property_map(distance.begin(), index))
          .predecessor_map(boost::make_iterator_property_map(parent.begin(), index))
          .distance_inf(std::numeric_limits<std::int64_t>::max()));
  auto last = static_cast<std::uint32_t>(std::min_element(distance.begin() + 1, distance.end()) -
                                         distance.begin());
  std::vector<std::uint32_t> path;
  for (; last != 0; last = parent[last]) path.push_back(last - 1);
  std::reverse(path.begin(), path.end());
  return path;
}

}  // namespace spillway
