// Makes the lanes of the CPU backend as slow as those of another machine.
//
// A task does its real work and then sleeps until the time it would take there (its *modelled*
// time: amount / rate) is over; no core is kept busy by waiting. The modelled time counts from the
// moment at which the task could start: when the last of its predecessors on other lanes had ended,
// and the modelled time of the task before it on its own lane was over. So a lane that is woken
// late, by the timer or by another lane, makes up for it, and rates hold over any number of tasks;
// a lane that had nothing to do gains nothing by it.
//
// A task whose real work takes longer than its modelled time ends when it ends: the throttle was
// not reached, which is counted (warnings()) and gives no credit.
//
// begin() and end() belong to the lane's thread, released() to any; begin_run() comes before all.
// Beyond begin_run() nothing is allocated; ssd.total takes a lock, which lanes of drives share.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "exec/throttle/shared_link.hpp"
#include "exec/throttle/throttle_rates.hpp"
#include "policies/schedule/schedule.hpp"

namespace spillway {

// The clock a throttle goes by: the system's, or one of a test.
class ThrottleClock {
 public:
  virtual ~ThrottleClock() = default;
  virtual std::int64_t now_ns() = 0;                   // of now_ns() in exec/run/executor.hpp
  virtual void sleep_until(std::int64_t time_ns) = 0;  // returns late, never early
};
ThrottleClock& system_throttle_clock();

class Throttle {
 public:
  explicit Throttle(const ThrottleRates& rates, ThrottleClock& clock = system_throttle_clock());

  const ThrottleRates& rates() const { return rates_; }
  // The time a task takes by itself on the machine that is stood for; absent where it is not
  // throttled.
  std::optional<std::int64_t> modelled_ns(const Task& task) const;

  // A run of `schedule`, which outlives it, begins now.
  void begin_run(const Schedule& schedule);
  // Task `next` may start, as far as a predecessor on lane `by` is concerned that ended at
  // `end_ns`. Called before the last of such calls lets the lane of `next` go on.
  void released(TaskId next, Lane by, std::int64_t end_ns);
  // The lane is about to work on the task, whose predecessors have all ended; it was held up for
  // `held_ns` by something else, which the modelled machine would wait for as well.
  void begin(TaskId id, std::int64_t held_ns = 0);
  // The work is done. Returns when the modelled time is over.
  void end(TaskId id);
  // Lets sleeping lanes go: the run has failed.
  void cancel() { cancelled_.store(true, std::memory_order_relaxed); }

  // Which rates this machine did not reach, by how much; to be shown after the last run.
  std::vector<std::string> warnings() const;
  // Throttled tasks of all runs.
  std::uint64_t tasks() const;
  // What tasks took beyond their modelled time / all modelled time, over all lanes.
  double late_share() const;

 private:
  // Touched by the lane's own thread.
  struct alignas(64) LaneState {
    std::int64_t free_ns = 0;   // when the lane's last task was over, as modelled
    std::int64_t start_ns = 0;  // of the task at work, as modelled
    std::uint64_t tasks = 0, late = 0;
    std::int64_t modelled_ns = 0, late_ns = 0;  // in all
  };

  // Null where reads and writes of the lane's drives do not share a rate.
  SharedLink* link_of(Lane lane) {
    if (!is_drive_lane(lane)) return nullptr;
    std::optional<SharedLink>& link = links_[static_cast<std::size_t>(drive_set(lane))];
    return link ? &*link : nullptr;
  }
  void open_links();
  std::int64_t wait(Lane lane, std::int64_t end_ns);

  ThrottleRates rates_;
  ThrottleClock& clock_;
  const Schedule* schedule_ = nullptr;
  std::int64_t ranks_ = 1;                              // of the run
  std::vector<std::atomic<std::int64_t>> released_ns_;  // by task
  std::array<LaneState, lane_count> lanes_;
  std::mutex link_mutex_;
  std::array<std::optional<SharedLink>, most_drive_sets> links_;  // where a total is given
  std::atomic<bool> cancelled_{false};
};

}  // namespace spillway
