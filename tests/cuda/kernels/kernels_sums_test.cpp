// Sums over rows, of losses, and of squares.
#include <catch2/catch.hpp>
#include <cmath>
#include <numeric>

#include "exec/cpu/kernels_cpu.hpp"
#include "exec/cuda/kernels/kernels.hpp"
#include "tests/cuda/device_memory.hpp"

using namespace spillway;
using namespace spillway::cuda;

namespace {

Workspace workspace_of(const DeviceArray<std::byte>& memory) {
  return {memory.data(), memory.size()};
}

// Sums of 'rows' rows, from `old` on unless it overwrites: a tree no deeper than 64 additions, so
// off by 64 fp32 roundings of the sum of magnitudes, then rounded to the format of the gradient.
template <class Element, class Gradient>
void check_column_sums(std::int64_t rows, std::int64_t columns, bool overwrites) {
  const auto width = static_cast<std::size_t>(columns);
  const auto seed = static_cast<std::uint64_t>(rows * 131 + columns);
  INFO("rows " << rows << " columns " << columns << " overwrites " << overwrites << " element "
               << sizeof(Element) << " gradient " << sizeof(Gradient) << " seed " << seed);
  const auto x = random_normal<Element>(static_cast<std::size_t>(rows) * width, 1, seed, 0.25f);
  const auto old = random_normal<Gradient>(width, 3, seed + 1);
  DeviceArray<Element> input(x);
  DeviceArray<Gradient> sums(width);
  DeviceArray<std::byte> memory(workspace_bytes(8, columns, 0));
  TestStream stream;
  const auto run = [&] {
    if (!overwrites) sums.upload(old);
    column_sums(input.data(), sums.data(), overwrites, rows, columns, workspace_of(memory), stream);
    static_cast<void>(memory.download());  // checks its guards
    return bytes_of(sums.download());
  };
  run();
  std::vector<double> expected(width), magnitude(width);
  for (std::size_t c = 0; c < width; ++c) {
    if (!overwrites) expected[c] = static_cast<double>(to_float(old[c]));
    magnitude[c] = std::fabs(expected[c]);
    for (std::size_t r = 0; r < static_cast<std::size_t>(rows); ++r) {
      const double value = static_cast<double>(to_float(x[r * width + c]));
      expected[c] += value;
      magnitude[c] += std::fabs(value);
    }
  }
  CHECK(worst_of_bound(sums.download(), expected,
                       [&](std::size_t c) { return 64 * fp32_rounding * magnitude[c]; }) <= 1);
  require_repeatable(run);
}

}  // namespace

TEST_CASE("Column sums on the GPU, of any shape, added to or overwriting", "[kernels]") {
  const std::pair<std::int64_t, std::int64_t> shapes[] = {{1, 8},      {3, 64},    {33, 768},
                                                          {257, 1600}, {64, 4104}, {2000, 8}};
  for (const auto& [rows, columns] : shapes) {
    check_column_sums<float, float>(rows, columns, true);
    check_column_sums<bf16, float>(rows, columns, false);
    check_column_sums<bf16, bf16>(rows, columns, true);
    check_column_sums<float, bf16>(rows, columns, false);
  }
}

TEST_CASE("Column sums on the GPU of a few shapes", "[kernels][sanitizer][few]") {
  check_column_sums<bf16, float>(33, 768, false);
  check_column_sums<float, float>(257, 72, true);
  check_column_sums<bf16, bf16>(3, 64, true);
  check_column_sums<float, bf16>(3, 64, false);
}

TEST_CASE("Column sums of no rows are zero, or leave what there was", "[kernels]") {
  const std::vector<float> old = random_normal<float>(16, 1, 1);
  DeviceArray<float> sums(old), x(8);
  DeviceArray<std::byte> memory(workspace_bytes(8, 16, 0));
  TestStream stream;
  column_sums(x.data(), sums.data(), false, 0, 16, workspace_of(memory), stream);
  CHECK(same_bits(sums.download(), old));
  column_sums(x.data(), sums.data(), true, 0, 16, workspace_of(memory), stream);
  CHECK(sums.download() == std::vector<float>(16, 0.0f));
}

