// A sequence whose items are emitted some places ahead of their use: prefetching, written once.
#pragma once

#include <algorithm>
#include <cstddef>
#include <functional>
#include <utility>
#include <vector>

namespace spillway {

template <class Item>
class LookAhead {
 public:
  // `emit(k)` emits the tasks of item k; it is called once per item, in order.
  LookAhead(std::size_t count, std::size_t ahead, std::function<Item(std::size_t)> emit)
      : count_(count), ahead_(ahead), emit_(std::move(emit)) {}

  // Item k, after having emitted everything up to k + ahead.
  Item at(std::size_t k) { return at(k, ahead_); }
  // The same with another distance for this one.
  Item at(std::size_t k, std::size_t ahead) {
    const std::size_t until = std::min(k + ahead + 1, count_);
    while (items_.size() < until) items_.push_back(emit_(items_.size()));
    return items_[k];
  }

 private:
  std::size_t count_;
  std::size_t ahead_;
  std::function<Item(std::size_t)> emit_;
  std::vector<Item> items_;
};

}  // namespace spillway
