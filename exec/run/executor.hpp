// The executor: runs a schedule for real, one thread per lane, and records what happened.
//
// A lane's thread takes its tasks in program order. It waits until all predecessors of the next one
// are done (a counter per task, a futex per lane: no lock, nothing polled), runs it, and counts its
// successors down. What a schedule needs is allocated when it is prepared; running it allocates
// nothing. A failure on any lane stops all lanes and is rethrown to the caller.
//
// A run executes a whole schedule: `schedule.steps()` training steps and the epilogue, after which
// every home holds current values. Training is a sequence of runs of the same policy. A stop ends a
// run after the current step: all of that step's updates are done and none of a later one is
// begun (exec/store/version_gate.hpp).
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <span>
#include <thread>
#include <vector>

#include "exec/data/batches.hpp"
#include "exec/run/device.hpp"
#include "exec/run/optimizer_settings.hpp"
#include "exec/run/streams.hpp"
#include "exec/store/committer.hpp"
#include "exec/store/frozen_files.hpp"
#include "exec/store/ssd_store.hpp"
#include "exec/store/store_layout.hpp"
#include "exec/store/version_gate.hpp"
#include "exec/throttle/throttle.hpp"
#include "policies/schedule/schedule.hpp"
#include "traces/trace.hpp"

namespace spillway {

class OrderedSums;
class RankGpus;
class RankTeam;

struct StepResult {
  std::int64_t step = 0;     // global
  double loss = 0;           // mean over the step's targets that count
  double gradient_norm = 0;  // before clipping
  // Whose gradient was not finite, so that the step's update was left out; -1: it was applied.
  int skipped_unit = -1;
  double seconds = 0;  // since the end of the step before (of the run's start, for its first)
  std::uint64_t ssd_bytes_read = 0, ssd_bytes_written = 0;
};

// What keeps the optimizer state safe while it is overwritten; all outlive the executor. Without a
// gate, runs cannot be stopped, and the store has one copy of everything.
struct StateSafety {
  VersionGate* gate = nullptr;
  Committer* committer = nullptr;      // null: nothing is committed
  std::span<const StatePart> parts{};  // of the state at rest
};

class Executor {
 public:
  // `store` may be null when no schedule uses the ssd tier. Device and store outlive the executor.
  // So does `throttle`, which makes tasks as slow as on another machine; null: none. And so do
  // `frozen`, the files that what is frozen of the ssd tier rests in; null: all is in the store.
  // `make_ring`: for these files.
  Executor(Device& device, SsdStore* store, std::shared_ptr<const Batches> batches,
           OptimizerSettings settings, StateSafety safety = {}, Throttle* throttle = nullptr,
           const FrozenFiles* frozen = nullptr, RingFactory make_ring = make_usual_ring);
  ~Executor();
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  // One of several ranks, each of which runs the schedule of its own: lanes of collectives go
  // through `team`, losses and norms are those of all ranks, and a stop is agreed on. `gpus`: links
  // between their GPUs, the device among them; null: there are none. Before anything is prepared;
  // both outlive it.
  void use_ranks(RankTeam& team, RankGpus* gpus = nullptr);

  // Allocates what running `schedule` needs, once; run() does so otherwise. The schedule outlives
  // the executor.
  void prepare(const Schedule& schedule) { prepare(schedule, *batches_); }
  // The same for an evaluation; `batches` outlive the executor, too.
  void prepare(const Schedule& schedule, const Batches& batches);

  // Runs all of `schedule`, its first step being global step `first_step`, or up to a requested
  // stop. Returns the number of steps done. `report` is called in step order on the calling thread
  // as soon as a step's loss and gradient norm are known. Spans of what was run are appended to
  // `trace` (if not null) as segment `segment`, times counted from the construction of the
  // executor.
  int run(const Schedule& schedule, std::int64_t first_step,
          const std::function<void(const StepResult&)>& report, Trace* trace = nullptr,
          int segment = 0);

  // Runs all of `schedule`, an evaluation that was prepared, between two runs: its steps are batch
  // `first` and those after it. Returns the losses of all tokens that count.
  struct Losses {
    double sum = 0;
    std::int64_t tokens = 0;
  };
  Losses evaluate(const Schedule& schedule, std::int64_t first);

  // Called on the thread that runs, with the steps that are durable now, after they were reported.
  void on_commit(std::function<void(std::int64_t)> listener) { on_commit_ = std::move(listener); }

  // Between runs: blocks until `version`, a commit point, is durable, and announces it.
  void wait_for_commit(std::int64_t version);