TEST_CASE("The losses of a sequence are summed in fp64", "[kernels][sanitizer]") {
  // Off by at most T roundings of 2^-53; positive numbers, so relative.
  for (const std::int64_t t : {1, 5, 256, 1000}) {
    const std::int64_t sequences = 3;
    std::vector<double> tokens;
    for (const float value : random_normal<float>(static_cast<std::size_t>(sequences * t), 2, 7))
      tokens.push_back(std::fabs(static_cast<double>(value)) + 1e-9);
    DeviceArray<double> from(tokens);
    PinnedArray<double> losses(static_cast<std::size_t>(sequences));
    TestStream stream;
    sum_losses(from.data(), losses.data(), sequences, t, stream);
    const auto sums = losses.wait();
    for (std::int64_t s = 0; s < sequences; ++s) {
      const auto begin = tokens.begin() + s * t;
      const double expected = std::accumulate(begin, begin + t, 0.0);
      INFO("T " << t << " sequence " << s);
      CHECK(std::fabs(sums[static_cast<std::size_t>(s)] - expected) <=
            expected * static_cast<double>(t) * 0x1p-52);
    }
  }
}

namespace {

// The CPU's sum of what the gradient is in fp32, and the GPU's: the very same bits.
template <class Gradient>
void check_squares(std::vector<Gradient> first, std::vector<Gradient> other, bool two) {
  const std::size_t n = first.size();
  INFO("n " << n << " second " << two << " format " << sizeof(Gradient));
  DeviceArray<Gradient> gradient(first), second(other);
  DeviceArray<double> result(1);
  PinnedArray<double> report(1);
  DeviceArray<std::byte> memory(workspace_bytes(8, 8, static_cast<std::int64_t>(n)));
  TestStream stream;
  sum_of_squares(gradient.data(), two ? second.data() : nullptr, static_cast<std::int64_t>(n),
                 result.data(), report.data(), workspace_of(memory), stream);
  std::vector<float> a(n), b(n);
  for (std::size_t i = 0; i < n; ++i) {
    a[i] = to_float(first[i]);
    b[i] = to_float(other[i]);
  }
  const double expected =
      cpu_kernels(CpuVariant::plain)
          .sum_of_squares(a.data(), two ? b.data() : nullptr, static_cast<std::int64_t>(n));
  static_cast<void>(memory.download());
  const double got = result.download()[0];
  if (std::isnan(expected)) {
    CHECK(std::isnan(got));
    CHECK(std::isnan(report.wait()[0]));
  } else {
    CHECK(got == expected);
    CHECK(report.wait()[0] == expected);
  }
}

}  // namespace

TEMPLATE_TEST_CASE("The sum of squares on the GPU has the bits of the CPU's", "[kernels]", float,
                   bf16) {
  using T = TestType;
  for (const std::size_t n : {0u, 1u, 31u, 33u, 2047u, 2048u, 2049u, 16'384u, 50'001u}) {
    for (const bool two : {false, true}) {
      // Sizes over many orders of magnitude: any other order of addition rounds differently.
      auto first = random_normal<T>(n, 1, n), other = random_normal<T>(n, 1e-3f, n + 1);
      for (std::size_t i = 0; i < n; i += 5) first[i] = from_float<T>(to_float(first[i]) * 1e4f);
      for (std::size_t i = 2; i < n; i += 3) first[i] = from_float<T>(to_float(first[i]) * 1e-20f);
      check_squares<T>(first, other, two);
    }
  }
}

TEMPLATE_TEST_CASE("The sum of squares on the GPU of two groups of blocks", "[kernels][sanitizer]",
                   float, bf16) {
  const std::size_t n = 131'072 + 3;
  check_squares<TestType>(random_normal<TestType>(n, 1, 8), random_normal<TestType>(n, 1, 9), true);
}

TEST_CASE("The sum of squares on the GPU: whole groups of blocks, and one more or less",
          "[kernels]") {
  // 64 blocks of 2048 elements are a group.
  for (const std::size_t n : {131'071u, 131'072u, 131'073u, 262'144u, 1'000'003u})
    check_squares<float>(random_normal<float>(n, 1, n), random_normal<float>(n, 1, 1), true);
}

TEST_CASE("The sum of squares on the GPU: more groups than its last stage takes at once",
          "[kernels][slow]") {
  // 512 groups are one round; here are one and a piece.
  const std::size_t n = 512 * 131'072 + 3 * 131'072 + 17 * 2048 + 5;
  check_squares<bf16>(random_normal<bf16>(n, 1, 3), std::vector<bf16>(n), false);
}

TEST_CASE("The sum of squares on the GPU shows NaN and infinity wherever they are", "[kernels]") {
  const float infinity = std::numeric_limits<float>::infinity();
  for (const std::size_t at : {0u, 2047u, 5000u}) {
    for (const float bad : {std::nanf(""), infinity, -infinity}) {
      auto gradient = random_normal<float>(5001, 1, at);
      gradient[at] = bad;
      check_squares<float>(gradient, random_normal<float>(5001, 1, 2), true);
    }
  }
}
