#include "tests/exec/streams/thread_streams.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "base/errors.hpp"
#include "exec/run/stream_plan.hpp"

namespace spillway::test {

namespace {

const void* this_thread() {
  thread_local const char one = 0;
  return &one;
}

// Whether `thread` is this thread; the first one to ask is.
bool is_or_becomes_this(std::atomic<const void*>& thread) {
  const void* before = nullptr;
  return thread.compare_exchange_strong(before, this_thread(), std::memory_order_relaxed) ||
         before == this_thread();
}

}  // namespace

ThreadStreams::ThreadStreams(StreamRecord& record, StreamOptions options,
                             std::function<void(const StreamWork&)> perform,
                             std::array<std::span<std::byte>, 2> arenas)
    : record_(record),
      options_(std::move(options)),
      perform_(std::move(perform)),
      arenas_(arenas),
      caller_pauses_(~options_.seed, options_.most_delay_us),
      shared_{record, [this](const StreamWork& work) { this->perform(work); }, {}} {
  for (int lane = 0; lane < lane_count; ++lane) {
    if (!lanes().contains(static_cast<Lane>(lane))) continue;
    const std::uint64_t seed = options_.seed * lane_count + static_cast<std::uint64_t>(lane);
    auto& one = issuers_[static_cast<std::size_t>(lane)];
    one = std::make_unique<Issuer>(~seed, options_.most_delay_us);
    one->lane = std::make_unique<ThreadLane>(shared_, seed, options_.most_delay_us);
  }
}

ThreadStreams::~ThreadStreams() {
  require(!listener_, "~Streams", "whoever listens for failures has gone");
  require(registered_.empty(), "~Streams", "all registered memory was given back");
  for (auto& one : issuers_) one.reset();
  if (failure_.joinable()) failure_.join();
}

void ThreadStreams::require(bool kept, const char* call, const std::string& rule) {
  if (!kept) record_.broken(fmt::format("{}: not so: {}", call, rule));
}

ThreadStreams::Issuer& ThreadStreams::enter(Lane lane, const char* call) {
  if (!lanes().contains(lane))
    throw std::logic_error(fmt::format("{}: {} is no stream", call, to_string(lane)));
  require(!ThreadLane::in_notice(), call, "a notice does not call the device");
  Issuer& from = issuer(lane);
  require(is_or_becomes_this(from.thread), call,
          fmt::format("calls that name {} come from one thread", to_string(lane)));
  from.pauses.pause();
  count_call(call);
  return from;
}

void ThreadStreams::count_call(const char* call) {
  if (record_.calls.fetch_add(1, std::memory_order_relaxed) == options_.fail_at_call)
    throw MachineError(fmt::format("{} failed, as the test wants it to", call), "none");
}

void ThreadStreams::require_nothing_runs(const char* call) {
  require(!ThreadLane::in_notice(), call, "a notice does not call the device");
  for (const auto& one : issuers_) {
    if (!one) continue;
    require(one->lane->is_idle() && !one->open && !one->capturing, call, "nothing runs");
  }
}

StreamMark& ThreadStreams::mark(std::size_t index, const char* call) {
  require(index < marks_.size(), call, "the mark was reserved");
  return marks_.at(index);
}

void ThreadStreams::reserve_marks(std::size_t count) {
  require_nothing_runs("reserve_marks");
  while (marks_.size() < count) marks_.emplace_back();
  step_of_mark_.resize(marks_.size(), -1);
}

void ThreadStreams::check_ahead(int step) {
  // Other lanes may be a few steps ahead of this one: what is further back is not told apart.
  const auto slots = static_cast<std::size_t>(StreamPlan::slots);
  for (std::size_t back = slots; back < steps_kept / 2; ++back) {
    if (static_cast<std::size_t>(step) < back) continue;
    const std::size_t before = (static_cast<std::size_t>(step) - back) % steps_kept;
    require(unread_[before].load(std::memory_order_relaxed) == 0, "begin",
            fmt::format("step {} is issued when step {} was collected", step,
                        static_cast<std::size_t>(step) - back));
  }
}

void ThreadStreams::begin_mark(Issuer& from, std::size_t index) {
  StreamMark& one = mark(index, "begin");
  require(one.times_read, "begin", "the times of a mark are read before it is used again");
  require(one.done.load(std::memory_order_relaxed) == one.recorded.load(std::memory_order_relaxed),
          "begin", "a mark is done before it is used again");
  one.times_read = false;
  StreamOperation operation;
  operation.kind = StreamOperation::Kind::begin;
  operation.mark = &one;
  from.lane->issue(std::move(operation));
}

void ThreadStreams::end_mark(Issuer& from, std::size_t index) {
  StreamMark& one = mark(index, "end");
  StreamOperation operation;
  operation.kind = StreamOperation::Kind::end;
  operation.mark = &one;
  operation.count = one.recorded.fetch_add(1, std::memory_order_relaxed) + 1;
  from.lane->issue(std::move(operation));
}

void ThreadStreams::begin(Lane lane, std::size_t index, const Task& task, TaskId) {
  Issuer& from = enter(lane, "begin");
  require(!from.open, "begin", "the lane's task before was ended");
  require(task.lane == lane, "begin", "the task is the lane's");
  from.open = index;
  from.kind = task.kind;
  if (from.capturing) {
    from.capturing->push_back({StreamOperation::Kind::begin, index, {}});
    return;
  }
  check_ahead(task.step);
  unread_[static_cast<std::size_t>(task.step) % steps_kept].fetch_add(1, std::memory_order_relaxed);
  begin_mark(from, index);
  step_of_mark_[index] = task.step;
}

void ThreadStreams::end(Lane lane, std::size_t index) {
  Issuer& from = enter(lane, "end");
  require(from.open == index, "end", "the task that was begun is the one that ends");
  from.open.reset();
  if (from.capturing) {
    from.capturing->push_back({StreamOperation::Kind::end, index, {}});
  } else {
    end_mark(from, index);
  }
}

void ThreadStreams::wait(Lane lane, std::size_t index) {
  Issuer& from = enter(lane, "wait");
  require(!from.capturing, "wait", "a graph waits for nothing outside of it");
  require(!from.open, "wait", "a lane waits between tasks");
  record_.waits.fetch_add(1, std::memory_order_relaxed);
  StreamMark& one = mark(index, "wait");
  StreamOperation operation;
  operation.kind = StreamOperation::Kind::wait;
  operation.mark = &one;
  operation.count = one.recorded.load(std::memory_order_relaxed);
  require(operation.count > 0, "wait", "the mark was recorded in this run");
  from.lane->issue(std::move(operation));
}

void ThreadStreams::notify(Lane lane, void (*function)(void*), void* argument) {
  Issuer& from = enter(lane, "notify");
  require(!from.capturing, "notify", "a graph holds no notice");
  StreamOperation operation;
  operation.kind = StreamOperation::Kind::notice;
  operation.function = function;
  operation.argument = argument;
  from.lane->issue(std::move(operation));
}

void ThreadStreams::drain(Lane lane) noexcept {
  require(!ThreadLane::in_notice(), "drain", "a notice does not call the device");
  Issuer& from = issuer(lane);
  require(is_or_becomes_this(from.thread), "drain", "calls that name a lane come from one thread");
  from.open.reset();
  from.capturing.reset();
  from.lane->drain();
}

void ThreadStreams::set_clock() {
  require_nothing_runs("set_clock");
  count_call("set_clock");
  // The host's clock is the device's. A run begins: nothing is recorded in it yet.
  for (StreamMark& one : marks_) {
    one.recorded.store(0, std::memory_order_relaxed);
    one.done.store(0, std::memory_order_relaxed);
    one.times_read = true;
  }
  for (auto& count : unread_) count.store(0, std::memory_order_relaxed);
  reader_.store(nullptr, std::memory_order_relaxed);
}

Streams::Times ThreadStreams::times(std::size_t index) {
  require(!ThreadLane::in_notice(), "times", "a notice does not call the device");
  require(is_or_becomes_this(reader_), "times", "one thread reads times");
  if (caller_pauses_.one_in(8)) caller_pauses_.pause();
  count_call("times");
  StreamMark& one = mark(index, "times");
  const std::uint32_t recorded = one.recorded.load(std::memory_order_relaxed);
  require(recorded > 0 && one.done.load(std::memory_order_relaxed) == recorded, "times",
          "the marked work is done");
  require(!one.times_read, "times", "times are read once");
  one.times_read = true;
  if (const int step = step_of_mark_[index]; step >= 0)
    unread_[static_cast<std::size_t>(step) % steps_kept].fetch_sub(1, std::memory_order_relaxed);
  return {one.start_ns, one.end_ns};
}

void ThreadStreams::begin_graph(Lane lane) {
  Issuer& from = enter(lane, "begin_graph");
  require(!from.capturing && !from.open, "begin_graph", "no graph and no task is open");
  from.capturing.emplace();
}

std::size_t ThreadStreams::end_graph(Lane lane) {
  Issuer& from = enter(lane, "end_graph");
  require(from.capturing && !from.open, "end_graph", "a graph is open, and no task");
  graphs_.push_back(std::move(from.capturing).value_or(Graph{}));
  from.capturing.reset();
  record_.graphs.fetch_add(1, std::memory_order_relaxed);
  return graphs_.size() - 1;
}

void ThreadStreams::replay(Lane lane, std::size_t graph) {
  Issuer& from = enter(lane, "replay");
  require(!from.capturing && !from.open, "replay", "no graph and no task is open");
  record_.replays.fetch_add(1, std::memory_order_relaxed);
  for (const Recorded& one : graphs_.at(graph)) {
    if (one.kind == StreamOperation::Kind::begin) {
      begin_mark(from, one.mark);
      step_of_mark_[one.mark] = -1;
    } else if (one.kind == StreamOperation::Kind::end) {
      end_mark(from, one.mark);
    } else {
      push(from, *one.work);
    }
  }
}

void ThreadStreams::issue(Lane lane, StreamWork work) {
  Issuer& from = enter(lane, "work");
  require(from.open.has_value() && (work.to != nullptr || from.kind == work.task.kind), "work",
          "it is that of the task that was begun");
  check_places(work);
  if (from.capturing) {
    from.capturing->push_back({StreamOperation::Kind::work, 0, std::move(work)});
  } else {
    push(from, std::move(work));
  }
}

// What the work reads of the issuer's is taken down, to see that it stays like that.
void ThreadStreams::push(Issuer& from, StreamWork work) {
  if (work.operands.adam_constants != nullptr) work.adam_constants = *work.operands.adam_constants;
  if (work.operands.text != nullptr) {
    work.staged = staged(work.operands.text);
    work.staged->readers.fetch_add(1, std::memory_order_relaxed);
    const MicroBatchText text = text_of(work.operands.text);
    const std::size_t bytes = text_bytes(text.rows(), text.starts != nullptr);
    work.text.assign(work.operands.text, work.operands.text + bytes);
  }
  StreamOperation operation;
  operation.kind = StreamOperation::Kind::work;
  operation.work = std::make_unique<StreamWork>(std::move(work));
  from.lane->issue(std::move(operation));
}

void ThreadStreams::check_places(const StreamWork& work) {
  const auto is_inside = [](const std::span<std::byte> memory, const void* address) {
    const auto* const at = static_cast<const std::byte*>(address);
    return at >= memory.data() && at < memory.data() + memory.size();
  };
  const Operands& o = work.operands;
  const void* const places[] = {work.to,
                                work.from,
                                o.parameters,
                                o.gradient,
                                o.head_gradient,
                                o.optimizer_state,
                                o.input,
                                o.output,
                                o.saved,
                                o.activation_gradient,
                                o.scratch,
                                o.text,
                                o.losses,
                                o.adam_constants,
                                o.norms.empty() ? nullptr : o.norms.data(),
                                o.gradient_square_sum};
  for (const void* const place : places) {
    const auto inside = [&](std::span<std::byte> memory) { return is_inside(memory, place); };
    require(place == nullptr || std::any_of(arenas_.begin(), arenas_.end(), inside) ||
                std::any_of(registered_.begin(), registered_.end(), inside),
            "work", "operands lie in the arenas or in registered memory");
  }
  require(o.tokens == nullptr && o.targets == nullptr && o.starts == nullptr, "work",
          "text comes from stage_text()");
}

// Work that a lane's thread does now.
void ThreadStreams::perform(const StreamWork& work) {
  const std::int64_t number = record_.works.fetch_add(1, std::memory_order_relaxed);
  if (number == options_.call_at_work && options_.call) options_.call();
  if (number == options_.fail_at_work) fail();
  const Operands& o = work.operands;
  const auto check = [&](const char* when) {
    require(o.adam_constants == nullptr ||
                std::memcmp(o.adam_constants, &work.adam_constants, sizeof(AdamConstants)) == 0,
            when, "the constants of AdamW stay as they were when the update was issued");
    require(o.text == nullptr || std::equal(work.text.begin(), work.text.end(), o.text), when,
            "text stays as it was when the task was issued");
  };
  if (!shared_.failed.load(std::memory_order_relaxed)) {
    check("before work");
    try {
      perform_(work);
    } catch (const std::exception& error) {
      record_.broken(fmt::format("work threw an exception: {}", error.what()));
    }
    check("after work");
  }
  if (work.staged != nullptr) work.staged->readers.fetch_sub(1, std::memory_order_relaxed);
}

void ThreadStreams::fail() {
  if (shared_.failed.exchange(true, std::memory_order_relaxed)) return;
  failure_ = std::thread([this] {
    Pauses(options_.seed, 10 * options_.most_delay_us).pause();
    const std::lock_guard lock(listener_mutex_);
    if (!listener_) return;
    std::exchange(listener_, {})(std::make_exception_ptr(
        MachineError("the device failed, as the test wants it to", "none")));
  });
}

std::size_t ThreadStreams::text_bytes(std::int64_t rows, bool has_borders) const {
  return sizeof(MicroBatchText) +
         (has_borders ? 3 : 2) * static_cast<std::size_t>(rows) * sizeof(std::int32_t);
}

MicroBatchText ThreadStreams::text_of(const std::byte* text) {
  MicroBatchText of;
  std::memcpy(&of, text, sizeof of);
  of.tokens = reinterpret_cast<const std::int32_t*>(text + sizeof of);
  of.targets = of.tokens + of.rows();
  if (of.starts != nullptr) of.starts = of.targets + of.rows();
  return of;
}

// Only whoever issues the tasks that read text asks.
StagedText* ThreadStreams::staged(const std::byte* text) {
  const auto found = std::find_if(texts_.begin(), texts_.end(),
                                  [&](const StagedText& one) { return one.where == text; });
  if (found != texts_.end()) return &*found;
  texts_.emplace_back().where = text;
  return &texts_.back();
}

void ThreadStreams::stage_text(const MicroBatchText& text, std::byte* to) {
  enter(Lane::gpu_compute, "stage_text");
  require(staged(to)->readers.load(std::memory_order_relaxed) == 0, "stage_text",
          "nothing that was issued is still to read the text that is overwritten");
  const std::size_t bytes = static_cast<std::size_t>(text.rows()) * sizeof(std::int32_t);
  std::memcpy(to, &text, sizeof text);
  to += sizeof text;
  for (const std::int32_t* const from : {text.tokens, text.targets, text.starts}) {
    if (from == nullptr) continue;
    std::memcpy(to, from, bytes);
    to += bytes;
  }
}

std::shared_ptr<void> ThreadStreams::register_memory(std::span<std::byte> memory) {
  require_nothing_runs("register_memory");
  registered_.push_back(memory);
  return {memory.data(), [this](void* data) {
            require_nothing_runs("giving registered memory back");
            std::erase_if(registered_, [&](const auto& one) { return one.data() == data; });
          }};
}

void ThreadStreams::on_failure(std::function<void(std::exception_ptr)> listener) {
  require(!ThreadLane::in_notice(), "on_failure", "a notice does not call the device");
  const std::lock_guard lock(listener_mutex_);
  listener_ = std::move(listener);
  // An executor begins, with threads of its own, or ends: what is drained then is by its caller.
  for (auto& one : issuers_) {
    if (one) one->thread.store(nullptr, std::memory_order_relaxed);
  }
}

}  // namespace spillway::test