  // Ends training after the step that is running now or, while it is paused between two, before the
  // next one; from any thread, also before a run. Needs a gate.
  void request_stop();
  // The same where all ranks do it, between the same two steps.
  void stop_here();
  // Of several ranks: whether this one was asked to stop, which the others may not know yet; and,
  // while paused and by all at once, a stop here where any was.
  bool wants_stop() const { return wants_stop_.load(); }
  void share_stop();
  void set_paused(bool paused) { paused_ = paused; }

  // Highest end of any bytes a task touched so far, per tier: what the memory planner calls the
  // peak.
  std::uint64_t highest_use(Tier tier) const {
    return highest_use_[static_cast<std::size_t>(tier)];
  }
  // Things the I/O lanes could not do as they should (from their channels).
  std::vector<std::string> warnings() const;

 private:
  struct Run;    // what running a schedule needs (exec/run/executor_run.hpp)
  struct Lanes;  // the threads
  // A lane's ways to the ssd tier, where it has tasks there.
  struct Channels {
    std::unique_ptr<SsdStore::Channel> store;
    std::unique_ptr<FrozenFiles::Channel> frozen;
  };

  Run* find(const Schedule& schedule) const;
  void begin(Run& run, std::int64_t first_step);
  void end(Run& run);
  void lane_main(Lane lane);
  void open(Lane lane, Channels& channels);
  void work(Run& run, Lane lane, Channels& channels);
  bool enter(const Run& run, TaskId id);
  void leave(const Run& run, TaskId id);
  void release(Run& run, TaskId id, LaneSet lanes);
  void check_gradient(const Run& run, TaskId id) const;
  void execute(Run& run, TaskId id, Channels& channels);
  void transfer(const Run& run, TaskId id, Channels& channels);
  bool wait_until_ready(const Run& run, TaskId id);
  void count_down(Run& run, TaskId id);
  // Lanes that are streams (exec/run/executor_streams.cpp).
  void issue(Run& run, Lane lane);
  bool issue_tasks(Run& run, Lane lane, std::size_t& issued);
  bool replay_step(Run& run, Lane lane, int step);
  bool wait_for_slot(const Run& run, Lane lane, int step);
  void issue_work(Run& run, TaskId id);
  void notify(Run& run, TaskId id);
  void stream_operands(Run& run, TaskId id, Operands& operands);
  void stage_text(Run& run, int step, std::int64_t micro_batch);
  static void work_done(void* notice);
  void steps_collected(Run& run, int steps);
  void fail(std::exception_ptr error);
  void end_lanes();
  void wake_caller();
  bool stop_is_complete() const;
  void announce_commit(std::int64_t done);
  std::byte* address(const Run& run, const Access& access) const;
  Operands operands(Run& run, TaskId id);
  static bool needs_text(const Run& run, const Task& task);
  // The text of a micro-batch in a step of the schedule.
  MicroBatchText text(Run& run, int step, std::int64_t micro_batch);
  void append_spans(const Run& run, Trace& trace, int segment) const;
  // Of several ranks (exec/ranks/executor_ranks.cpp).
  StepResult shared_result(const Run& run, int step, std::int64_t began_ns);
  void agree_on_stop(std::int64_t at_least);
  void collective(const Run& run, TaskId id, std::byte* scratch = nullptr);
  bool goes_between_gpus(const Run& run, const Task& task) const;
  void exchange_on_gpus(const Run& run, TaskId id);
  void exchange(const Run& run, TaskId id, const std::array<std::byte*, 2>& at);
  void collective(const Run& run, const Task& task, OrderedSums& sums,
                  const std::array<std::byte*, 2>& at);
  bool begin_collective(Lane lane);
  void finish_collectives(const Run& run);
  void finish_messages(const Run& run);
  std::vector<double> losses_of_all(const Run& run) const;
  std::int64_t tokens_of_all(const Run& run) const;

  Device& device_;
  SsdStore* store_;
  const std::shared_ptr<const Batches> batches_;
  OptimizerSettings settings_;
  StateSafety safety_;
  Throttle* throttle_;
  const FrozenFiles* frozen_;
  RingFactory make_ring_;
  Streams* streams_;                     // null: no lane is one
  RankTeam* team_ = nullptr;             // null: one rank
  RankGpus* gpus_ = nullptr;             // null: GPUs have no links
  std::atomic<bool> wants_stop_{false};  // this rank, which the others are still to hear of
  std::int64_t start_ns_;
  std::array<std::uint64_t, tier_count> highest_use_{};
  std::vector<std::unique_ptr<Run>> runs_;  // by schedule
  std::atomic<std::int64_t> next_step_{0};  // the first step that is not reported yet
  std::atomic<bool> paused_{false};
  std::function<void(std::int64_t)> on_commit_;
  std::int64_t announced_ = 0;  // the last commit that was
  std::unique_ptr<Lanes> lanes_;
};

// Monotonic clock in nanoseconds.
std::int64_t now_ns();

}  // namespace spillway
