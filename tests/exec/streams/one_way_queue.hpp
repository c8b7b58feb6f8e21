// A queue from one thread to another in which order flows one way only: what the producer did
// before push() happens before what the consumer does after take(), and nothing of the consumer's
// happens before anything of the producer's, however long ago it was. So ThreadSanitizer still sees
// that the two are unordered where only luck and time kept them apart. (A mutex, a ring that is
// reused, or std::atomic::wait() with its table of waiters would order them both ways.)
#pragma once

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <optional>
#include <utility>

namespace spillway::test {

// Sleeping and waking that orders nothing by itself.
inline void sleep_while(std::atomic<std::uint32_t>& word, std::uint32_t value) {
  ::syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, value, nullptr, nullptr, 0);
}
inline void wake_sleepers(std::atomic<std::uint32_t>& word) {
  ::syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, 1 << 30, nullptr, nullptr, 0);
}
// Whoever acquires sees what was done before.
inline void advance(std::atomic<std::uint32_t>& word) {
  word.fetch_add(1, std::memory_order_release);
  wake_sleepers(word);
}
// Blocks until the word, which only grows, is at least `value`.
inline void wait_until_at_least(std::atomic<std::uint32_t>& word, std::uint32_t value) {
  while (true) {
    const std::uint32_t seen = word.load(std::memory_order_acquire);
    if (seen >= value) return;
    sleep_while(word, seen);
  }
}

template <class T>
class OneWayQueue {
 public:
  OneWayQueue() : first_(new Node), last_(first_) {}
  ~OneWayQueue() {
    while (first_ != nullptr) delete std::exchange(first_, first_->next.load());
  }
  OneWayQueue(const OneWayQueue&) = delete;
  OneWayQueue& operator=(const OneWayQueue&) = delete;

  // -- the producer --
  void push(T value) {
    Node* const node = new Node;
    node->value = std::move(value);
    last_->next.store(node, std::memory_order_release);
    last_ = node;
    advance(pushed_);
  }
  // take() returns nothing once all is taken.
  void close() {
    closed_.store(true, std::memory_order_release);
    advance(pushed_);
  }

  // -- the consumer --
  std::optional<T> take() {
    while (true) {
      const std::uint32_t seen = pushed_.load(std::memory_order_acquire);
      if (Node* const next = first_->next.load(std::memory_order_acquire)) {
        delete std::exchange(first_, next);
        return std::move(next->value);
      }
      if (closed_.load(std::memory_order_acquire)) return std::nullopt;
      sleep_while(pushed_, seen);
    }
  }
  // What was taken last is dealt with.
  void finish() { advance(finished_); }

  // -- any thread --
  std::uint32_t pushed() const {
    return pushed_.load(std::memory_order_relaxed);
  }  // close() counts
  // Blocks until all that was pushed is dealt with, which then happened before.
  void wait_until_finished() { wait_until_at_least(finished_, pushed()); }

 private:
  struct Node {
    T value{};
    std::atomic<Node*> next{nullptr};
  };
  Node *first_, *last_;  // the consumer's: the one taken last; the producer's
  std::atomic<std::uint32_t> pushed_{0}, finished_{0};
  std::atomic<bool> closed_{false};
};

}  // namespace spillway::test
