// The embedding's tables, forward and backward.
#include <catch2/catch.hpp>
#include <cmath>

#include "exec/cuda/kernels/kernels.hpp"
#include "exec/cuda/model/token_order.hpp"
#include "tests/cuda/device_memory.hpp"

using namespace spillway;
using namespace spillway::cuda;

TEMPLATE_TEST_CASE("The embedding on the GPU is the sum of two rows, rounded once",
                   "[kernels][sanitizer]", float, bf16) {
  using T = TestType;
  const std::int32_t vocabulary = 37;
  for (const std::int64_t columns : {8, 64, 768, 1600, 4096}) {
    for (const auto& [sequences, t] :
         std::vector<std::pair<std::int64_t, std::int64_t>>{{1, 1}, {3, 5}, {2, 16}}) {
      const auto rows = static_cast<std::size_t>(sequences * t),
                 width = static_cast<std::size_t>(columns), positions = static_cast<std::size_t>(t);
      INFO("columns " << columns << " rows " << rows);
      const auto tokens = random_tokens(rows, vocabulary, 1);
      const auto token_table = random_normal<T>(static_cast<std::size_t>(vocabulary) * width, 1, 2);
      const auto position_table = random_normal<T>(positions * width, 0.1f, 3);
      DeviceArray<std::int32_t> device_tokens(tokens);
      DeviceArray<T> token_rows(token_table), position_rows(position_table), output(rows * width);
      TestStream stream;
      // Of sequences, and of documents of two tokens.
      std::vector<std::int32_t> starts;
      for (std::size_t row = 0; row < rows; ++row)
        starts.push_back(static_cast<std::int32_t>(row % positions / 2 * 2));
      DeviceArray<std::int32_t> device_starts(starts);
      std::vector<T> expected;
      for (const bool documents : {false, true}) {
        embed_forward(token_rows.data(), position_rows.data(), device_tokens.data(),
                      documents ? device_starts.data() : nullptr, output.data(), sequences * t, t,
                      columns, stream);
        expected.clear();
        for (std::size_t row = 0; row < rows; ++row) {
          const auto token = static_cast<std::size_t>(tokens[row]);
          const std::size_t position =
              row % positions - (documents ? static_cast<std::size_t>(starts[row]) : 0);
          for (std::size_t i = 0; i < width; ++i) {
            expected.push_back(from_float<T>(to_float(token_table[token * width + i]) +
                                             to_float(position_table[position * width + i])));
          }
        }
        CHECK(same_bits(output.download(), expected));
      }
      // Without a position table: the token's row.
      embed_forward<T>(token_rows.data(), nullptr, device_tokens.data(), nullptr, output.data(),
                       sequences * t, t, columns, stream);
      expected.clear();
      for (const std::int32_t token : tokens) {
        const auto row = token_table.begin() + token * columns;
        expected.insert(expected.end(), row, row + columns);
      }
      CHECK(same_bits(output.download(), expected));
    }
  }
}

namespace {

struct Text {
  std::int64_t sequences, t, columns;
  std::int32_t vocabulary;
  double frequent;  // the share of rows that token 3 has

