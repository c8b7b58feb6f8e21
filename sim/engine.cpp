#include "sim/engine.hpp"

#include <algorithm>
#include <cmath>
#include <span>

#include "sim/activity_graph.hpp"

namespace spillway {

namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

class EventLoop {
 public:
  explicit EventLoop(const ActivityGraph& graph);
  std::vector<ActivityTimes> run();

 private:
  enum class Stage : std::uint8_t { idle, latency, work };

  // A place on a lane, and the activity that runs there.
  struct Place {
    double end_ns = infinity;  // of the latency or of the work, as things stand
    double left = 0;           // units of work left at since_ns
    double since_ns = 0;       // when `rate` began to hold
    double rate = -1;          // units per second; -1: not known yet
    std::uint32_t activity = 0;
    std::uint32_t lane = 0;
    Stage stage = Stage::idle;
  };

  // Activities of one lane in index order, or those that are ready, in order of service.
  struct Queue {
    std::vector<std::uint32_t> activities;
    std::size_t head = 0;
    std::uint32_t first_place = 0, places = 0, running = 0;
  };

  void serve(std::uint32_t lane);
  void start(Place& place, std::uint32_t activity);
  void work(Place& place);
  void end(Place& place);
  void retime(Place& place, double rate);
  void find_next();
  void handle_due();

