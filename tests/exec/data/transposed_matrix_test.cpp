#include "exec/data/transposed_matrix.hpp"

#include <catch2/catch.hpp>
#include <random>

using namespace spillway;

TEST_CASE("any part of a transpose is read, whatever a strip holds") {
  const std::uint64_t seed = std::random_device{}();
  INFO("seed " << seed);
  std::mt19937_64 random(seed);
  const std::int64_t rows = 37, columns = 53;
  // Element (r, c) is 1000 r + c; of the transpose, element i is (i % rows, i / rows).
  const auto row = [&](std::int64_t r, std::int64_t first, std::int64_t count, float* to) {
    REQUIRE(first + count <= columns);
    for (std::int64_t c = 0; c < count; ++c) to[c] = static_cast<float>(1000 * r + first + c);
  };
  for (const std::int64_t most_bytes : {1, 4 * 37 * 5, 1 << 20}) {
    TransposedMatrix matrix(most_bytes);
    for (int i = 0; i < 50; ++i) {
      const auto first = static_cast<std::int64_t>(random() % (rows * columns));
      const auto count =
          static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(rows * columns - first)) +
          1;
      std::vector<float> values(static_cast<std::size_t>(count)), expected = values;
      matrix.read(&row, rows, columns, row, first, count, values.data());
      for (std::int64_t e = 0; e < count; ++e)
        expected[static_cast<std::size_t>(e)] =
            static_cast<float>(1000 * ((first + e) % rows) + (first + e) / rows);
      REQUIRE(values == expected);
    }
  }
}

TEST_CASE("a strip is read once while it is used, and anew for another matrix") {
  int reads = 0;
  const auto row = [&](std::int64_t, std::int64_t, std::int64_t count, float* to) {
    ++reads;
    std::fill_n(to, count, 1.0f);
  };
  TransposedMatrix matrix;
  int one = 0, two = 0;
  std::vector<float> values(4);
  for (std::int64_t first = 0; first < 100; first += 4)
    matrix.read(&one, 10, 10, row, first, 4, values.data());
  CHECK(reads == 10);
  matrix.read(&two, 10, 10, row, 0, 4, values.data());
  CHECK(reads == 20);
}
