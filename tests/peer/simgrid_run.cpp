#include "tests/peer/simgrid_run.hpp"

#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <deque>
#include <simgrid/s4u.hpp>
#include <stdexcept>
#include <string>

namespace spillway::test {

namespace {

namespace s4u = simgrid::s4u;

// The platform: links between pairs of hosts, hosts with cores, disks.
class Platform {
 public:
  explicit Platform(const PeerGraph& peer);
  // Where an actor must live that does work of this demand.
  s4u::Host* home(std::uint32_t demand) const {
    return routes_[demand].from != nullptr ? routes_[demand].from : control_;
  }
  // Does the work of an activity; the calling actor waits for it.
  void work(std::uint32_t activity) const;

 private:
  struct Route {
    s4u::Host *from = nullptr, *to = nullptr;
  };
  void add_route(std::uint32_t demand, s4u::NetZone& zone, const std::vector<s4u::Link*>& links);

  const PeerGraph& peer_;
  s4u::Host* control_ = nullptr;  // where actors live that send nothing; they use nothing of it
  std::vector<Route> routes_;     // by demand
  std::vector<s4u::Host*> hosts_;
  std::vector<s4u::Disk*> disks_;
};

Platform::Platform(const PeerGraph& peer) : peer_(peer), routes_(peer.demands.size()) {
  const auto& resources = peer.graph.resources;
  s4u::NetZone* zone = s4u::create_full_zone("platform");
  control_ = zone->create_host("control", 1e9);
  std::vector<s4u::Link*> links;
  for (std::size_t r = 0; r < resources.size(); ++r) {
    links.push_back(zone->create_link("link " + std::to_string(r), resources[r].capacity));
    links.back()->set_latency(0)->seal();
  }
  for (std::size_t h = 0; h < peer.hosts.size(); ++h) {
    hosts_.push_back(zone->create_host("host " + std::to_string(h), peer.hosts[h].speed));
    hosts_.back()->set_core_count(peer.hosts[h].cores)->seal();
  }
  for (std::size_t k = 0; k < peer.disks.size(); ++k) {
    const PeerDisk& disk = peer.disks[k];
    disks_.push_back(control_->create_disk("disk " + std::to_string(k),
                                           resources[disk.read].capacity,
                                           resources[disk.write].capacity));
    disks_.back()->set_readwrite_bandwidth(resources[disk.total].capacity);
    disks_.back()->seal();
  }
  for (std::uint32_t d = 0; d < peer.demands.size(); ++d) {
    if (peer.demands[d].kind == PeerKind::transfer) add_route(d, *zone, links);
  }
  control_->seal();
  zone->seal();
}

void Platform::add_route(std::uint32_t demand, s4u::NetZone& zone,
                         const std::vector<s4u::Link*>& links) {
  const std::string name = std::to_string(demand);
  const Route route = {zone.create_host("from " + name, 1e9), zone.create_host("to " + name, 1e9)};
  route.from->seal();
  route.to->seal();
  std::vector<s4u::LinkInRoute> path;
  for (const Usage& usage : peer_.graph.demands[demand].usages)
    path.emplace_back(links[usage.resource]);
  zone.add_route(route.from->get_netpoint(), route.to->get_netpoint(), nullptr, nullptr, path,
                 false);
  routes_[demand] = route;
}

void Platform::work(std::uint32_t activity) const {
  const std::uint32_t d = peer_.graph.activities[activity].demand;
  const double amount = peer_.graph.activities[activity].amount;
  const PeerDemand& peer = peer_.demands[d];
  const Demand& demand = peer_.graph.demands[d];
  const auto bytes = static_cast<std::uint64_t>(amount);
  switch (peer.kind) {
    case PeerKind::transfer: {
      // Only a message between two actors takes a rate.
      s4u::Mailbox* mailbox = s4u::Mailbox::by_name("activity " + std::to_string(activity));
      s4u::Actor::create("receiver", routes_[d].to, [mailbox] { mailbox->get<char>(); });
      char message = 0;
      s4u::CommPtr comm = mailbox->put_init(&message, bytes);
      if (demand.rate_cap < std::numeric_limits<double>::infinity())
        comm->set_rate(demand.rate_cap);
      comm->wait();
      return;
    }
    case PeerKind::compute: {
      s4u::ExecPtr exec = s4u::Exec::init();
      exec->set_flops_amount(amount)->set_priority(demand.weight)->set_host(hosts_[peer.device]);
      if (demand.rate_cap < peer_.hosts[peer.device].speed) exec->set_bound(demand.rate_cap);
      exec->wait();
      return;
    }
    case PeerKind::read:
      disks_[peer.device]->read(bytes);
      return;
    case PeerKind::write:
      disks_[peer.device]->write(bytes);
      return;
  }
}

// Starts each activity, as an actor of its own, when its predecessors have ended and its lane has
// come to it.
class Driver {
 public:
  Driver(const PeerGraph& peer, const Platform& platform)
      : graph_(peer.graph),
        platform_(platform),
        waiting_for_(graph_.predecessor_counts),
        lanes_(graph_.lanes.size()),
        times_(graph_.activities.size()) {
    waiting_for_.resize(graph_.activities.size(), 0);
    for (std::uint32_t a = 0; a < graph_.activities.size(); ++a) {
      const std::uint32_t lane = graph_.activities[a].lane;
      if (graph_.lanes[lane].order == LaneOrder::index || waiting_for_[a] == 0)
        lanes_[lane].queue.push_back(a);
    }
    for (std::uint32_t lane = 0; lane < lanes_.size(); ++lane) serve(lane);
  }
  const std::vector<PeerTimes>& times() const { return times_; }

