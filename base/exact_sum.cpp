#include "base/exact_sum.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

namespace spillway {

void ExactSum::add(double term) {
  if (!std::isfinite(term)) {
    not_finite_ += term;
    return;
  }
  int exponent = 0;
  constexpr int mantissa_bits = 53;
  auto mantissa =
      static_cast<std::uint64_t>(std::ldexp(std::frexp(term, &exponent), mantissa_bits));
  if (mantissa == 0) return;
  int place = exponent - mantissa_bits - lowest_bit;  // of its lowest bit
  if (place < 0) {
    mantissa = place > -mantissa_bits ? mantissa >> -place : 0;
    place = 0;
  }
  const auto at = static_cast<std::size_t>(place / digit_bits);
  if (at + 2 >= digits_.size()) {
    not_finite_ = std::numeric_limits<double>::infinity();
    return;
  }
  constexpr std::uint64_t mask = (std::uint64_t{1} << digit_bits) - 1;
  const int shift = place % digit_bits;
  const std::uint64_t low = (mantissa & mask) << shift, high = (mantissa >> digit_bits) << shift;
  digits_[at] += static_cast<std::int64_t>(low & mask);
  digits_[at + 1] += static_cast<std::int64_t>((low >> digit_bits) + (high & mask));
  digits_[at + 2] += static_cast<std::int64_t>(high >> digit_bits);
}

void ExactSum::add(const ExactSum& more) {
  for (std::size_t i = 0; i < digits_.size(); ++i) digits_[i] += more.digits_[i];
  not_finite_ += more.not_finite_;
}

double ExactSum::value() const {
  if (not_finite_ != 0) return not_finite_;
  double sum = 0;
  std::int64_t carry = 0;
  for (std::size_t i = 0; i < digits_.size(); ++i) {
    const std::int64_t digit = digits_[i] + carry;
    carry = digit >> digit_bits;
    sum += std::ldexp(static_cast<double>(digit - (carry << digit_bits)),
                      lowest_bit + digit_bits * static_cast<int>(i));
  }
  return sum;
}

bool ExactSum::is_zero() const {
  return not_finite_ == 0 &&
         std::all_of(digits_.begin(), digits_.end(), [](std::int64_t digit) { return digit == 0; });
}

}  // namespace spillway
