#include "exec/io/io_threads.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "base/errors.hpp"

namespace spillway {

namespace {

// With a queue of 32, half as many reach 0.88 of io_uring's writes, twice as many nothing more
// (docs/speed.md).
constexpr unsigned most_threads = 16;

// First in, first out, with room for a number of items that is known at the start.
template <class Item>
class Queue {
 public:
  explicit Queue(std::size_t most) : items_(most) {}
  std::size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  void push(const Item& item) {
    SPILLWAY_ASSERT(size_ < items_.size());
    items_[(first_ + size_++) % items_.size()] = item;
  }
  Item pop() {
    SPILLWAY_ASSERT(size_ > 0);
    --size_;
    return items_[std::exchange(first_, (first_ + 1) % items_.size())];
  }

 private:
  std::vector<Item> items_;
  std::size_t first_ = 0, size_ = 0;
};

class IoThreads final : public IoRing {
 public:
  IoThreads(IoCall call, unsigned depth)
      : call_(std::move(call)), depth_(depth), staged_(depth), waiting_(depth), finished_(depth) {
    SPILLWAY_ASSERT(depth > 0);
    start(io_threads_of(depth));
  }
  ~IoThreads() override { end(); }
  IoThreads(const IoThreads&) = delete;
  IoThreads& operator=(const IoThreads&) = delete;

  void queue(const IoRequest& request) override {
    SPILLWAY_ASSERT(outstanding_ < depth_, "more requests queued than the ring is deep");
    ++outstanding_;
    staged_.push(request);
  }
  int submit_and_wait() override;
  void submit_now() override { hand_over(); }
  std::size_t reap(std::span<IoCompletion> completions) override;
  void register_memory(std::span<std::byte>) override {}  // pread and pwrite take any memory
  const std::vector<std::string>& warnings() const override { return warnings_; }

 private:
  void start(unsigned count);
  void end();
  void work();
  int hand_over();

  const IoCall call_;
  const std::size_t depth_;
  // Of the thread that uses the ring.
  Queue<IoRequest> staged_;      // queued, and not handed over yet
  std::size_t outstanding_ = 0;  // queued, and not reaped yet
  std::vector<std::string> warnings_;
  std::vector<std::thread> threads_;

  std::mutex mutex_;  // guards what follows
  std::condition_variable work_comes_, work_is_done_;
  Queue<IoRequest> waiting_;
  Queue<IoCompletion> finished_;
  std::size_t idle_ = 0;  // threads that wait for work
  bool user_waits_ = false, ending_ = false;
};

void IoThreads::start(unsigned count) {
  threads_.reserve(count);
  try {
    while (threads_.size() < count) threads_.emplace_back([this] { work(); });
  } catch (const std::system_error& error) {
    warnings_.push_back(fmt::format(
        "only {} of {} threads for reads and writes could be started ({}), so that transfers may "
        "be "
        "slower: raise the limit of processes and threads (`ulimit -u`, or the container's pids "
        "limit)",
        threads_.size(), count, error.code().message()));
  }
}

void IoThreads::end() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  work_comes_.notify_all();
  for (std::thread& thread : threads_) thread.join();
  while (!waiting_.empty()) call_(waiting_.pop());  // where there are no threads
}

void IoThreads::work() {
  std::unique_lock lock(mutex_);
  while (true) {
    while (waiting_.empty() && !ending_) {
      ++idle_;
      work_comes_.wait(lock);
      --idle_;
    }
    if (waiting_.empty()) return;  // the memory of what was handed over may be gone after the end
    const IoRequest request = waiting_.pop();
    lock.unlock();
    const std::int32_t result = call_(request);
    lock.lock();
    finished_.push({request.tag, result});
    if (std::exchange(user_waits_, false)) work_is_done_.notify_one();
  }
}

// Returns how many requests the threads were given.
int IoThreads::hand_over() {
  const std::size_t count = staged_.size();
  if (count == 0) return 0;
  std::size_t to_wake = 0;
  {
    const std::lock_guard lock(mutex_);
    while (!staged_.empty()) waiting_.push(staged_.pop());
    to_wake = std::min(count, idle_);
  }
  for (std::size_t i = 0; i < to_wake; ++i) work_comes_.notify_one();
  return static_cast<int>(count);
}

int IoThreads::submit_and_wait() {
  const int count = hand_over();
  if (outstanding_ == 0) return count;
  std::unique_lock lock(mutex_);
  if (threads_.empty()) {  // none could be started: the ring's user does one request itself
    if (!finished_.empty()) return count;
    const IoRequest request = waiting_.pop();
    finished_.push({request.tag, call_(request)});
    return count;
  }
  while (finished_.empty()) {
    user_waits_ = true;
    work_is_done_.wait(lock);
  }
  user_waits_ = false;
  return count;
}

std::size_t IoThreads::reap(std::span<IoCompletion> completions) {
  std::size_t count = 0;
  {
    const std::lock_guard lock(mutex_);
    while (count < completions.size() && !finished_.empty()) completions[count++] = finished_.pop();
  }
  outstanding_ -= count;
  return count;
}

std::int32_t call_kernel(int file, const IoRequest& request) {
  const auto offset = static_cast<off_t>(request.file_offset);
  ssize_t result = -1;
  switch (request.kind) {
    case IoKind::read:
      result = ::pread(file, request.memory, request.bytes, offset);
      break;
    case IoKind::write:
      result = ::pwrite(file, request.memory, request.bytes, offset);
      break;
    case IoKind::sync:
      result = ::fdatasync(file);
      break;
  }
  return static_cast<std::int32_t>(result < 0 ? -errno : result);
}

}  // namespace

unsigned io_threads_of(unsigned depth) { return std::min(depth, most_threads); }

std::unique_ptr<IoRing> make_io_threads(std::span<const int> files, unsigned depth) {
  return make_io_threads(
      [files = std::vector<int>(files.begin(), files.end())](const IoRequest& request) {
        return call_kernel(files[request.file], request);
      },
      depth);
}

std::unique_ptr<IoRing> make_io_threads(IoCall call, unsigned depth) {
  return std::make_unique<IoThreads>(std::move(call), depth);
}

}  // namespace spillway
