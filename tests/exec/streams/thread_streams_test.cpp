// The device of threads itself: it does what it is asked in the order that marks make, and tells of
// every rule that is broken.
#include "tests/exec/streams/thread_streams.hpp"

#include <catch2/catch.hpp>
#include <cstring>
#include <thread>

#include "base/errors.hpp"
#include "tests/exec/streams/stream_device.hpp"

namespace spillway::test {
namespace {

constexpr Lane compute = Lane::gpu_compute, h2d = Lane::pcie_h2d;

Task task_of(Lane lane, int step = 0) {
  Task task;
  task.kind = lane == compute ? TaskKind::forward : TaskKind::h2d;
  task.lane = lane;
  task.step = step;
  return task;
}

// Streams with marks 0 .. 99, whose work is to add 1 to the 64-bit number at `input`, and to write
// what it was to `output`.
class Bench {
 public:
  explicit Bench(StreamOptions options = {.seed = 1, .most_delay_us = 50}) : memory(4096) {
    const std::span<std::byte> arena(memory);
    streams = std::make_unique<ThreadStreams>(
        record, std::move(options),
        [](const StreamWork& work) {
          std::int64_t value = 0;
          std::memcpy(&value, work.operands.input, sizeof value);
          if (work.operands.output) std::memcpy(work.operands.output, &value, sizeof value);
          ++value;
          std::memcpy(work.operands.input, &value, sizeof value);
        },
        std::array{arena, std::span<std::byte>{}});
    streams->reserve_marks(100);
    streams->set_clock();
  }
  ~Bench() { end(); }

  StreamWork work(std::size_t number, Lane lane = compute) {
    StreamWork one;
    one.task = task_of(lane);
    one.operands.input = memory.data() + 8 * number;
    return one;
  }
  void run(Lane lane, std::size_t mark, StreamWork one, int step = 0) {
    streams->begin(lane, mark, task_of(lane, step), 0);
    streams->issue(lane, std::move(one));
    streams->end(lane, mark);
  }
  std::int64_t number(std::size_t index) const {
    std::int64_t value = 0;
    std::memcpy(&value, memory.data() + 8 * index, sizeof value);
    return value;
  }
  // All is done; what was broken.
  std::string end() {
    if (streams) {
      for (const Lane lane : {compute, h2d}) streams->drain(lane);
    }
    streams.reset();
    return record.broken();
  }

  StreamRecord record;
  std::vector<std::byte> memory;
  std::unique_ptr<ThreadStreams> streams;
};

bool says(const std::string& broken, const std::string& rule) {
  return broken.find(rule) != std::string::npos;
}

}  // namespace

TEST_CASE("Streams: work on threads is done in order, notices after it, marks across lanes",
          "[streams]") {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    INFO("seed " << seed);
    Bench bench({.seed = seed, .most_delay_us = 50});
    // Both lanes count the same number up in turn; the copy lane writes down what compute left.
    std::vector<std::int64_t> heard;
    for (std::size_t i = 0; i < 30; ++i) {
      bench.run(compute, i, bench.work(0));
      bench.streams->wait(h2d, i);
      StreamWork copy = bench.work(0, h2d);
      copy.operands.output = bench.memory.data() + 8 * (i + 1);
      bench.run(h2d, 50 + i, copy);
      bench.streams->wait(compute, 50 + i);
      bench.streams->notify(
          compute, [](void* to) { static_cast<std::vector<std::int64_t>*>(to)->push_back(0); },
          &heard);
    }
    bench.streams->drain(compute);
    bench.streams->drain(h2d);
    for (std::size_t i = 0; i < 30; ++i) {
      const Streams::Times before = bench.streams->times(i), after = bench.streams->times(50 + i);
      CHECK(before.start_ns <= before.end_ns);
      CHECK(before.end_ns <= after.start_ns);
    }
    CHECK(bench.end() == "");
    CHECK(heard.size() == 30);
    CHECK(bench.number(0) == 60);
    for (std::size_t i = 0; i < 30; ++i)
      CHECK(bench.number(i + 1) == static_cast<std::int64_t>(2 * i + 1));
  }
}

TEST_CASE("Streams: a graph of threads does its work anew each time it is replayed", "[streams]") {
  Bench bench;
  bench.streams->begin_graph(compute);
  for (std::size_t i = 0; i < 3; ++i) bench.run(compute, i, bench.work(0));
  const std::size_t graph = bench.streams->end_graph(compute);
  bench.streams->drain(compute);
  CHECK(bench.number(0) == 0);
  for (int round = 0; round < 4; ++round) {
    bench.streams->replay(compute, graph);
    bench.streams->drain(compute);
    for (std::size_t i = 0; i < 3; ++i) bench.streams->times(i);
  }
  CHECK(bench.number(0) == 12);
  CHECK(bench.end() == "");
}

TEST_CASE("Streams: a device of threads that fails tells its listener once, and no notice follows",
          "[streams]") {
  Bench bench({.seed = 3, .most_delay_us = 50, .fail_at_work = 5});
  std::atomic<int> failures{0}, notices{0};
  bench.streams->on_failure([&](std::exception_ptr) { failures++; });
  for (std::size_t i = 0; i < 20; ++i) {
    bench.run(compute, i, bench.work(0));
    bench.streams->notify(
        compute, [](void* to) { ++*static_cast<std::atomic<int>*>(to); }, &notices);
  }
  bench.streams->drain(compute);
  while (failures == 0) std::this_thread::yield();
  bench.streams->on_failure({});
  CHECK(bench.end() == "");
  CHECK(failures == 1);
  CHECK(notices <= 5);
  CHECK(bench.number(0) == 5);
}

