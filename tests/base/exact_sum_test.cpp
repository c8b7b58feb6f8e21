// Sums of squares that do not depend on their order.
#include "base/exact_sum.hpp"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

using namespace spillway;

namespace {

ExactSum sum_of(const std::vector<double>& terms, std::size_t first, std::size_t end) {
  ExactSum sum;
  for (std::size_t i = first; i < end; ++i) sum.add(terms[i]);
  return sum;
}

}  // namespace

TEST_CASE("an exact sum is that of long double, in any order and from any partial sums") {
  std::mt19937_64 random(9);
  std::normal_distribution<float> normal;
  std::uniform_int_distribution<int> exponent(-120, 60);
  std::vector<double> terms(5000);
  for (double& term : terms) {
    const double x = static_cast<double>(std::ldexp(normal(random), exponent(random)));
    term = x * x;
  }
  long double expected = 0;
  for (const double term : terms) expected += static_cast<long double>(term);
  const double whole = sum_of(terms, 0, terms.size()).value();
  CHECK(std::abs(static_cast<long double>(whole) / expected - 1) < 1e-15L);
  for (int round = 0; round < 20; ++round) {
    std::shuffle(terms.begin(), terms.end(), random);
    ExactSum pieces;
    for (std::size_t first = 0; first < terms.size();) {
      const std::size_t end = std::min(terms.size(), first + 1 + random() % 900);
      pieces.add(sum_of(terms, first, end));
      first = end;
    }
    CHECK(pieces.value() == whole);
  }
}

TEST_CASE("an exact sum has room for the squares of all floats, and keeps what is not finite") {
  const double least = std::ldexp(1.0, -298);
  const double most = std::pow(static_cast<double>(std::numeric_limits<float>::max()), 2);
  ExactSum sum;
  CHECK(sum.is_zero());
  sum.add(least);
  CHECK(sum.value() == least);
  CHECK_FALSE(sum.is_zero());
  for (int i = 0; i < 1000; ++i) sum.add(most);
  CHECK(sum.value() == Approx(1000 * most).epsilon(1e-14));
  ExactSum other = sum;
  other.add(std::numeric_limits<double>::infinity());
  sum.add(other);
  CHECK(std::isinf(sum.value()));
  sum.add(std::numeric_limits<double>::quiet_NaN());
  CHECK(std::isnan(sum.value()));
}
