// How events are found in O(log n):
//
// * All activities of a demand run at one rate, so a demand keeps a clock: the work that each of
// its
//   activities has done since the clock's start. One that joins at clock reading W ends at reading
//   W + amount, which no later change of the rate alters: a heap keyed by it gives the demand's
//   next end (the total-work clock of DSLab). Where a reading is that of the last end, it is set to
//   that key exactly, so rounding does not add up; readings start again from 0 when the demand
//   has nothing left to run, and now and then in between, so they stay precise.
// * Latencies, and work that nothing can slow, end at times known at the start: one heap by time.
// * A tournament over these heaps gives the next moment.
#include "sim/engine.hpp"

#include <algorithm>
#include <span>

#include "sim/activity_graph.hpp"
#include "sim/event_queue.hpp"

namespace spillway {

namespace {

// The running activities of one demand that can be slowed, and its clock.
class SharedWork {
 public:
  bool empty() const { return pending_.empty(); }

  void join(std::uint32_t activity, double amount, double now_ns) {
    if (pending_.empty()) restart(now_ns);
    pending_.push({reading(now_ns) + amount, activity, Next::end});
  }

  // Takes the one that ends now, and sets the clock by it.
  std::uint32_t end_first(double now_ns) {
    const Pending::Item item = pending_.pop();
    if (++ends_ > 64 + 4 * pending_.size()) {
      pending_.rebase(item.key);
      restart(now_ns);
    } else {
      done_ = item.key;
      since_ns_ = now_ns;
    }
    return item.activity;
  }

  void set_rate(double rate, double now_ns) {
    done_ = reading(now_ns);
    since_ns_ = now_ns;
    units_per_ns_ = rate * 1e-9;
    ns_per_unit_ = 1e9 / rate;
  }

  // When the first one ends, if the rate stays; not before now.
  double next_end(double now_ns) {
    const double left = pending_.first_key() - done_;
    return left > 0 ? std::max(now_ns, since_ns_ + left * ns_per_unit_) : now_ns;
  }

  std::uint64_t steps() const { return pending_.steps(); }
  std::size_t memory_bytes() const { return sizeof(SharedWork) + pending_.memory_bytes(); }

 private:
  double reading(double now_ns) const { return done_ + (now_ns - since_ns_) * units_per_ns_; }
  void restart(double now_ns) {
    done_ = 0;
    since_ns_ = now_ns;
    ends_ = 0;
  }

  Pending pending_;      // by the reading at which they end
  double done_ = 0;      // reading at since_ns_: units of work per activity
  double since_ns_ = 0;  // when the rate began to hold, or of the last end
  double units_per_ns_ = 0, ns_per_unit_ = Earliest::never;  // the rate and its inverse
  std::size_t ends_ = 0;                                     // since the clock's start
};

class EventLoop {
 public:
  EventLoop(const ActivityGraph& graph, std::vector<std::uint32_t> waiting_for,
            std::span<const char> can_saturate, const StopAt* stop);
  std::vector<ActivityTimes> run();
  EngineCounts counts() const;

 private:
  // Its part of queue_: activities in index order, or those that are ready, in order of service.
  struct LaneQueue {
    std::uint32_t head = 0, end = 0;
    std::uint32_t free_places = 0;
    LaneOrder order = LaneOrder::index;
  };
  static constexpr std::size_t timed_source = 0;  // then demand d is source d + 1

  void queue_up();
  void serve(std::uint32_t lane);
  void start(std::uint32_t activity);
  void join(std::uint32_t activity);
  void end(std::uint32_t activity);
  void touch(std::uint32_t demand);
  void find_due();
  void handle_due();
  void settle();
  void await_running();

