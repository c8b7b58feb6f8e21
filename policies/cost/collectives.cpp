#include "policies/cost/collectives.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "base/errors.hpp"

namespace spillway {

namespace {

bool sums_and_spreads(TaskKind kind) {
  return kind == TaskKind::all_reduce || kind == TaskKind::norms_reduce;
}

// Linear in the logarithm of the bytes between rows, the nearest row outside of them.
std::optional<double> measured_bus_bandwidth(const Machine::Cluster& cluster, TaskKind kind,
                                             const Mesh& mesh, std::uint64_t bytes) {
  std::vector<std::pair<double, double>> rows;
  for (const Machine::Cluster::Collective& row : cluster.collectives) {
    if (row.kind == to_string(kind) && row.gpus == mesh.inside && row.nodes == mesh.across)
      rows.emplace_back(std::log(static_cast<double>(row.bytes)), row.bandwidth);
  }
  if (rows.empty()) return std::nullopt;
  std::sort(rows.begin(), rows.end());
  const double at = std::log(static_cast<double>(std::max<std::uint64_t>(bytes, 1)));
  const auto above = std::lower_bound(rows.begin(), rows.end(), std::pair(at, 0.0));
  if (above == rows.begin()) return rows.front().second;
  if (above == rows.end()) return rows.back().second;
  const auto& [low, slow] = *(above - 1);
  const auto& [high, fast] = *above;
  return slow + (fast - slow) * (at - low) / (high - low);
}

// Members of the group under one leaf switch.
double members_of_leaf(const Machine::Cluster& cluster, const RankGroup& group) {
  const auto stride = static_cast<std::int64_t>(group.across_stride);
  const std::int64_t nodes = std::clamp<std::int64_t>(cluster.leaf_nodes / stride, 1,
                                                      static_cast<std::int64_t>(group.mesh.across));
  return static_cast<double>(group.mesh.inside * nodes);
}

double ns_of(const Machine::Cluster& cluster, const CollectiveTraffic& traffic, std::uint64_t bytes,
             double inside, double network) {
  const auto seconds = [](double amount, double rate) { return amount > 0 ? amount / rate : 0; };
  return traffic.steps_ns +
         1e9 * static_cast<double>(bytes) *
             std::max({seconds(traffic.inside, inside), seconds(traffic.network, network),
                       seconds(traffic.spine, spine_share(cluster)),
                       traffic.bandwidth > 0 ? 1 / traffic.bandwidth : 0});
}

bool crosses_spine(const Machine::Cluster& cluster, const RankGroup& group) {
  return cluster.leaf_nodes > 0 && cluster.spine > 0 &&
         static_cast<std::int64_t>(group.mesh.across) * group.across_stride > cluster.leaf_nodes;
}

}  // namespace

double spine_share(const Machine::Cluster& cluster) {
  if (cluster.leaf_nodes == 0 || cluster.spine <= 0) return 0;
  return cluster.spine / static_cast<double>(cluster.leaf_nodes * cluster.sharing);
}

CollectiveTraffic collective_traffic(const Machine::Cluster& cluster, TaskKind kind,
                                     const RankGroup& group, std::uint64_t bytes, double inside,
                                     double network) {
  const double p = group.size(), p0 = group.mesh.inside, p1 = group.mesh.across;
  SPILLWAY_ASSERT(p > 1 && is_collective(kind));
  const double rounds = sums_and_spreads(kind) ? 2 : 1;
  const double step_ns =
      static_cast<double>(p1 > 1 ? cluster.nic_latency_ns : cluster.nvlink_latency_ns);
  const auto traffic_of = [&](double bytes_by_rank, double steps_ns) {
    CollectiveTraffic traffic;
    if (p0 > 1) traffic.inside = bytes_by_rank;
    if (p1 > 1) traffic.network = bytes_by_rank / p0;
    if (p1 > 1 && crosses_spine(cluster, group))
      traffic.spine = bytes_by_rank / members_of_leaf(cluster, group);
    traffic.steps_ns = steps_ns;
    return traffic;
  };
  const double ring_bytes = kind == TaskKind::broadcast ? 1 : rounds * (p - 1) / p;
  CollectiveTraffic ring = traffic_of(ring_bytes, rounds * (p - 1) * step_ns);
  if (const auto bus = measured_bus_bandwidth(cluster, kind, group.mesh, bytes)) {
    ring.bandwidth = *bus / ring_bytes;
    ring.steps_ns = 0;  // measured with the rest
    return ring;
  }
  if (!sums_and_spreads(kind)) return ring;
  const CollectiveTraffic tree = traffic_of(
      rounds, rounds * (std::ceil(std::log2(p1)) * static_cast<double>(cluster.nic_latency_ns) +
                        (p0 - 1) * static_cast<double>(cluster.nvlink_latency_ns)));
  const auto ns = [&](const CollectiveTraffic& traffic) {
    return ns_of(cluster, traffic, bytes, inside, network);
  };
  return ns(tree) < ns(ring) ? tree : ring;
}

double collective_seconds(const Machine::Cluster& cluster, TaskKind kind, const RankGroup& group,
                          std::uint64_t bytes, double inside, double network) {
  if (group.size() == 1) return 0;
  const CollectiveTraffic traffic =
      collective_traffic(cluster, kind, group, bytes, inside, network);
  return 1e-9 * ns_of(cluster, traffic, bytes, inside, network);
}

}  // namespace spillway
