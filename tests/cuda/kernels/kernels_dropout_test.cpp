// Dropout of an input of adapters: bit for bit what exec/cpu/dropout.hpp lets remain.
#include <catch2/catch.hpp>

#include "exec/cuda/kernels/kernels.hpp"
#include "tests/cuda/device_memory.hpp"

using namespace spillway;
using namespace spillway::cuda;

namespace {

constexpr NoiseKey step_key = {0x12345678u, 0x9abcdef0u};

// y = what remains of x, and z += what remains of x, with `gap` elements between rows of z.
template <class T>
void check(std::int64_t sequences, std::int64_t tokens, std::int64_t columns, std::int64_t gap) {
  const std::int64_t rows = sequences * tokens, stride = columns + gap, first = 7;
  INFO(sequences << " x " << tokens << " x " << columns << ", " << sizeof(T) << " bytes");
  const auto x = random_normal<T>(static_cast<std::size_t>(rows * columns), 1, 3);
  const auto z = random_normal<T>(static_cast<std::size_t>(rows * stride), 1, 4);
  const DeviceArray<T> from(x), y(x.size()), to(z);
  const PinnedArray<NoiseKey> noise(1);
  *noise.data() = step_key;
  const DeviceArray<NoiseKey> key(1);
  const TestStream stream;
  fetch_noise(noise.data(), key.data(), stream);
  const DropoutRows at{dropout_of(0.3), key.data(), 5, 2, first, tokens};
  drop<T>(at, from.data(), y.data(), rows, columns, stream);
  add_remaining<T>(at, from.data(), to.data(), stride, rows, columns, stream);
  std::vector<T> expected(x.size()), sums = z;
  std::int64_t zeros = 0;
  for (std::int64_t row = 0; row < rows; ++row) {
    const NoiseKey row_key =
        dropout_row(dropout_key(step_key, 5, 2, first + row / tokens), row % tokens);
    for (std::int64_t column = 0; column < columns; ++column) {
      const auto i = static_cast<std::size_t>(row * columns + column);
      const float value = remaining(at.dropout, row_key, column, to_float(x[i]));
      zeros += value == 0;
      expected[i] = from_float<T>(value);
      T& sum = sums[static_cast<std::size_t>(row * stride + column)];
      sum = from_float<T>(to_float(sum) + value);
    }
  }
  CHECK(same_bits(y.download(), expected));
  CHECK(same_bits(to.download(), sums));
  // Three of ten, to six deviations of so many throws.
  const auto n = static_cast<double>(rows * columns);
  CHECK(std::fabs(static_cast<double>(zeros) - 0.3 * n) <= 6 * std::sqrt(0.21 * n));
}

}  // namespace

TEMPLATE_TEST_CASE("Dropout on the GPU lets the CPU's values remain", "[kernels]", float, bf16) {
  check<TestType>(1, 1, 8, 0);
  check<TestType>(2, 5, 24, 8);
  check<TestType>(3, 7, 264, 0);
  check<TestType>(1, 3, 1352, 1352);
}
