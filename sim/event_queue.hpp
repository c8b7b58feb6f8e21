// What the engine picks its next event from; not for use outside sim/.
//
// Pending keeps things by key, the smallest first. Earliest keeps one time for each of a fixed
// number of sources, and the smallest of them.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

namespace spillway {

// What happens to the activity when the key is reached.
enum class Next : std::uint32_t { end, work };

// A binary heap. The order of equal keys is not defined.
class Pending {
 public:
  struct Item {
    double key = 0;
    std::uint32_t activity = 0;
    Next next = Next::end;
  };

  bool empty() const { return size() == 0; }
  std::size_t size() const { return items_.size() - (hole_ ? 1 : 0); }

  // The smallest; there must be one.
  const Item& top() {
    close();
    return items_.front();
  }
  double first_key() {
    close();
    return items_.empty() ? std::numeric_limits<double>::infinity() : items_.front().key;
  }

  void push(Item item) {
    if (hole_) {  // in place of what was just taken: one walk instead of two
      hole_ = false;
      sink(item);
      return;
    }
    std::size_t at = items_.size();
    items_.push_back(item);
    while (at > 0 && item.key < items_[(at - 1) / 2].key) {
      items_[at] = items_[(at - 1) / 2];
      at = (at - 1) / 2;
      ++steps_;
    }
    items_[at] = item;
  }

  // Takes the smallest; there must be one. Closing the gap waits: a push may fill it.
  Item pop() {
    close();
    hole_ = true;
    return items_.front();
  }

  // Subtracts from every key.
  void rebase(double by) {
    close();
    steps_ += items_.size();
    for (Item& item : items_) item.key -= by;
    // Rounding may have made keys equal, never exchanged them: the heap is still one.
  }

  std::uint64_t steps() const { return steps_; }  // moves within the heap: the work done so far
  std::size_t memory_bytes() const { return items_.capacity() * sizeof(Item); }

 private:
  void close() {
    if (!hole_) return;
    hole_ = false;
    const Item last = items_.back();
    items_.pop_back();
    if (!items_.empty()) sink(last);
  }

  // Puts `item` where the root was.
  void sink(Item item) {
    std::size_t at = 0;
    const std::size_t count = items_.size();
    for (std::size_t child = 1; child < count; child = 2 * at + 1) {
      if (child + 1 < count) child += items_[child + 1].key < items_[child].key ? 1U : 0U;
      if (!(items_[child].key < item.key)) break;
      items_[at] = items_[child];
      at = child;
      ++steps_;
    }
    items_[at] = item;
  }

  std::vector<Item> items_;
  std::uint64_t steps_ = 0;
  bool hole_ = false;  // items_.front() has been taken
};

// A tournament over the sources: the earlier of each pair goes up.
class Earliest {
 public:
  static constexpr double never = std::numeric_limits<double>::infinity();

  explicit Earliest(std::size_t sources)
      : leaves_(std::bit_ceil(std::max<std::size_t>(sources, 1))), nodes_(2 * leaves_) {
    for (std::size_t leaf = 0; leaf < leaves_; ++leaf) nodes_[leaves_ + leaf].source = leaf;
    for (std::size_t node = leaves_ - 1; node > 0; --node) nodes_[node] = nodes_[2 * node];
  }

  std::size_t source() const { return nodes_[1].source; }
  double time() const { return nodes_[1].time; }

  // Has another source the same time?
  bool is_tie() const {
    for (std::size_t node = leaves_ + source(); node > 1; node /= 2) {
      if (nodes_[node ^ 1].time == time()) return true;
    }
    return false;
  }

  void set(std::size_t source, double time) {
    std::size_t node = leaves_ + source;
    if (nodes_[node].time == time) return;
    Node winner = {time, source};
    nodes_[node] = winner;
    for (; node > 1; node /= 2) {
      const Node other = nodes_[node ^ 1];
      const bool keeps = winner.time <= other.time;
      winner.time = keeps ? winner.time : other.time;
      winner.source = keeps ? winner.source : other.source;
      nodes_[node / 2] = winner;
    }
  }

  std::size_t memory_bytes() const { return nodes_.capacity() * sizeof(Node); }

 private:
  struct Node {
    double time = never;
    std::uint64_t source = 0;  // without padding: copies of all of it are cheap
  };

  std::size_t leaves_;
  std::vector<Node> nodes_;  // the children of n are 2n and 2n + 1; the leaves come last
};

}  // namespace spillway
