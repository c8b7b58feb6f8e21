// A sum of squares that does not depend on the order in which its terms are added, nor on the
// partial sums that it was put together from: a number in fixed point, wide enough for every square
// of a float and for sums of more of them than there are.
#pragma once

#include <array>
#include <cstdint>

namespace spillway {

class ExactSum {
 public:
  // A term of at least 0. What is not finite is kept as such; bits below 2^-320 are left out: sums
  // of squares of floats have none.
  void add(double term);
  void add(const ExactSum& more);

  // The nearest double, to one in its last digits: a function of the sum alone.
  double value() const;
  bool is_zero() const;

 private:
  static constexpr int digit_bits = 32, lowest_bit = -320;
  // Number i counts 2^(lowest_bit + 32 i). Sums of up to 2^30 terms need no carry in between.
  std::array<std::int64_t, 22> digits_{};
  double not_finite_ = 0;
};

}  // namespace spillway
