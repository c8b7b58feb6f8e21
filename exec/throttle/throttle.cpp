#include "exec/throttle/throttle.hpp"

#include <fmt/format.h>
#include <sys/prctl.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <ctime>

namespace spillway {

namespace {

constexpr std::int64_t ns_per_second = 1'000'000'000;
// Longer sleeps look up now and then whether the run has failed.
constexpr std::int64_t longest_sleep_ns = ns_per_second / 5;

class SystemClock : public ThrottleClock {
 public:
  std::int64_t now_ns() override {
    timespec time{};
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * ns_per_second + time.tv_nsec;
  }

  void sleep_until(std::int64_t time_ns) override {
    // By default the kernel may let a thread sleep 50 us longer, to wake several at once.
    static thread_local const int exact = prctl(PR_SET_TIMERSLACK, 1UL);
    static_cast<void>(exact);
    const timespec time{time_ns / ns_per_second, time_ns % ns_per_second};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &time, nullptr) == EINTR) {
    }
  }
};

SharedLink::Flow flow_of(Lane lane) {
  return is_read_lane(lane) ? SharedLink::read : SharedLink::write;
}

}  // namespace

ThrottleClock& system_throttle_clock() {
  static SystemClock clock;
  return clock;
}

Throttle::Throttle(const ThrottleRates& rates, ThrottleClock& clock)
    : rates_(rates), clock_(clock) {
  open_links();
}

void Throttle::open_links() {
  for (std::size_t set = 0; set < links_.size(); ++set) {
    const ThrottledDrives& drives = rates_.drives[set];
    if (drives.total > 0) links_[set].emplace(drives.read, drives.write, drives.total);
  }
}

std::optional<std::int64_t> Throttle::modelled_ns(const Task& task) const {
  const auto at = [](double amount, double rate) -> std::optional<std::int64_t> {
    if (!(rate > 0) || !(amount > 0)) return std::nullopt;
    return static_cast<std::int64_t>(std::ceil(amount / rate * 1e9));
  };
  const auto bytes = static_cast<double>(task.bytes);
  const ThrottledDrives drives = is_drive_lane(task.lane)
                                     ? rates_.drives[static_cast<std::size_t>(drive_set(task.lane))]
                                     : ThrottledDrives{};
  const double most = drives.total > 0 ? drives.total : std::max(drives.read, drives.write);
  switch (task.kind) {
    case TaskKind::h2d:
      return at(bytes, rates_.h2d);
    case TaskKind::d2h:
      return at(bytes, rates_.d2h);
    case TaskKind::read:
      return at(bytes, std::min(drives.read, most));
    case TaskKind::write:
      return at(bytes, std::min(drives.write, most));
    case TaskKind::optimizer:
      return at(static_cast<double>(task.params),
                task.lane == Lane::gpu_compute ? rates_.gpu_optimizer : rates_.optimizer);
    case TaskKind::all_gather:
    case TaskKind::reduce_scatter:
    case TaskKind::all_reduce:
    case TaskKind::norms_reduce: {
      // A ring: each rank sends what is not its own once, and twice where it gets back a sum.
      const bool twice = task.kind == TaskKind::all_reduce || task.kind == TaskKind::norms_reduce;
      return at(
          bytes * (twice ? 2 : 1) * static_cast<double>(ranks_ - 1) / static_cast<double>(ranks_),
          rates_.nvlink);
    }
    case TaskKind::broadcast:
    case TaskKind::send:
      return at(bytes, rates_.nvlink);
    case TaskKind::receive:
    case TaskKind::gradient_add:
    case TaskKind::barrier:
      return std::nullopt;
    default:
      return at(task.flops, rates_.gpu);
  }
}

void Throttle::begin_run(const Schedule& schedule) {
  schedule_ = &schedule;
  ranks_ = schedule.problem().workload.ranks;
  cancelled_ = false;
  if (released_ns_.size() < schedule.tasks().size())
    released_ns_ = std::vector<std::atomic<std::int64_t>>(schedule.tasks().size());
  for (auto& time : released_ns_) time.store(0, std::memory_order_relaxed);
  const std::int64_t now = clock_.now_ns();
  for (LaneState& lane : lanes_) lane.free_ns = now;
  open_links();
}

