// exec/run/streams.hpp on ordinary threads, two for each lane (tests/exec/streams/thread_lane.hpp):
// really asynchronous, with random delays, and strict. A caller that breaks a rule of the contract,
// or one that the executor sets itself (exec/run/stream_plan.hpp: at most three steps ahead), is
// reported to the StreamRecord; what was asked is then done as well as it can be.
//
// Checked are: one thread per lane; no call from a notice; waits for marks that were recorded in
// this run; marks recorded anew only when their times were read; no step issued more than three
// steps ahead; times of work that is done, on one thread; nothing running when the clock is set and
// when marks or memory come and go; work between begin() and end() of its own lane and task;
// operands in the arenas or in registered memory; text and constants of AdamW that stay as they
// were issued; and no wait, notice or other lane's work inside a graph.
#pragma once

#include <array>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "exec/run/streams.hpp"
#include "tests/exec/streams/thread_lane.hpp"

namespace spillway::test {

class ThreadStreams : public Streams {
 public:
  // `perform` does a piece of work, on the thread of its lane; the arenas are where operands may
  // lie.
  ThreadStreams(StreamRecord& record, StreamOptions options,
                std::function<void(const StreamWork&)> perform,
                std::array<std::span<std::byte>, 2> arenas);
  ~ThreadStreams() override;

  LaneSet lanes() const override { return {Lane::gpu_compute, Lane::pcie_h2d, Lane::pcie_d2h}; }
  void reserve_marks(std::size_t count) override;
  void begin(Lane lane, std::size_t mark, const Task& task, TaskId id) override;
  void end(Lane lane, std::size_t mark) override;
  void wait(Lane lane, std::size_t mark) override;
  void notify(Lane lane, void (*function)(void*), void* argument) override;
  void drain(Lane lane) noexcept override;
  void set_clock() override;
  Times times(std::size_t mark) override;
  void begin_graph(Lane lane) override;
  std::size_t end_graph(Lane lane) override;
  void replay(Lane lane, std::size_t graph) override;
  std::size_t text_bytes(std::int64_t rows, bool has_borders) const override;
  void stage_text(const MicroBatchText& text, std::byte* to) override;
  std::shared_ptr<void> register_memory(std::span<std::byte> memory) override;
  void on_failure(std::function<void(std::exception_ptr)> listener) override;

  // Work of the task that was begun on the lane.
  void issue(Lane lane, StreamWork work);
  // What stage_text() wrote.
  static MicroBatchText text_of(const std::byte* text);

 private:
  struct Recorded {
    StreamOperation::Kind kind;
    std::size_t mark = 0;
    std::optional<StreamWork> work;
  };
  using Graph = std::vector<Recorded>;
  struct Issuer {  // of one lane
    explicit Issuer(std::uint64_t seed, int most_delay_us) : pauses(seed, most_delay_us) {}
    std::atomic<const void*> thread{nullptr};  // of the first call
    std::optional<std::size_t> open;           // the mark of the task that was begun
    TaskKind kind = TaskKind::barrier;         // of that task
    std::optional<Graph> capturing;
    Pauses pauses;
    std::unique_ptr<ThreadLane> lane;
  };

  Issuer& issuer(Lane lane) { return *issuers_[static_cast<std::size_t>(lane)]; }
  void require(bool kept, const char* call, const std::string& rule);
  void count_call(const char* call);
  Issuer& enter(Lane lane, const char* call);
  void require_nothing_runs(const char* call);
  StreamMark& mark(std::size_t index, const char* call);
  void begin_mark(Issuer& from, std::size_t mark);
  void end_mark(Issuer& from, std::size_t mark);
  void push(Issuer& from, StreamWork work);
  void check_ahead(int step);
  void check_places(const StreamWork& work);
  StagedText* staged(const std::byte* text);
  void perform(const StreamWork& work);
  void fail();

  StreamRecord& record_;
  const StreamOptions options_;
  const std::function<void(const StreamWork&)> perform_;
  const std::array<std::span<std::byte>, 2> arenas_;
  Pauses caller_pauses_;  // of whoever reads times
  std::vector<std::span<std::byte>> registered_;
  std::deque<StreamMark> marks_;
  std::deque<StagedText> texts_;
  std::vector<Graph> graphs_;
  // By step: tasks issued whose times were not read; relaxed.
  static constexpr std::size_t steps_kept = 16;
  std::array<std::atomic<int>, steps_kept> unread_{};
  std::vector<int> step_of_mark_;             // -1: replayed
  std::atomic<const void*> reader_{nullptr};  // the thread that reads times

  std::mutex listener_mutex_;
  std::function<void(std::exception_ptr)> listener_;
  std::thread failure_;  // tells the listener

  ThreadLane::Shared shared_;
  std::array<std::unique_ptr<Issuer>, lane_count> issuers_;
};

}  // namespace spillway::test
