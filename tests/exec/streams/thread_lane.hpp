// One lane of a device of threads: a thread does what was issued, in order, some time later;
// another one delivers its notices, later still (as on CUDA, where they have a stream of their
// own).
//
// How late is random, by the seed: nothing, a yield or a sleep before each operation, and now and
// then the thread waits for the issuer to have issued all that it may. Order between threads flows
// along the queue, the marks and the notices, and nowhere else
// (tests/exec/streams/one_way_queue.hpp).
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "exec/run/device.hpp"
#include "tests/exec/streams/one_way_queue.hpp"
#include "tests/exec/streams/stream_record.hpp"

namespace spillway::test {

// A point in a lane's work, over and over again.
struct StreamMark {
  // How often in this run: recorded counts when it is issued, done when it is reached.
  std::atomic<std::uint32_t> recorded{0}, done{0};
  // Not atomic: whoever reads them must know that the work is done, whoever records the mark again
  // that they were read.
  std::int64_t start_ns = 0, end_ns = 0;
  bool times_read = true;
};

// Staged text, and how many pieces of work that were issued are still to read it.
struct StagedText {
  const std::byte* where = nullptr;
  std::atomic<std::int32_t> readers{0};
};

// A task's work: a copy, where `to` is given, or a computation.
struct StreamWork {
  Task task;
  Operands operands;
  std::byte* to = nullptr;
  const std::byte* from = nullptr;
  std::uint64_t bytes = 0;
  // What it reads of the issuer's, as it was when it was issued.
  AdamConstants adam_constants{};
  std::vector<std::byte> text;
  StagedText* staged = nullptr;
};

struct StreamOperation {
  enum class Kind : std::uint8_t { begin, work, end, wait, notice };
  Kind kind = Kind::begin;
  StreamMark* mark = nullptr;
  std::uint32_t count = 0;  // end, wait: of the mark
  std::unique_ptr<StreamWork> work;
  void (*function)(void*) = nullptr;
  void* argument = nullptr;
};

// Random delays of one thread.
class Pauses {
 public:
  Pauses(std::uint64_t seed, int most_us) : random_(seed), most_us_(most_us) {}
  void pause();
  bool one_in(std::uint64_t n) { return most_us_ > 0 && random_() % n == 0; }

 private:
  std::mt19937_64 random_;
  int most_us_;
};

class ThreadLane {
 public:
  struct Shared {
    StreamRecord& record;
    std::function<void(const StreamWork&)> perform;  // on the lane's thread
    std::atomic<bool> failed{false};                 // no work is done, and no notice delivered
  };
  // `seed`: of this lane's delays. `shared` outlives the lane.
  ThreadLane(Shared& shared, std::uint64_t seed, int most_delay_us);
  ~ThreadLane();
  ThreadLane(const ThreadLane&) = delete;
  ThreadLane& operator=(const ThreadLane&) = delete;

  void issue(StreamOperation operation) { operations_.push(std::move(operation)); }
  // Whether all that was issued is done, but for notices.
  bool is_idle() const { return reached_.load(std::memory_order_relaxed) == operations_.pushed(); }
  // Blocks until all that was issued is done and notified of.
  void drain();
  // Whether this thread is inside a notice.
  static bool in_notice();

 private:
  struct Notice {
    void (*function)(void*) = nullptr;
    void* argument = nullptr;
  };
  void work();
  void deliver();
  void perform(StreamOperation& operation);

  Shared& shared_;
  Pauses work_pauses_, notice_pauses_;
  OneWayQueue<StreamOperation> operations_;
  OneWayQueue<Notice> notices_;
  std::atomic<std::uint32_t> reached_{0};  // operations; relaxed, counted before anyone is told
  std::thread worker_, herald_;
};

}  // namespace spillway::test
