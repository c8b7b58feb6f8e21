// Inside the executor: what running a schedule needs (counters, times, results; allocated once per
// schedule, so that running it again and again allocates nothing), and what its lanes share.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "exec/run/executor.hpp"
#include "exec/run/stream_plan.hpp"
#include "exec/store/store_layout.hpp"
#include "policies/schedule/schedule.hpp"

namespace spillway {

constexpr std::size_t index_of(Lane lane) { return static_cast<std::size_t>(lane); }
constexpr std::size_t index_of(Tier tier) { return static_cast<std::size_t>(tier); }

struct Executor::Run {
  // `parts` may be empty: then no task is known to touch state at rest. `streams`: null where no
  // lane is one. `batches` outlive it.
  Run(const Schedule& schedule, std::span<const StatePart> parts, Streams* streams,
      const Batches& batches);

  // Ready to be run from step `first` of its batches on.
  void reset(std::int64_t first);

  // Steps whose result a task contributes to: the one it belongs to, and the one whose gradient it
  // applies.
  struct Steps {
    int values[2];
    int count;
    const int* begin() const { return values; }
    const int* end() const { return values + count; }
  };
  Steps steps_of(const Task& task) const;

  // Takes what the device left of step `step`, all of whose tasks are done or will not be: times
  // and losses.
  void collect(int step, Streams* device);
  // The result of step `step` of the schedule, once it is collected.
  StepResult result(int step, std::int64_t began_ns) const;
  // The same but for loss and gradient.
  StepResult times(int step, std::int64_t began_ns) const;
  // Its unit squares (exec/run/clipping.hpp), of this rank.
  std::vector<double> unit_squares(int step) const;
  // Of the sequences of step `step`, as far as the head is done with them.
  std::span<const double> losses_of(int step) const;

  // Whether dropout has to know of a task's step: nothing is dropped in an evaluation.
  bool has_noise(const Task& task) const {
    return !schedule.evaluates() &&
           (task.kind == TaskKind::forward || task.kind == TaskKind::backward ||
            task.kind == TaskKind::input_gradient);
  }

  const Schedule& schedule;
  const Batches& batches;
  std::int64_t first_step = 0;  // global, in training
  std::array<std::vector<TaskId>, lane_count> by_lane;
  std::vector<StateAccess> state;                       // per task; empty without parts
  std::vector<std::atomic<std::uint32_t>> waiting_for;  // predecessors not done yet, per task
  static constexpr std::int64_t done_unread = 1;        // end_ns: done, when is not read yet
  std::vector<std::int64_t> start_ns, end_ns;           // 0: not run
  std::vector<double> losses;                           // (steps, batch of this rank)
  std::vector<double> gradient_square_sums;             // per task
  std::vector<std::atomic<std::uint32_t>> open_tasks;   // per step
  std::vector<std::int64_t> last_end_ns;                // per step: end of its last own task
  // What gpu.compute works on: a micro-batch, or where there are borders, which layers ask for
  // too, the micro-batches of a step. By the thread of that lane alone.
  struct Text {
    std::vector<std::int32_t> tokens, targets, starts;  // the last: empty without borders
    int step = -1;                                      // of the schedule
    std::int64_t micro_batch = -1;
  };
  std::vector<Text> texts;
  Text& text_of(std::int64_t micro_batch) {
    return texts[static_cast<std::size_t>(micro_batch) % texts.size()];
  }
  std::vector<std::int64_t> counted_tokens;  // per step; 0: not known yet
  NoiseKey step_noise;                       // of the layer that gpu.compute works on
  std::array<std::array<std::uint64_t, tier_count>, lane_count> highest{};
  std::atomic<std::uint32_t> lanes_left{lane_count};

  // Where lanes are streams.
  struct Notice {
    Executor* executor;
    Run* run;
    Lane lane;
    std::size_t done;  // of the lane's tasks
  };
  std::unique_ptr<StreamPlan> streams;  // null: none are
  std::vector<Notice> notices;          // one for each task that notifies, by notice_of
  std::vector<std::uint32_t> notice_of;
  std::vector<TaskId> step_begins;  // tasks of step s begin at [s]; the epilogue follows the last

 private:
  std::vector<std::uint32_t> tasks_of_step_;               // open_tasks at the start
  std::vector<std::vector<TaskId>> gradients_of_step_;     // see gradient_tasks
  std::vector<std::uint64_t> bytes_read_, bytes_written_;  // ssd, per step
};

// What all lanes share, for as long as the executor lives.
struct Executor::Lanes {
  std::vector<std::thread> threads;
  std::array<std::atomic<std::uint32_t>, lane_count>
      signal{};                              // bumped when a task of the lane becomes ready
  std::atomic<std::uint32_t> generation{0};  // bumped when a run starts or the end has come
  std::atomic<std::uint32_t> progress{0};    // bumped for the calling thread
  std::atomic<bool> failed{false};
  std::atomic<bool> over{false};      // failed, or stopped: lanes begin no further task
  std::atomic<bool> stopping{false};  // the threads end
  // Collectives that lanes of ranks have begun in this run; none begins once they may not.
  std::mutex collectives_mutex;
  std::array<std::size_t, lane_count> collectives{};
  bool no_collectives = false;
  // By lane: copies of what its collectives read and write in GPU memory.
  std::array<std::array<std::vector<std::byte>, 2>, lane_count> copies_of_gpu;
  std::atomic<Run*> run{nullptr};
  std::mutex error_mutex;  // taken only when something fails, and at start-up
  std::exception_ptr error;
  std::vector<std::string> warnings;
  // Chunks that a lane had to read twice (ssd lanes).
  std::array<std::atomic<std::uint64_t>, lane_count> read_again{};

  void wake(Lane lane) {
    std::atomic<std::uint32_t>& one = signal[index_of(lane)];
    one.fetch_add(1, std::memory_order_release);
    one.notify_all();
  }
};

}  // namespace spillway