  std::size_t rows() const { return static_cast<std::size_t>(sequences * t); }
  std::vector<std::int32_t> tokens(std::uint64_t seed) const {
    auto tokens = random_tokens(rows(), vocabulary, seed);
    std::mt19937_64 random(seed + 1);
    for (auto& token : tokens)
      if (std::generate_canonical<double, 53>(random) < frequent) token = 3;
    return tokens;
  }
};

// The sum of a table's row is a tree at most `depth` additions deep (the longest: 512 rows by 8
// warps), in fp32, added once to what is there and rounded to the gradient's format.
template <class Element, class Gradient>
void check_backward(const Text& text) {
  constexpr double depth = 80;
  const auto seed = static_cast<std::uint64_t>(text.t + text.columns);
  INFO("sequences " << text.sequences << " T " << text.t << " columns " << text.columns
                    << " vocabulary " << text.vocabulary << " frequent " << text.frequent
                    << " element " << sizeof(Element) << " gradient " << sizeof(Gradient)
                    << " seed " << seed);
  const std::size_t rows = text.rows(), width = static_cast<std::size_t>(text.columns);
  const auto t = static_cast<std::size_t>(text.t),
             vocabulary = static_cast<std::size_t>(text.vocabulary);
  const auto tokens = text.tokens(seed);
  std::vector<std::int32_t> sorted(rows), begins(rows + 1), runs(1);
  order_tokens(tokens.data(), static_cast<std::int64_t>(rows), sorted.data(), begins.data(),
               runs.data());
  const auto dy = random_normal<Element>(rows * width, 0.5f, seed + 2, 0.1f);
  const auto old_tokens = random_normal<Gradient>(vocabulary * width, 2, seed + 3);
  const auto old_positions = random_normal<Gradient>(t * width, 2, seed + 4);

  DeviceArray<std::int32_t> device_tokens(tokens), device_sorted(sorted), device_begins(begins),
      device_runs(runs);
  DeviceArray<Element> gradient(dy);
  DeviceArray<Gradient> token_gradient(old_tokens), position_gradient(old_positions);
  TestStream stream;
  const auto run = [&] {
    token_gradient.upload(old_tokens);
    position_gradient.upload(old_positions);
    embed_backward(device_tokens.data(),
                   {device_sorted.data(), device_begins.data(), device_runs.data()},
                   gradient.data(), token_gradient.data(), position_gradient.data(), text.sequences,
                   text.t, text.columns, stream);
    return bytes_of(token_gradient.download(), position_gradient.download());
  };
  run();

  std::vector<double> of_tokens(vocabulary * width), of_positions(t * width),
      token_slack(of_tokens.size()), position_slack(of_positions.size());
  std::vector<bool> occurs(vocabulary, false);
  for (std::size_t row = 0; row < rows; ++row) {
    const auto token = static_cast<std::size_t>(tokens[row]);
    occurs[token] = true;
    for (std::size_t i = 0; i < width; ++i) {
      const double value = static_cast<double>(to_float(dy[row * width + i]));
      const double slack = depth * fp32_rounding * std::fabs(value);
      of_tokens[token * width + i] += value;
      of_positions[row % t * width + i] += value;
      token_slack[token * width + i] += slack;
      position_slack[row % t * width + i] += slack;
    }
  }
  const auto add_old = [](std::vector<double>& sums, std::vector<double>& slack,
                          const std::vector<Gradient>& old) {
    for (std::size_t i = 0; i < sums.size(); ++i) {
      sums[i] += static_cast<double>(to_float(old[i]));
      slack[i] += fp32_rounding * std::fabs(sums[i]);
    }
  };
  add_old(of_tokens, token_slack, old_tokens);
  add_old(of_positions, position_slack, old_positions);
  const auto got_tokens = token_gradient.download();
  CHECK(worst_of_bound(got_tokens, of_tokens, [&](std::size_t i) { return token_slack[i]; }) <= 1);
  CHECK(worst_of_bound(position_gradient.download(), of_positions,
                       [&](std::size_t i) { return position_slack[i]; }) <= 1);
  bool untouched = true;
  for (std::size_t i = 0; i < got_tokens.size(); ++i) {
    if (!occurs[i / width])
      untouched = untouched && to_float(got_tokens[i]) == to_float(old_tokens[i]);
  }
  CHECK(untouched);
  require_repeatable(run);
  // Without a position table, the token table's gradient is the same.
  token_gradient.upload(old_tokens);
  embed_backward<Element, Gradient>(
      device_tokens.data(), {device_sorted.data(), device_begins.data(), device_runs.data()},
      gradient.data(), token_gradient.data(), nullptr, text.sequences, text.t, text.columns,
      stream);
  CHECK(same_bits(token_gradient.download(), got_tokens));
}

template <class Element, class Gradient>
void check_texts() {
  check_backward<Element, Gradient>({1, 1, 8, 5, 0});
  check_backward<Element, Gradient>({3, 11, 64, 50, 0});        // short runs only
  check_backward<Element, Gradient>({2, 33, 768, 7, 0.5});      // a run of 33 or a little more
  check_backward<Element, Gradient>({9, 20, 1600, 1000, 0});    // nearly all different
  check_backward<Element, Gradient>({4, 256, 72, 20, 0.6});     // a run of more than 512 rows
  check_backward<Element, Gradient>({2, 300, 328, 4000, 0.1});  // many runs, one of them middling
}

}  // namespace

TEST_CASE("The embedding's gradients on the GPU are sums over the rows of a token and a position",
          "[kernels]") {
  check_texts<float, float>();
  check_texts<bf16, float>();
  check_texts<bf16, bf16>();
  check_texts<float, bf16>();
}

TEST_CASE("The embedding's gradient on the GPU where all rows are of one token", "[kernels]") {
  // Lengths around the borders between the ways to sum a run, and more rows than one round of them.
  for (const std::int64_t t : {31, 32, 33, 511, 512, 513, 1100})
    check_backward<bf16, float>({1, t, 40, 4, 1});
}

TEST_CASE("The embedding's gradients on the GPU of short, middling and long runs",
          "[kernels][sanitizer][few]") {
  // Token 3 has nearly all of 45, and of 1040 rows.
  check_backward<bf16, float>({3, 15, 72, 20, 0.8});
  check_backward<float, bf16>({4, 260, 40, 20, 0.7});
}
