// Attention's forward pass: output = softmax(q k^T / sqrt(head size), causal) v and its
// log-sum-exp, of bf16 on tensor cores, of bf16 and fp32 on ordinary arithmetic units, against
// fp64.
#include <catch2/catch.hpp>

#include "base/errors.hpp"
#include "tests/cuda/attention/attention_run.hpp"

namespace spillway::cuda {
namespace {

// Every length around the sizes of tiles (32, 64, 128) with every rounded-up head size (16, 32, 64,
// 96, 128), heads 1 to 3, one or two sequences, statistics side by side and apart.
std::vector<AttentionCase> cases() {
  std::vector<AttentionCase> all;
  const std::int64_t tokens[] = {1, 7, 64, 65, 130, 200}, head_sizes[] = {8, 16, 40, 64, 80, 128};
  for (std::int64_t t = 0; t < 6; ++t)
    for (std::int64_t h = 0; h < 6; ++h)
      all.push_back(attention_case(1 + (t + h) % 2, tokens[t], 1 + (t + 2 * h) % 3, head_sizes[h],
                                   (t + h) % 3 * 5));
  all.push_back(attention_case(1, 257, 1, 64));
  all.push_back(attention_case(1, 257, 1, 128));
  return all;
}

TEST_CASE("Attention of bf16 on tensor cores is that of fp64 within its roundings", "[attention]") {
  for (const AttentionCase& c : cases()) check_forward<bf16>(c, Way::fast);
}

TEST_CASE("Plain attention is that of fp64 within its roundings, for fp32 and bf16",
          "[attention]") {
  for (const AttentionCase& c : cases()) {
    check_forward<float>(c, Way::fast);  // which is the plain way
    if (c.sizes.tokens < 100) check_forward<bf16>(c, Way::plain);
  }
}

// Every kernel of the forward pass in several tiles: small enough for a sanitizer.
TEST_CASE("Attention of a small text, with every kernel there is", "[attention][sanitizer][few]") {
  for (const std::int64_t head_size : {16, 32, 64, 96, 128})
    check_forward<bf16>(attention_case(1, 130, 1, head_size, 3), Way::fast);
  check_forward<bf16>(attention_case(2, 70, 2, 40), Way::plain);
  check_forward<float>(attention_case(2, 70, 2, 40), Way::plain);
}

// With scores of +-10^3 all weight is on one key, and exponents that are not taken relative to the
// maximum would overflow; with scores of 10^-3 the output is close to a mean.
TEST_CASE("Attention takes large and small scores", "[attention]") {
  for (const double magnitude : {0.03, 16.0, 40.0}) {
    for (const std::int64_t head_size : {16, 64, 128}) {
      const AttentionCase c = attention_case(1, 130, 2, head_size, 3, magnitude);
      check_forward<bf16>(c, Way::fast);
      check_forward<float>(c, Way::fast);
    }
  }
}

// Keys whose scores rise from tile to tile make every tile raise the running maximum; keys whose
// scores rise slowly stay within what the maximum may lag behind.
TEST_CASE("Attention follows a maximum that rises with the keys", "[attention]") {
  for (const double rise : {0.02, 0.5}) {
    const AttentionCase c = attention_case(1, 200, 1, 64);
    INFO("rise " << rise << " per key, " << c.name());
    AttentionInputs<bf16> inputs(c);
    for (std::int64_t token = 0; token < 200; ++token) {
      for (std::int64_t d = 0; d < 64; ++d) {
        auto& q = inputs.qkv[static_cast<std::size_t>(token * 192 + d)];
        auto& k = inputs.qkv[static_cast<std::size_t>(token * 192 + 64 + d)];
        q = to_bf16(d == 0 ? 8.0f : 0.0f);
        if (d == 0) k = to_bf16(static_cast<float>(rise * static_cast<double>(token)));
      }
    }
    const ForwardExpected expected =
        attention_forward_expected(c, doubles(inputs.qkv), rounding_of<bf16>);
    const ForwardResult<bf16> result = run_forward(c, inputs.qkv, Way::fast);
    CHECK(distance(doubles(result.output), expected.output).most <= 1.0);
    CHECK(distance(doubles(result.log_sum_exp), expected.log_sum_exp).most <= 1.0);
  }
}

// What a GPU with other tensor cores could do differently, it may do: both ways are within the
// bound of the exact result, so they are within twice that of each other. Closer than chance would
// have it, they are not asked to be.
TEST_CASE("Attention on tensor cores is close to its plain twin", "[attention]") {
  for (const std::int64_t head_size : {40, 64, 128}) {
    const AttentionCase c = attention_case(2, 130, 2, head_size);
    INFO(c.name());
    const AttentionInputs<bf16> inputs(c);
    Expected twin = attention_forward_expected(c, doubles(inputs.qkv), rounding_of<bf16>).output;
    const ForwardResult<bf16> plain = run_forward(c, inputs.qkv, Way::plain);
    const ForwardResult<bf16> fast = run_forward(c, inputs.qkv, Way::fast);
    twin.value = doubles(plain.output);
    CHECK(distance(doubles(fast.output), twin).most <= 1.5);
    CHECK(distance(doubles(fast.output), twin).root_mean_square <= 1.5);
  }
}

TEST_CASE("Attention without an output, or without a log-sum-exp, has the bits it has with both",
          "[attention]") {
  const auto check_parts = [](const AttentionCase& c, auto element, Way way) {
    using Element = decltype(element);
    INFO(c.name() << ", " << sizeof(Element) << " bytes, "
                  << (way == Way::fast ? "fast" : "plain"));
    const AttentionInputs<Element> inputs(c);
    const auto both = run_forward(c, inputs.qkv, way);
    const auto output = run_forward(c, inputs.qkv, way, true, false);
    const auto statistics = run_forward(c, inputs.qkv, way, false, true);
    CHECK(same_bits(output.output, both.output));
    CHECK(same_bits(statistics.log_sum_exp, both.log_sum_exp));
    // And what is null is not written anywhere.
    const std::vector<float> untouched(both.log_sum_exp.size(), std::bit_cast<float>(0xffffffffu));
    CHECK(same_bits(output.log_sum_exp, untouched));
  };
  for (const std::int64_t head_size : {8, 64, 80, 128}) {
    const AttentionCase c = attention_case(2, 130, 1, head_size, 7);
    check_parts(c, bf16{}, Way::fast);
    check_parts(c, bf16{}, Way::plain);
    check_parts(c, float{}, Way::fast);
  }
}

TEST_CASE("Attention gives the same bytes in any order of threads", "[attention]") {
  for (const std::int64_t head_size : {24, 64, 128}) {
    const AttentionCase c = attention_case(1, 200, 2, head_size);
    INFO(c.name());
    const AttentionInputs<bf16> inputs(c);
    const auto first = run_forward(c, inputs.qkv, Way::fast);
    const AttentionInputs<float> plain_inputs(c);
    const auto plain_first = run_forward(c, plain_inputs.qkv, Way::fast);
    for (unsigned seed = 1; seed <= 3; ++seed) {
      change_order(seed);
      const auto again = run_forward(c, inputs.qkv, Way::fast);
      CHECK(same_bits(again.output, first.output));
      CHECK(same_bits(again.log_sum_exp, first.log_sum_exp));
      CHECK(same_bits(run_forward(c, plain_inputs.qkv, Way::fast).output, plain_first.output));
    }
  }
}

// A sequence's result depends on that sequence alone: computing two at once is computing each.
TEST_CASE("Attention of several sequences is that of each, bit for bit", "[attention]") {
  const AttentionCase both = attention_case(2, 70, 2, 64, 4);
  AttentionCase one = both;
  one.sizes.sequences = 1;
  const AttentionInputs<bf16> inputs(both);
  const auto together = run_forward(both, inputs.qkv, Way::fast);
  std::vector<bf16> apart;
  for (const int sequence : {0, 1}) {
    const auto half = static_cast<std::ptrdiff_t>(inputs.qkv.size() / 2);
    const std::vector<bf16> qkv(inputs.qkv.begin() + sequence * half,
                                inputs.qkv.begin() + (sequence + 1) * half);
    const auto result = run_forward(one, qkv, Way::fast);
    apart.insert(apart.end(), result.output.begin(), result.output.end());
  }
  CHECK(same_bits(apart, together.output));
}

TEST_CASE("Heads attention cannot compute are refused by name", "[attention]") {
  CHECK_NOTHROW(require_attention_head(768, 12));
  CHECK_NOTHROW(require_attention_head(128, 1));
  CHECK_THROWS_AS(require_attention_head(1024, 4), InputError);  // 256
  CHECK_THROWS_AS(require_attention_head(36, 3), InputError);    // 12
  CHECK_THROWS_AS(require_attention_head(100, 3), InputError);   // no whole number
  CHECK_THROWS_WITH(require_attention_head(1024, 4), Catch::Contains("1024 channels in 4 heads"));
  // The hint names the numbers of heads that would do, and only those.
  const auto hint = [](std::int64_t channels, std::int64_t heads) {
    try {
      require_attention_head(channels, heads);
    } catch (const InputError& error) {
      return error.hint();
    }
    return std::string("accepted");
  };
  CHECK_THAT(hint(1024, 4), Catch::Contains(": 8 (of 128), 16 (of 64), 32 (of 32), 64 (of 16), "
                                            "128 (of 8); "));
  CHECK_THAT(hint(36, 3), Catch::Contains("a multiple of 8"));
}

}  // namespace
}  // namespace spillway::cuda