  const ActivityGraph& graph_;
  const SuccessorLists successors_;
  FairSharing sharing_;
  std::vector<std::uint32_t> waiting_for_;  // predecessors that have not ended
  std::vector<LaneQueue> lanes_;
  std::vector<std::uint32_t> queue_;  // of all lanes, one after the other
  Pending timed_;                     // by time, ns
  std::vector<SharedWork> shared_;    // by demand
  Earliest next_;
  std::vector<ActivityTimes> times_;
  std::vector<Pending::Item> due_;       // what happens now
  std::vector<std::uint32_t> released_;  // activities that became ready now
  std::vector<std::uint32_t> freed_;     // lanes with a place that became free now
  std::vector<std::uint32_t> touched_;   // demands whose next end may be another
  std::vector<char> is_touched_;         // by demand
  double now_ns_ = 0;
  std::int64_t rounded_now_ns_ = 0;
  std::size_t ended_ = 0;
  StopAt stop_;              // unless it ends early: no activity is watched
  std::size_t awaited_ = 1;  // ends, and the start of the one that is watched
  std::vector<std::uint32_t>
      running_;  // when the one that is watched started, from stop_.before on
  EngineCounts counts_;
};

EventLoop::EventLoop(const ActivityGraph& graph, std::vector<std::uint32_t> waiting_for,
                     std::span<const char> can_saturate, const StopAt* stop)
    : graph_(graph),
      successors_(graph),
      sharing_(graph.resources, graph.demands, can_saturate),
      waiting_for_(std::move(waiting_for)),
      lanes_(graph.lanes.size()),
      queue_(graph.activities.size()),
      shared_(graph.demands.size()),
      next_(graph.demands.size() + 1),
      times_(graph.activities.size(), {not_yet, not_yet}),
      is_touched_(graph.demands.size(), 0),
      stop_(stop != nullptr ? *stop : StopAt{std::numeric_limits<std::uint32_t>::max(), 0}) {
  awaited_ += stop_.before;
  queue_up();
}

// A lane's part of queue_ has room for all its activities.
void EventLoop::queue_up() {
  std::vector<std::uint32_t> sizes(lanes_.size(), 0);
  for (const Activity& activity : graph_.activities) ++sizes[activity.lane];
  std::uint32_t offset = 0;
  for (std::uint32_t lane = 0; lane < lanes_.size(); ++lane) {
    lanes_[lane] = {offset, offset, graph_.lanes[lane].width, graph_.lanes[lane].order};
    offset += sizes[lane];
  }
  for (std::uint32_t a = 0; a < graph_.activities.size(); ++a) {
    LaneQueue& lane = lanes_[graph_.activities[a].lane];
    if (lane.order == LaneOrder::index || waiting_for_[a] == 0) queue_[lane.end++] = a;
  }
}

// Starts what can be started on a lane.
void EventLoop::serve(std::uint32_t lane) {
  LaneQueue& queue = lanes_[lane];
  ++counts_.lane_visits;
  while (queue.free_places > 0 && queue.head < queue.end) {
    const std::uint32_t activity = queue_[queue.head];
    if (waiting_for_[activity] > 0) return;
    ++queue.head;
    --queue.free_places;
    if (queue.head < queue.end) {
      const std::uint32_t next = queue_[queue.head];
      __builtin_prefetch(&waiting_for_[next]);
      __builtin_prefetch(&times_[next], 1);
      __builtin_prefetch(&graph_.activities[next]);
    }
    start(activity);
  }
}

void EventLoop::start(std::uint32_t activity) {
  times_[activity].start_ns = rounded_now_ns_;
  if (activity == stop_.watched) await_running();
  const Activity& a = graph_.activities[activity];
  double until = now_ns_ + static_cast<double>(a.latency_ns);
  Next next = Next::end;
  if (a.amount > 0 && sharing_.can_be_slowed(a.demand)) {
    if (a.latency_ns == 0) return join(activity);
    next = Next::work;
  } else if (a.amount > 0) {
    until += work_ns(a.amount, sharing_.full_rate(a.demand));
    if (until == Earliest::never) return;  // its rate is zero
  }
  timed_.push({until, activity, next});
}

void EventLoop::join(std::uint32_t activity) {
  const Activity& a = graph_.activities[activity];
  shared_[a.demand].join(activity, a.amount, now_ns_);
  sharing_.join(a.demand);
  touch(a.demand);
}

void EventLoop::end(std::uint32_t activity) {
  times_[activity].end_ns = rounded_now_ns_;
  const std::uint32_t lane = graph_.activities[activity].lane;
  ++lanes_[lane].free_places;
  freed_.push_back(lane);
  ++ended_;
  if (activity < stop_.before ||
      std::find(running_.begin(), running_.end(), activity) != running_.end())
    --awaited_;
  const auto successors = successors_.of(activity);
  counts_.edges += successors.size();
  for (const std::uint32_t successor : successors) {
    if (--waiting_for_[successor] == 0) released_.push_back(successor);
  }
}

void EventLoop::await_running() {
  for (std::uint32_t a = stop_.before; a < times_.size(); ++a) {
    const bool runs = times_[a].start_ns != not_yet && times_[a].end_ns == not_yet;
    if (runs && a != stop_.watched) running_.push_back(a);
  }
  awaited_ += running_.size();
  --awaited_;
}

void EventLoop::touch(std::uint32_t demand) {
  if (is_touched_[demand]) return;
  is_touched_[demand] = 1;
  touched_.push_back(demand);
}

// Takes all that happens now from the heaps.
void EventLoop::find_due() {
  due_.clear();
  while (next_.time() == now_ns_) {
    const std::size_t source = next_.source();
    const bool is_last = !next_.is_tie();
    if (source == timed_source) {
      due_.push_back(timed_.pop());
      while (!timed_.empty() && timed_.first_key() == now_ns_) due_.push_back(timed_.pop());
    } else {
      const auto demand = static_cast<std::uint32_t>(source - 1);
      do {
        due_.push_back({now_ns_, shared_[demand].end_first(now_ns_), Next::end});
        sharing_.leave(demand);
      } while (!shared_[demand].empty() && shared_[demand].next_end(now_ns_) == now_ns_);
      touch(demand);
    }
    if (is_last) return;
    next_.set(source, Earliest::never);  // until settle()
  }
}

void EventLoop::handle_due() {
  released_.clear();
  freed_.clear();
  if (due_.size() > 1) {
    std::sort(due_.begin(), due_.end(), [](const Pending::Item& a, const Pending::Item& b) {
      return a.activity < b.activity;
    });
  }
  for (const Pending::Item& item : due_) {
    if (item.next == Next::work) {
      join(item.activity);
    } else {
      end(item.activity);
    }
  }
  if (released_.size() > 1) std::sort(released_.begin(), released_.end());
  for (const std::uint32_t activity : released_) {
    LaneQueue& lane = lanes_[graph_.activities[activity].lane];
    if (lane.order == LaneOrder::ready) queue_[lane.end++] = activity;
  }
  for (const std::uint32_t lane : freed_) serve(lane);
  for (const std::uint32_t activity : released_) serve(graph_.activities[activity].lane);
}

// Brings the rates and the tournament up to date.
void EventLoop::settle() {
  if (sharing_.stale()) {
    sharing_.solve();
    ++counts_.solutions;
    for (const std::uint32_t demand : sharing_.changed_rates()) {
      shared_[demand].set_rate(sharing_.rate(demand), now_ns_);
      touch(demand);
    }
  }
  for (const std::uint32_t demand : touched_) {
    is_touched_[demand] = 0;
    SharedWork& work = shared_[demand];
    next_.set(std::size_t{demand} + 1, work.empty() ? Earliest::never : work.next_end(now_ns_));
  }
  touched_.clear();
  next_.set(timed_source, timed_.first_key());
}

std::vector<ActivityTimes> EventLoop::run() {
  for (std::uint32_t lane = 0; lane < lanes_.size(); ++lane) serve(lane);
  settle();
  while (ended_ < graph_.activities.size() && awaited_ > 0) {
    const double next_ns = next_.time();
    if (!(next_ns < most_ns)) {
      if (next_ns < Earliest::never) throw_too_long();
      throw_blocked(graph_, now_ns_, times_);
    }
    now_ns_ = next_ns;
    rounded_now_ns_ = round_ns(now_ns_);
    ++counts_.moments;
    find_due();
    handle_due();
    settle();
  }
  if (ended_ < times_.size()) {
    for (ActivityTimes& times : times_) {
      for (std::int64_t* ns : {&times.start_ns, &times.end_ns}) {
        if (*ns == not_yet) *ns = not_reached_ns;
      }
    }
  }
  return std::move(times_);
}

EngineCounts EventLoop::counts() const {
  EngineCounts counts = counts_;
  counts.queue_steps = timed_.steps();
  counts.demands_visited = sharing_.demands_visited();
  const auto bytes = [](const auto& list) { return list.capacity() * sizeof(list[0]); };
  counts.memory_bytes = bytes(waiting_for_) + bytes(lanes_) + bytes(queue_) + bytes(times_) +
                        bytes(due_) + bytes(released_) + bytes(freed_) + bytes(touched_) +
                        bytes(is_touched_) + timed_.memory_bytes() + next_.memory_bytes() +
                        sharing_.memory_bytes();
  for (const SharedWork& work : shared_) {
    counts.queue_steps += work.steps();
    counts.memory_bytes += work.memory_bytes();
  }
  return counts;
}

std::vector<ActivityTimes> handle_events(const ActivityGraph& graph,
                                         std::vector<std::uint32_t> predecessors,
                                         std::span<const char> can_saturate, EngineCounts* counts,
                                         const StopAt* stop = nullptr) {
  EventLoop loop(graph, std::move(predecessors), can_saturate, stop);
  std::vector<ActivityTimes> times = loop.run();
  if (counts == nullptr) return times;
  const EngineCounts spent = loop.counts();
  counts->moments += spent.moments;
  counts->queue_steps += spent.queue_steps;
  counts->lane_visits += spent.lane_visits;
  counts->edges += spent.edges;
  counts->solutions += spent.solutions;
  counts->demands_visited += spent.demands_visited;
  counts->memory_bytes += spent.memory_bytes + times.capacity() * sizeof(ActivityTimes);
  return times;
}

}  // namespace

double uncontended_ns(const Activity& activity, const FairSharing& sharing) {
  const double latency = static_cast<double>(activity.latency_ns);
  return activity.amount > 0
             ? latency + work_ns(activity.amount, sharing.full_rate(activity.demand))
             : latency;
}

std::vector<ActivityTimes> run_events(const ActivityGraph& graph, EngineCounts* counts) {
  std::vector<std::uint32_t> predecessors = check_activities(graph);
  check_demands(graph.resources, graph.demands);
  return handle_events(graph, std::move(predecessors), find_contention(graph), counts);
}

namespace {

std::vector<ActivityTimes> simulate_until(const ActivityGraph& graph, const StopAt* stop) {
  std::vector<std::uint32_t> predecessors = check_activities(graph);
  check_demands(graph.resources, graph.demands);
  const std::vector<char> can_saturate = find_contention(graph);
  if (longest_path_applies(graph, can_saturate)) return checked_longest_path(graph);
  return handle_events(graph, std::move(predecessors), can_saturate, nullptr, stop);
}

}  // namespace

std::vector<ActivityTimes> simulate_activities(const ActivityGraph& graph) {
  return simulate_until(graph, nullptr);
}

std::vector<ActivityTimes> simulate_activities(const ActivityGraph& graph, const StopAt& stop) {
  return simulate_until(graph, &stop);
}

}  // namespace spillway
