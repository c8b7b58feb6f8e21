// Ranks as threads of a test: a transport between them, and a way to run each.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <tuple>
#include <vector>

#include "exec/ranks/rank_team.hpp"

namespace spillway::test {

// Messages on their way, by channel, sender and receiver.
class LocalNet {
 public:
  explicit LocalNet(int size) : size_(size) {}
  int size() const { return size_; }

  void send(int channel, int from, int to, std::vector<std::byte> bytes) {
    const std::lock_guard lock(mutex_);
    queues_[{channel, from, to}].push_back(std::move(bytes));
  }
  bool take(int channel, int from, int to, std::span<std::byte> into) {
    const std::lock_guard lock(mutex_);
    auto& queue = queues_[{channel, from, to}];
    if (queue.empty()) return false;
    if (queue.front().size() != into.size())
      throw std::logic_error("ranks do not agree on the bytes of a message");
    std::copy(queue.front().begin(), queue.front().end(), into.begin());
    queue.pop_front();
    return true;
  }

 private:
  int size_;
  std::mutex mutex_;
  std::map<std::tuple<int, int, int>, std::deque<std::vector<std::byte>>> queues_;
};

class LocalTransport : public RankTransport {
 public:
  LocalTransport(LocalNet& net, int rank) : net_(net), rank_(rank) {}
  int rank() const override { return rank_; }
  int size() const override { return net_.size(); }
  std::string library() const override { return "threads"; }
  OnHost on_host() const override { return {rank_, net_.size()}; }
  void exchange(RankChannel channel, std::span<const Outgoing> outgoing,
                std::span<const Incoming> incoming, const std::function<void()>& waiting) override {
    const int at = static_cast<int>(messages_of(channel));
    for (const Outgoing& one : outgoing)
      net_.send(at, rank_, one.to, {one.data, one.data + one.bytes});
    for (const Incoming& one : incoming) {
      while (!net_.take(at, one.from, rank_, {one.data, one.bytes})) {
        waiting();
        std::this_thread::sleep_for(std::chrono::microseconds(50));
      }
    }
  }
  void tell(int to, std::span<const std::byte> note) override {
    if (!is_silent) net_.send(notes, rank_, to, {note.begin(), note.end()});
  }
  bool hear(int from, std::span<std::byte> note) override {
    return net_.take(notes, from, rank_, note);
  }
  void finish() override { ++finished; }

  std::atomic<bool> is_silent{false};  // it hangs, as far as the others can tell
  static inline std::atomic<int> finished{0};

 private:
  static constexpr int notes = static_cast<int>(RankChannel::notes);
  LocalNet& net_;
  int rank_;
};

// Bytes of parts of a whole: a half, a quarter and so on, so that some have fewer pieces than
// others.
inline std::vector<std::uint64_t> unequal_parts(int ranks, std::size_t count, std::uint64_t width) {
  std::vector<std::uint64_t> parts(static_cast<std::size_t>(ranks), 0);
  std::uint64_t left = count;
  for (std::size_t r = 0; r + 1 < parts.size(); ++r) {
    parts[r] = left / 2 * width;
    left -= left / 2;
  }
  parts.back() = left * width;
  return parts;
}

// Runs `body` as each of `size` ranks. Rethrows what the first of them threw.
inline void run_ranks(int size, const std::function<void(RankTeam&)>& body, RankTimes times = {}) {
  LocalNet net(size);
  std::vector<std::exception_ptr> errors(static_cast<std::size_t>(size));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        RankTeam team(std::make_unique<LocalTransport>(net, rank), times);
        try {
          body(team);
        } catch (...) {
          team.fail(std::current_exception());
          throw;
        }
      } catch (...) {
        errors[static_cast<std::size_t>(rank)] = std::current_exception();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::exception_ptr& error : errors)
    if (error) std::rethrow_exception(error);
}

}  // namespace spillway::test