TEST_CASE("Streams: every rule that a caller breaks is told", "[streams]") {
  Bench bench;
  ThreadStreams& streams = *bench.streams;

  SECTION("a wait for a mark that nobody recorded") {
    streams.wait(h2d, 7);
    CHECK(says(bench.end(), "the mark was recorded in this run"));
  }
  SECTION("a wait for a mark of the run before") {
    bench.run(compute, 7, bench.work(0));
    streams.drain(compute);
    streams.set_clock();
    streams.wait(h2d, 7);
    CHECK(says(bench.end(), "the mark was recorded in this run"));
  }
  SECTION("a lane that two threads issue to") {
    bench.run(compute, 0, bench.work(0));
    std::thread([&] { bench.run(compute, 1, bench.work(0)); }).join();
    CHECK(says(bench.end(), "come from one thread"));
  }
  SECTION("a notice that calls the device") {
    streams.notify(
        compute, [](void* to) { static_cast<ThreadStreams*>(to)->drain(h2d); }, &streams);
    streams.drain(compute);
    CHECK(says(bench.end(), "a notice does not call the device"));
  }
  SECTION("a notice that throws") {
    streams.notify(
        compute, [](void*) { throw 1; }, nullptr);
    CHECK(says(bench.end(), "a notice threw"));
  }
  SECTION("a mark that is used again before its times were read") {
    bench.run(compute, 0, bench.work(0));
    streams.drain(compute);
    bench.run(compute, 0, bench.work(0));
    CHECK(says(bench.end(), "the times of a mark are read before"));
  }
  SECTION("a fourth step while the first one is not collected") {
    for (std::size_t step = 0; step < 4; ++step)
      bench.run(compute, step, bench.work(0), static_cast<int>(step));
    CHECK(says(bench.end(), "step 3 is issued when step 0 was collected"));
  }
  SECTION("times of work that was never issued") {
    streams.times(5);
    CHECK(says(bench.end(), "the marked work is done"));
  }
  SECTION("a clock that is set while something runs") {
    bench.streams->begin(compute, 0, task_of(compute), 0);
    streams.set_clock();
    bench.streams->end(compute, 0);
    CHECK(says(bench.end(), "set_clock: not so: nothing runs"));
  }
  SECTION("an operand that lies nowhere") {
    std::int64_t elsewhere = 0;
    StreamWork work = bench.work(0);
    work.operands.input = reinterpret_cast<std::byte*>(&elsewhere);
    bench.run(compute, 0, work);
    CHECK(says(bench.end(), "in the arenas or in registered memory"));
  }
  SECTION("an operand in memory that was given back") {
    std::vector<std::byte> more(64);
    auto registration = streams.register_memory(more);
    StreamWork work = bench.work(0);
    work.operands.input = more.data();
    bench.run(compute, 0, work);
    streams.drain(compute);
    CHECK(bench.record.broken() == "");
    registration.reset();
    bench.run(compute, 1, work);
    CHECK(says(bench.end(), "in the arenas or in registered memory"));
  }
  SECTION("work of another task than the one that was begun") {
    StreamWork work = bench.work(0);
    work.task.kind = TaskKind::backward;
    bench.run(compute, 0, work);
    CHECK(says(bench.end(), "that of the task that was begun"));
  }
  SECTION("a wait, and a notice, inside a graph") {
    bench.run(h2d, 50, bench.work(1, h2d));
    streams.begin_graph(compute);
    streams.wait(compute, 50);
    streams.notify(
        compute, [](void*) {}, nullptr);
    const std::string broken = bench.end();
    CHECK(says(broken, "a graph waits for nothing outside"));
    CHECK(says(broken, "a graph holds no notice"));
  }
  SECTION("an exception that no device throws") {
    CHECK_THROWS_AS(streams.begin(Lane::cpu_optimizer, 0, task_of(compute), 0), std::logic_error);
  }
}

TEST_CASE("Streams: text and constants that change while work is to read them are told",
          "[streams]") {
  // The first piece of work waits, so that the others are still to be done.
  std::atomic<bool> changed{false};
  Bench bench({.seed = 1, .most_delay_us = 0, .call_at_work = 0, .call = [&] {
                 while (!changed) std::this_thread::yield();
               }});
  ThreadStreams& streams = *bench.streams;
  std::vector<std::byte> memory(4096);
  auto registration = streams.register_memory(memory);
  auto* const constants = reinterpret_cast<AdamConstants*>(memory.data());
  const std::int32_t tokens[] = {1, 2}, others[] = {3, 4};
  std::byte* const text = memory.data() + 1024;
  streams.stage_text({tokens, tokens, nullptr, 1, 2}, text);
  CHECK(ThreadStreams::text_of(text).targets[1] == 2);
  StreamWork update = bench.work(0), forward = bench.work(1);
  update.operands.adam_constants = constants;
  forward.operands.text = text;
  bench.run(compute, 0, bench.work(2));
  bench.run(compute, 1, update);
  bench.run(compute, 2, forward);
  SECTION("nothing changes") {
    changed = true;
    streams.drain(compute);
    CHECK(bench.record.broken() == "");
  }
  SECTION("the constants of AdamW") {
    constants->step_size = 1;
    changed = true;
    streams.drain(compute);
    CHECK(says(bench.record.broken(), "the constants of AdamW stay"));
  }
  SECTION("text") {
    streams.stage_text({others, tokens, nullptr, 1, 2}, text);
    changed = true;
    streams.drain(compute);
    CHECK(says(bench.record.broken(), "is still to read the text that is overwritten"));
    CHECK(says(bench.record.broken(), "text stays as it was"));
  }
  streams.drain(compute);
  registration.reset();
}

}  // namespace spillway::test