void Throttle::released(TaskId next, Lane by, std::int64_t end_ns) {
  // On its own lane a task follows the modelled end of the one before it, not the later real one.
  if (schedule_->tasks()[next].lane == by) return;
  std::atomic<std::int64_t>& latest = released_ns_[next];
  std::int64_t before = latest.load(std::memory_order_relaxed);
  while (before < end_ns &&
         !latest.compare_exchange_weak(before, end_ns, std::memory_order_relaxed)) {
  }
}

void Throttle::begin(TaskId id, std::int64_t held_ns) {
  const Task& task = schedule_->tasks()[id];
  LaneState& lane = lanes_[static_cast<std::size_t>(task.lane)];
  lane.start_ns =
      std::max(lane.free_ns, released_ns_[id].load(std::memory_order_relaxed)) + held_ns;
  SharedLink* const link = link_of(task.lane);
  if (link == nullptr || task.bytes == 0) return;
  const std::lock_guard lock(link_mutex_);
  link->start(flow_of(task.lane), static_cast<double>(task.bytes), lane.start_ns);
}

void Throttle::end(TaskId id) {
  const Task& task = schedule_->tasks()[id];
  LaneState& lane = lanes_[static_cast<std::size_t>(task.lane)];
  const std::optional<std::int64_t> modelled = modelled_ns(task);
  const std::int64_t now = clock_.now_ns();
  if (!modelled) {
    lane.free_ns = now;
    return;
  }
  const std::int64_t end_ns = wait(task.lane, lane.start_ns + *modelled);
  lane.tasks += 1;
  lane.modelled_ns += end_ns - lane.start_ns;
  if (now > end_ns) {
    lane.late += 1;
    lane.late_ns += now - end_ns;
  }
  lane.free_ns = std::max(now, end_ns);
}

// Sleeps until the modelled end of the lane's task, and returns it: `end_ns`, or what the other
// flow of a shared link leaves it.
std::int64_t Throttle::wait(Lane lane, std::int64_t end_ns) {
  while (true) {
    const std::int64_t now = clock_.now_ns();
    if (SharedLink* const link = link_of(lane)) {
      const std::lock_guard lock(link_mutex_);
      link->advance(now);
      end_ns = link->end_ns(flow_of(lane));
      if (cancelled_.load(std::memory_order_relaxed)) return end_ns;
      if (!link->running(flow_of(lane))) return end_ns;
    } else if (now >= end_ns || cancelled_.load(std::memory_order_relaxed)) {
      return end_ns;
    }
    clock_.sleep_until(std::min(end_ns, now + longest_sleep_ns));
  }
}

std::vector<std::string> Throttle::warnings() const {
  std::vector<std::string> texts;
  for (int i = 0; i < lane_count; ++i) {
    const LaneState& lane = lanes_[static_cast<std::size_t>(i)];
    if (lane.late == 0) continue;
    texts.push_back(fmt::format(
        "the throttle of {} was not reached by {} of {} tasks, {:.1f} % of the lane's time in all: "
        "this machine is slower there than the one it stands for",
        to_string(static_cast<Lane>(i)), lane.late, lane.tasks,
        100 * static_cast<double>(lane.late_ns) / static_cast<double>(lane.modelled_ns)));
  }
  return texts;
}

std::uint64_t Throttle::tasks() const {
  std::uint64_t sum = 0;
  for (const LaneState& lane : lanes_) sum += lane.tasks;
  return sum;
}

double Throttle::late_share() const {
  double late = 0, modelled = 0;
  for (const LaneState& lane : lanes_) {
    late += static_cast<double>(lane.late_ns);
    modelled += static_cast<double>(lane.modelled_ns);
  }
  return modelled > 0 ? late / modelled : 0;
}

}  // namespace spillway