 private:
  struct LaneState {
    std::deque<std::uint32_t> queue;
    std::uint32_t running = 0;
  };

  void serve(std::uint32_t index) {
    LaneState& lane = lanes_[index];
    while (lane.running < graph_.lanes[index].width && !lane.queue.empty()) {
      const std::uint32_t activity = lane.queue.front();
      if (waiting_for_[activity] > 0) return;
      lane.queue.pop_front();
      ++lane.running;
      times_[activity].start_s = s4u::Engine::get_clock();
      s4u::Actor::create("activity", platform_.home(graph_.activities[activity].demand),
                         [this, activity] { live(activity); });
    }
  }

  void live(std::uint32_t index) {
    const Activity& activity = graph_.activities[index];
    if (activity.latency_ns > 0)
      s4u::this_actor::sleep_for(static_cast<double>(activity.latency_ns) * 1e-9);
    if (activity.amount > 0) platform_.work(index);
    times_[index].end_s = s4u::Engine::get_clock();
    --lanes_[activity.lane].running;
    std::vector<std::uint32_t> released;
    if (!graph_.successor_offsets.empty()) {
      for (std::uint32_t e = graph_.successor_offsets[index];
           e < graph_.successor_offsets[index + 1]; ++e) {
        if (--waiting_for_[graph_.successors[e]] == 0) released.push_back(graph_.successors[e]);
      }
    }
    for (const std::uint32_t other : released) {
      const std::uint32_t lane = graph_.activities[other].lane;
      if (graph_.lanes[lane].order == LaneOrder::ready) lanes_[lane].queue.push_back(other);
    }
    serve(activity.lane);
    for (const std::uint32_t other : released) serve(graph_.activities[other].lane);
  }

  const ActivityGraph& graph_;
  const Platform& platform_;
  std::vector<std::uint32_t> waiting_for_;
  std::vector<LaneState> lanes_;
  std::vector<PeerTimes> times_;
};

std::vector<PeerTimes> run_here(const PeerGraph& peer) {
  std::vector<std::string> words = {"peer",
                                    "--cfg=network/model:CM02",
                                    "--cfg=network/TCP-gamma:-1",
                                    "--cfg=network/crosstraffic:0",
                                    "--cfg=surf/precision:1e-12",
                                    "--cfg=maxmin/precision:1e-9",
                                    "--cfg=contexts/stack-size:128",
                                    "--log=root.thres:critical"};
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  int count = static_cast<int>(words.size());
  s4u::Engine engine(&count, arguments.data());
  const Platform platform(peer);
  const Driver driver(peer, platform);
  engine.run();
  return driver.times();
}

bool write_all(int file, const void* data, std::size_t bytes) {
  for (const char* at = static_cast<const char*>(data); bytes > 0;) {
    const ssize_t written = ::write(file, at, bytes);
    if (written <= 0) return false;
    at += written;
    bytes -= static_cast<std::size_t>(written);
  }
  return true;
}

bool read_all(int file, void* data, std::size_t bytes) {
  for (char* at = static_cast<char*>(data); bytes > 0;) {
    const ssize_t got = ::read(file, at, bytes);
    if (got <= 0) return false;
    at += got;
    bytes -= static_cast<std::size_t>(got);
  }
  return true;
}

}  // namespace

std::vector<PeerTimes> run_in_simgrid(const PeerGraph& peer) {
  int ends[2];
  if (::pipe(ends) != 0) throw std::runtime_error("no pipe for SimGrid's results");
  const pid_t child = ::fork();
  if (child < 0) throw std::runtime_error("no process for SimGrid");
  std::vector<PeerTimes> times(peer.graph.activities.size());
  const std::size_t bytes = times.size() * sizeof(PeerTimes);
  if (child == 0) {
    ::close(ends[0]);
    for (const int signal : {SIGABRT, SIGSEGV}) std::signal(signal, SIG_DFL);  // not Catch's
    bool good = false;
    try {
      times = run_here(peer);
      good = write_all(ends[1], times.data(), bytes);
    } catch (const std::exception& error) {
      write_all(STDERR_FILENO, error.what(), std::string(error.what()).size());
    }
    ::_exit(good ? 0 : 1);
  }
  ::close(ends[1]);
  const bool complete = read_all(ends[0], times.data(), bytes);
  ::close(ends[0]);
  int status = 0;
  ::waitpid(child, &status, 0);
  if (!complete || status != 0)
    throw std::runtime_error("SimGrid ended with status " + std::to_string(status));
  return times;
}

}  // namespace spillway::test
