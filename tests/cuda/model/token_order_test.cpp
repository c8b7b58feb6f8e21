// order_tokens: rows sorted by their token, stably, in runs.
#include "exec/cuda/model/token_order.hpp"

#include <algorithm>
#include <catch2/catch.hpp>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

using namespace spillway::cuda;

namespace {

// rows: those of a stable sort; run k: all rows of one token and of no other; begins beyond: rows.
void check_order(const std::vector<std::int32_t>& tokens) {
  const auto n = static_cast<std::int32_t>(tokens.size());
  std::vector<std::int32_t> sorted(tokens.size(), -1), begins(tokens.size() + 1, -1);
  std::int32_t runs = -1;
  order_tokens(tokens.data(), n, sorted.data(), begins.data(), &runs);

  const auto token = [&](std::int32_t row) { return tokens[static_cast<std::size_t>(row)]; };
  std::vector<std::int32_t> expected(tokens.size());
  std::iota(expected.begin(), expected.end(), 0);
  std::stable_sort(expected.begin(), expected.end(),
                   [&](std::int32_t a, std::int32_t b) { return token(a) < token(b); });
  REQUIRE(sorted == expected);
  std::vector<std::int32_t> starts;
  for (std::int32_t i = 0; i < n; ++i) {
    const auto at = static_cast<std::size_t>(i);
    if (i == 0 || token(sorted[at]) != token(sorted[at - 1])) starts.push_back(i);
  }
  REQUIRE(runs == static_cast<std::int32_t>(starts.size()));
  starts.resize(tokens.size() + 1, n);
  REQUIRE(begins == starts);
}

}  // namespace

TEST_CASE("order_tokens sorts rows by token, stably, and finds the runs", "[kernels]") {
  check_order({7});
  check_order({3, 3, 3});
  check_order({2, 0, 2, 1, 0, 2});
  // One, two and three digits of the radix sort, and the largest token there can be.
  constexpr std::int32_t largest = std::numeric_limits<std::int32_t>::max();
  for (const std::int32_t top : {2047, 2048, (1 << 22) - 1, 1 << 22, largest})
    check_order({top, 0, 5, top, 5, top - 1, 0});
}

TEST_CASE("order_tokens sorts random texts", "[kernels]") {
  const std::uint64_t seed = 17;
  INFO("seed " << seed);
  std::mt19937_64 random(seed);
  for (const std::int32_t vocabulary : {2, 256, 50257, 10'000'000}) {
    for (const std::size_t rows : {1u, 2u, 100u, 5000u}) {
      INFO(vocabulary << " tokens, " << rows << " rows");
      std::uniform_int_distribution<std::int32_t> uniform(0, vocabulary - 1);
      std::vector<std::int32_t> tokens(rows);
      for (std::int32_t& token : tokens) token = uniform(random);
      check_order(tokens);
    }
  }
}
