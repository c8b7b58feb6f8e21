#include "exec/cuda/model/token_order.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <limits>
#include <utility>

#include "base/errors.hpp"

namespace spillway::cuda {

namespace {

constexpr int digit_bits = 11;
constexpr std::int32_t digits = 1 << digit_bits;

// One pass of a radix sort: `from` (null: 0, 1, 2, ...) to `to`, stably, by the digit at `shift` of
// the rows' tokens.
void sort_by_digit(const std::int32_t* tokens, std::int32_t rows, int shift,
                   const std::int32_t* from, std::int32_t* to) {
  std::array<std::int32_t, digits> next{};
  const auto digit = [&](std::int32_t row) {
    return static_cast<std::size_t>((tokens[row] >> shift) & (digits - 1));
  };
  for (std::int32_t row = 0; row < rows; ++row) ++next[digit(row)];
  std::int32_t sum = 0;
  for (std::int32_t& place : next) sum += std::exchange(place, sum);
  for (std::int32_t i = 0; i < rows; ++i) {
    const std::int32_t row = from == nullptr ? i : from[i];
    to[next[digit(row)]++] = row;
  }
}

int passes(std::int32_t largest) {
  int count = 1;
  while (count * digit_bits < 31 && (largest >> (count * digit_bits)) != 0) ++count;
  return count;
}

}  // namespace

void order_tokens(const std::int32_t* tokens, std::int64_t rows, std::int32_t* sorted,
                  std::int32_t* begins, std::int32_t* runs) {
  SPILLWAY_ASSERT(rows >= 1 && rows < std::numeric_limits<std::int32_t>::max(),
                  fmt::format("{} rows", rows));
  const auto [smallest, largest] = std::minmax_element(tokens, tokens + rows);
  SPILLWAY_ASSERT(*smallest >= 0, fmt::format("token {}", *smallest));
  const auto n = static_cast<std::int32_t>(rows);
  // `begins` is the other buffer until its own contents are made; the last pass ends in `sorted`.
  const std::int32_t* from = nullptr;
  for (int left = passes(*largest), shift = 0; left > 0; --left, shift += digit_bits) {
    std::int32_t* const to = left % 2 == 1 ? sorted : begins;
    sort_by_digit(tokens, n, shift, from, to);
    from = to;
  }
  std::int32_t count = 0;
  for (std::int32_t i = 0; i < n; ++i) {
    if (i == 0 || tokens[sorted[i]] != tokens[sorted[i - 1]]) begins[count++] = i;
  }
  std::fill(begins + count, begins + n + 1, n);
  *runs = count;
}

void find_ends(const std::int32_t* starts, std::int64_t rows, std::int64_t sequence_length,
               std::int32_t* ends) {
  for (std::int64_t row = rows; row-- > 0;) {
    const auto next = static_cast<std::int32_t>(row % sequence_length) + 1;
    const bool is_last = next == sequence_length || starts[row + 1] == next;
    ends[row] = is_last ? next : ends[row + 1];
  }
}

}  // namespace spillway::cuda
