// Random choices for tests.
#pragma once

#include <cmath>
#include <cstdint>
#include <iterator>
#include <random>
#include <vector>

namespace spillway::test {

// The same choices for the same seed, on any machine.
class Dice {
 public:
  explicit Dice(std::uint64_t seed) : random_(seed) {}
  std::uint64_t below(std::uint64_t count) { return random_() % count; }
  int between(int low, int high) {
    return low + static_cast<int>(below(static_cast<std::uint64_t>(high - low + 1)));
  }
  double fraction() { return static_cast<double>(random_() >> 11) * 0x1p-53; }
  bool chance(double probability) { return fraction() < probability; }
  // A fraction that is often an extreme: none, all, little, half.
  double habit() {
    constexpr double extremes[] = {0, 1, 0.1, 0.5};
    return chance(0.6) ? extremes[below(std::size(extremes))] : fraction();
  }
  // Up to so many times more or less.
  double times(double most) { return std::pow(most, 2 * fraction() - 1); }
  template <class Item>
  Item& one_of(std::vector<Item>& items) {
    return items[below(items.size())];
  }

 private:
  std::mt19937_64 random_;
};

}  // namespace spillway::test