  const ActivityGraph& graph_;
  const SuccessorLists successors_;
  FairSharing sharing_;
  std::vector<std::uint32_t> waiting_for_;  // predecessors that have not ended
  std::vector<Queue> queues_;               // by lane
  std::vector<Place> places_;               // of all lanes
  std::vector<ActivityTimes> times_;
  std::vector<std::uint32_t> due_;       // places whose latency or work ends now
  std::vector<std::uint32_t> released_;  // activities that became ready now
  std::vector<std::uint32_t> freed_;     // lanes with a place that became free now
  double now_ns_ = 0;
  double next_ns_ = infinity;
  std::size_t ended_ = 0;
};

EventLoop::EventLoop(const ActivityGraph& graph)
    : graph_(graph),
      successors_(graph),
      sharing_(graph.resources, graph.demands),
      waiting_for_(graph.predecessor_counts),
      queues_(graph.lanes.size()),
      times_(graph.activities.size(), {not_yet, not_yet}) {
  check_activities(graph);
  waiting_for_.resize(graph.activities.size(), 0);
  std::vector<std::uint32_t> sizes(graph.lanes.size(), 0);
  for (const Activity& activity : graph.activities) ++sizes[activity.lane];
  for (std::uint32_t lane = 0; lane < queues_.size(); ++lane) {
    Queue& queue = queues_[lane];
    queue.activities.reserve(sizes[lane]);
    queue.first_place = static_cast<std::uint32_t>(places_.size());
    queue.places = std::min(graph.lanes[lane].width, sizes[lane]);
    Place place;
    place.lane = lane;
    places_.resize(places_.size() + queue.places, place);
  }
  for (std::uint32_t a = 0; a < graph.activities.size(); ++a) {
    const std::uint32_t lane = graph.activities[a].lane;
    if (graph.lanes[lane].order == LaneOrder::index || waiting_for_[a] == 0) {
      queues_[lane].activities.push_back(a);
    }
  }
}

// Starts what can be started on a lane.
void EventLoop::serve(std::uint32_t lane) {
  Queue& queue = queues_[lane];
  while (queue.running < queue.places && queue.head < queue.activities.size()) {
    const std::uint32_t activity = queue.activities[queue.head];
    if (waiting_for_[activity] > 0) return;
    std::uint32_t place = queue.first_place;
    while (places_[place].stage != Stage::idle) ++place;
    ++queue.head;
    ++queue.running;
    start(places_[place], activity);
  }
}

void EventLoop::start(Place& place, std::uint32_t activity) {
  place.activity = activity;
  times_[activity].start_ns = std::llround(now_ns_);
  const Activity& a = graph_.activities[activity];
  place.stage = Stage::latency;
  place.end_ns = now_ns_ + static_cast<double>(a.latency_ns);
  if (a.latency_ns == 0 && a.amount > 0) work(place);
}

void EventLoop::work(Place& place) {
  const Activity& a = graph_.activities[place.activity];
  place.stage = Stage::work;
  place.left = a.amount;
  place.since_ns = now_ns_;
  place.rate = -1;
  place.end_ns = infinity;
  sharing_.join(a.demand);
}

void EventLoop::end(Place& place) {
  times_[place.activity].end_ns = std::llround(now_ns_);
  place.stage = Stage::idle;
  place.end_ns = infinity;
  --queues_[place.lane].running;
  freed_.push_back(place.lane);
  ++ended_;
  for (const std::uint32_t successor : successors_.of(place.activity)) {
    if (--waiting_for_[successor] == 0) released_.push_back(successor);
  }
}

void EventLoop::retime(Place& place, double rate) {
  if (place.rate > 0)
    place.left = std::max(0.0, place.left - (now_ns_ - place.since_ns) * 1e-9 * place.rate);
  place.since_ns = now_ns_;
  place.rate = rate;
  place.end_ns = now_ns_ + work_ns(place.left, rate);
}

// Brings all rates up to date and finds the next moment and what is due then.
void EventLoop::find_next() {
  if (sharing_.stale()) sharing_.solve();
  next_ns_ = infinity;
  due_.clear();
  for (std::uint32_t p = 0; p < places_.size(); ++p) {
    Place& place = places_[p];
    if (place.stage == Stage::work) {
      const double rate = sharing_.rate(graph_.activities[place.activity].demand);
      if (rate != place.rate) retime(place, rate);
    }
    if (place.end_ns > next_ns_ || place.end_ns == infinity) continue;
    if (place.end_ns < next_ns_) {
      next_ns_ = place.end_ns;
      due_.clear();
    }
    due_.push_back(p);
  }
}

void EventLoop::handle_due() {
  released_.clear();
  freed_.clear();
  if (due_.size() > 1) {
    std::sort(due_.begin(), due_.end(), [&](std::uint32_t a, std::uint32_t b) {
      return places_[a].activity < places_[b].activity;
    });
  }
  for (const std::uint32_t p : due_) {
    Place& place = places_[p];
    if (place.stage == Stage::work) {
      sharing_.leave(graph_.activities[place.activity].demand);
      end(place);
    } else if (graph_.activities[place.activity].amount > 0) {
      work(place);
    } else {
      end(place);
    }
  }
  if (released_.size() > 1) std::sort(released_.begin(), released_.end());
  for (const std::uint32_t activity : released_) {
    const std::uint32_t lane = graph_.activities[activity].lane;
    if (graph_.lanes[lane].order == LaneOrder::ready) queues_[lane].activities.push_back(activity);
  }
  for (const std::uint32_t lane : freed_) serve(lane);
  for (const std::uint32_t activity : released_) serve(graph_.activities[activity].lane);
}

std::vector<ActivityTimes> EventLoop::run() {
  for (std::uint32_t lane = 0; lane < queues_.size(); ++lane) serve(lane);
  while (ended_ < graph_.activities.size()) {
    find_next();
    if (next_ns_ == infinity) throw_blocked(graph_, now_ns_, times_);
    now_ns_ = next_ns_;
    handle_due();
  }
  return std::move(times_);
}

}  // namespace

double uncontended_ns(const Activity& activity, const FairSharing& sharing) {
  const double latency = static_cast<double>(activity.latency_ns);
  return activity.amount > 0
             ? latency + work_ns(activity.amount, sharing.full_rate(activity.demand))
             : latency;
}

std::vector<ActivityTimes> run_events(const ActivityGraph& graph) { return EventLoop(graph).run(); }

std::vector<ActivityTimes> simulate_activities(const ActivityGraph& graph) {
  return runs_without_contention(graph) ? longest_path(graph) : run_events(graph);
}

}  // namespace spillway
