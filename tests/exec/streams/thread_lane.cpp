#include "tests/exec/streams/thread_lane.hpp"

#include <chrono>

#include "exec/run/executor.hpp"

namespace spillway::test {

namespace {

thread_local bool inside_notice = false;

void nap(std::uint64_t microseconds) {
  std::this_thread::sleep_for(std::chrono::microseconds(microseconds));
}

}  // namespace

void Pauses::pause() {
  if (most_us_ == 0) return;
  const std::uint64_t kind = random_() % 8;
  if (kind >= 6) {
    nap(random_() % static_cast<std::uint64_t>(most_us_));
  } else if (kind >= 4) {
    std::this_thread::yield();
  }
}

ThreadLane::ThreadLane(Shared& shared, std::uint64_t seed, int most_delay_us)
    : shared_(shared),
      work_pauses_(2 * seed, most_delay_us),
      // The notices of one lane may be much later than those of another.
      notice_pauses_(2 * seed + 1, (seed % 4 == 0 ? 30 : 1) * most_delay_us),
      worker_([this] { work(); }),
      herald_([this] { deliver(); }) {}

ThreadLane::~ThreadLane() {
  operations_.close();
  worker_.join();
  notices_.close();
  herald_.join();
}

bool ThreadLane::in_notice() { return inside_notice; }

void ThreadLane::drain() {
  operations_.wait_until_finished();
  notices_.wait_until_finished();
}

void ThreadLane::work() {
  while (auto operation = operations_.take()) {
    work_pauses_.pause();
    if (work_pauses_.one_in(64)) {
      // Whoever issues goes on until nothing more may be issued, or for a while.
      std::uint32_t issued = operations_.pushed();
      for (int i = 0; i < 20; ++i) {
        nap(50);
        if (operations_.pushed() == issued) break;
        issued = operations_.pushed();
      }
    }
    perform(*operation);
    operation.reset();
    operations_.finish();
  }
}

void ThreadLane::perform(StreamOperation& operation) {
  using Kind = StreamOperation::Kind;
  const auto reach = [this] { reached_.fetch_add(1, std::memory_order_relaxed); };
  switch (operation.kind) {
    case Kind::begin:
      operation.mark->start_ns = now_ns();
      return reach();
    case Kind::work:
      shared_.perform(*operation.work);
      return reach();
    case Kind::end:
      operation.mark->end_ns = now_ns();
      reach();
      operation.mark->done.store(operation.count, std::memory_order_release);
      wake_sleepers(operation.mark->done);
      return;
    case Kind::wait:
      wait_until_at_least(operation.mark->done, operation.count);
      return reach();
    case Kind::notice:
      reach();
      notices_.push({operation.function, operation.argument});
      return;
  }
}

void ThreadLane::deliver() {
  while (const auto notice = notices_.take()) {
    notice_pauses_.pause();
    if (!shared_.failed.load(std::memory_order_relaxed)) {
      shared_.record.notices.fetch_add(1, std::memory_order_relaxed);
      inside_notice = true;
      try {
        notice->function(notice->argument);
      } catch (...) {
        shared_.record.broken("a notice threw an exception");
      }
      inside_notice = false;
    }
    notices_.finish();
  }
}

}  // namespace spillway::test
