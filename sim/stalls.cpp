#include "sim/stalls.hpp"

#include <algorithm>

namespace spillway {

namespace {

// Idle time by class of what was running and by why it was waited for.
class Tally {
 public:
  explicit Tally(const Schedule& schedule) : schedule_(schedule) {}

  void add(TaskId running, Wait wait, std::int64_t ns) {
    const TaskClass of = class_of(schedule_, schedule_.tasks()[running]);
    sums_[index_of(of) * wait_count + static_cast<std::size_t>(wait)] += ns;
  }
  std::vector<Stall> sorted() const {
    std::vector<Stall> stalls;
    for (std::size_t i = 0; i < sums_.size(); ++i) {
      if (sums_[i] > 0)
        stalls.push_back(
            {task_class_at(i / wait_count), static_cast<Wait>(i % wait_count), sums_[i]});
    }
    std::stable_sort(stalls.begin(), stalls.end(),
                     [](const Stall& a, const Stall& b) { return a.ns > b.ns; });
    return stalls;
  }

 private:
  const Schedule& schedule_;
  std::vector<std::int64_t> sums_ = std::vector<std::int64_t>(task_class_count * wait_count, 0);
};

}  // namespace

StallReport find_stalls(const Schedule& schedule, const SimulationResult& result,
                        const Causes& causes, const SteadyWindow& window) {
  StallReport report;
  const std::vector<SimulatedTask>& times = result.tasks;
  Tally tally(schedule);
  const std::span<const Task> tasks = schedule.tasks();
  // Charges [from, until) to `last` and what held it up; `waiting` waits for `last`.
  const auto charge = [&](TaskId waiting, TaskId last, std::int64_t from, std::int64_t until) {
    report.idle_ns += until - from;
    causes.walk_back(last, from, until, [&](TaskId running, std::int64_t begin, std::int64_t end) {
      const Wait wait = waiting == none ? Wait::end : causes.why(waiting);
      tally.add(running, wait, end - begin);
      waiting = running;
    });
  };
  std::int64_t reached = window.begin_ns;  // the GPU's time is divided up to here
  for (TaskId task = 0; task < tasks.size() && reached < window.end_ns; ++task) {
    if (tasks[task].lane != Lane::gpu_compute || times[task].end_ns <= reached) continue;
    const std::int64_t start = std::min(times[task].start_ns, window.end_ns);
    if (start > reached) charge(task, causes.of(task), reached, start);
    reached = std::max(reached, start);
    const std::int64_t end = std::min(times[task].end_ns, window.end_ns);
    report.busy_ns += end - reached;
    reached = end;
  }
  if (reached < window.end_ns)
    charge(none, last_task(schedule, result, window), reached, window.end_ns);
  report.stalls = tally.sorted();
  return report;
}

}  // namespace spillway
