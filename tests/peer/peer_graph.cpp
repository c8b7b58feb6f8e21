#include "tests/peer/peer_graph.hpp"

#include <algorithm>

#include "tests/sim/graphs.hpp"

namespace spillway::test {

namespace {

class Maker {
 public:
  Maker(std::mt19937_64& random, const PeerMix& mix) : random_(random), mix_(mix) {}
  PeerGraph make();

 private:
  std::uint32_t below(std::uint32_t n) { return static_cast<std::uint32_t>(random_() % n); }
  // A rate between 1e6 and 1e9 per second, whose digits make ties unlikely.
  double rate() { return std::uniform_real_distribution<double>(1e6, 1e9)(random_); }
  bool chance(std::uint32_t percent) { return below(100) < percent; }

  std::uint32_t resource(double capacity);
  void add_transfers();
  void add_computations();
  void add_disks();
  void add_lanes();
  void add_activities();

  std::mt19937_64& random_;
  const PeerMix& mix_;
  PeerGraph peer_;
};

std::uint32_t Maker::resource(double capacity) {
  auto& resources = peer_.graph.resources;
  resources.push_back({"resource " + std::to_string(resources.size()), capacity});
  return static_cast<std::uint32_t>(resources.size() - 1);
}

// Routes over up to twelve links, some with a rate cap.
void Maker::add_transfers() {
  std::vector<std::uint32_t> links(1 + below(12));
  for (std::uint32_t& link : links) link = resource(rate());
  for (std::uint32_t d = 1 + below(10); d > 0; --d) {
    Demand demand;
    std::shuffle(links.begin(), links.end(), random_);
    for (std::size_t l = 0, n = 1 + below(static_cast<std::uint32_t>(links.size())); l < n; ++l)
      demand.uses(links[l], 1);
    if (chance(30)) demand.rate_cap = rate() / 4;
    peer_.graph.demands.push_back(demand);
    peer_.demands.push_back({PeerKind::transfer, 0});
  }
}

// Computations of different priority and cap share the cores of a host; none gets more than a core.
void Maker::add_computations() {
  for (std::uint32_t h = 0, n = 1 + below(3); h < n; ++h) {
    const int cores = 1 + static_cast<int>(below(4));
    const double speed = rate();
    peer_.hosts.push_back({resource(cores * speed), cores, speed});
    for (std::uint32_t d = 1 + below(3); d > 0; --d) {
      Demand demand;
      demand.rate_cap = chance(30) ? speed * (1 + below(8)) / 10 : speed;
      demand.weight = 1 + below(4);
      peer_.graph.demands.push_back(demand.uses(peer_.hosts.back().resource, 1));
      peer_.demands.push_back({PeerKind::compute, h});
    }
  }
}

void Maker::add_disks() {
  for (std::uint32_t k = 0, n = 1 + below(2); k < n; ++k) {
    const double read = rate(), write = rate();
    // From the slower of the two up to more than both need.
    const double total = std::min(read, write) + std::max(read, write) * below(150) / 100;
    const PeerDisk disk = {resource(read), resource(write), resource(total)};
    peer_.disks.push_back(disk);
    peer_.graph.demands.push_back(Demand().uses(disk.read, 1).uses(disk.total, 1));
    peer_.demands.push_back({PeerKind::read, k});
    peer_.graph.demands.push_back(Demand().uses(disk.write, 1).uses(disk.total, 1));
    peer_.demands.push_back({PeerKind::write, k});
  }
}

void Maker::add_lanes() {
  peer_.graph.lanes = lanes(1 + below(10));
  for (LaneSpec& lane : peer_.graph.lanes) {
    lane.width = chance(50) ? 1 : 1 + below(4);
    if (mix_.ready_order && chance(50)) lane.order = LaneOrder::ready;
  }
}

void Maker::add_activities() {
  ActivityGraph& graph = peer_.graph;
  const auto lane_count = static_cast<std::uint32_t>(graph.lanes.size());
  const auto demand_count = static_cast<std::uint32_t>(graph.demands.size());
  std::vector<Edge> edges;
  for (std::uint32_t a = 0, n = 20 + below(80); a < n; ++a) {
    // SimGrid counts bytes in integers.
    const auto amount = static_cast<double>(1000000 + below(100000000));
    const std::int64_t latency = mix_.latencies && chance(40) ? 1000 * below(100000) : 0;
    graph.activities.push_back({below(lane_count), below(demand_count), amount, latency});
    if (!mix_.edges || a == 0) continue;
    for (std::uint32_t e = below(3); e > 0; --e) edges.emplace_back(below(a), a);
  }
  std::sort(edges.begin(), edges.end());
  edges.erase(std::unique(edges.begin(), edges.end()), edges.end());
  set_edges(graph, std::move(edges));
}

PeerGraph Maker::make() {
  if (mix_.transfers) add_transfers();
  if (mix_.computations) add_computations();
  if (mix_.disks) add_disks();
  add_lanes();
  add_activities();
  return std::move(peer_);
}

}  // namespace

PeerGraph random_peer_graph(std::mt19937_64& random, const PeerMix& mix) {
  return Maker(random, mix).make();
}

}  // namespace spillway::test
