// Attention with Hopper's matrix instructions against fp64, with the bounds that the other kernels
// are held to.
#include <catch2/catch.hpp>

#include "exec/cuda/attention/attention_choice.hpp"
#include "tests/cuda/attention/attention_run.hpp"

namespace spillway::cuda {
namespace {

// Where the GPU is none, the kernels for every GPU are tested once more.
AttentionKernels kernels_here() {
  int device = 0, major = 0, minor = 0;
  SPILLWAY_CUDA(cudaGetDevice(&device));
  SPILLWAY_CUDA(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
  SPILLWAY_CUDA(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device));
  return major == 9 && minor == 0 ? AttentionKernels::wgmma : AttentionKernels::mma_sync;
}

AttentionCase hopper_case(std::int64_t sequences, std::int64_t tokens, std::int64_t heads,
                          std::int64_t head_size, std::int64_t gap = 0, double magnitude = 1.0) {
  AttentionCase c = attention_case(sequences, tokens, heads, head_size, gap, magnitude);
  c.sizes.kernels = kernels_here();
  return c;
}

// Lengths around the sizes of tiles: 64 rows of a warpgroup, 128 keys, 128 and 192 queries.
std::vector<AttentionCase> cases() {
  std::vector<AttentionCase> all;
  const std::int64_t tokens[] = {1, 7, 63, 64, 65, 127, 128, 129, 193, 200, 257, 390};
  for (std::int64_t t = 0; t < 12; ++t)
    for (const std::int64_t head_size : {64, 128})
      all.push_back(hopper_case(1 + t % 2, tokens[t], 1 + t % 3, head_size, t % 4 * 5));
  return all;
}

TEST_CASE("Attention on Hopper is that of fp64 within its roundings", "[hopper]") {
  for (const AttentionCase& c : cases()) check_forward<bf16>(c, Way::fast);
}

TEST_CASE("Attention's gradients on Hopper are those of fp64 within its roundings",
          "[hopper][slow]") {
  for (const AttentionCase& c : cases()) check_backward<bf16>(c, Way::fast);
}

AttentionCase on_hopper(AttentionCase c) {
  c.sizes.kernels = kernels_here();
  return c;
}

TEST_CASE("Attention of grouped queries on Hopper is that of fp64 within its roundings",
          "[hopper]") {
  for (const AttentionCase& c :
       {grouped_case(1, 65, 1, 3, 64, 0), grouped_case(2, 257, 2, 2, 64, 0, 5),
        grouped_case(1, 200, 2, 2, 128, 0), grouped_case(1, 390, 1, 2, 128, 0, 3)}) {
    check_forward<bf16>(on_hopper(c), Way::fast);
    check_backward<bf16>(on_hopper(c), Way::fast);
  }
}

// They lack windows: the kernels for every GPU compute those.
TEST_CASE("Asking for Hopper's kernels with a sliding window gets the others", "[hopper]") {
  AttentionCase c = on_hopper(grouped_case(1, 150, 1, 2, 64, 40));
  CHECK(kernels_for(c.sizes) == AttentionKernels::mma_sync);
  const AttentionInputs<bf16> inputs(c);
  const auto asked = run_forward(c, inputs.qkv, Way::fast);
  c.sizes.kernels = AttentionKernels::mma_sync;
  CHECK(same_bits(run_forward(c, inputs.qkv, Way::fast).output, asked.output));
}

// Small enough for a sanitizer; every kernel, in several tiles.
TEST_CASE("Attention of a small text on Hopper, with every kernel there is",
          "[hopper][sanitizer]") {
  for (const std::int64_t head_size : {64, 128}) {
    const AttentionCase c = hopper_case(2, 200, 1, head_size, 3);
    check_forward<bf16>(c, Way::fast);
    check_backward<bf16>(c, Way::fast);
  }
}

TEST_CASE("Attention on Hopper takes large and small scores", "[hopper]") {
  for (const double magnitude : {0.03, 16.0, 40.0}) {
    for (const std::int64_t head_size : {64, 128}) {
      const AttentionCase c = hopper_case(1, 200, 2, head_size, 3, magnitude);
      check_forward<bf16>(c, Way::fast);
      if (magnitude < 20) check_backward<bf16>(c, Way::fast);
    }
  }
}

// Keys whose scores rise make every tile raise the running maximum.
TEST_CASE("Attention on Hopper follows a maximum that rises with the keys", "[hopper]") {
  for (const double rise : {0.02, 0.5}) {
    const AttentionCase c = hopper_case(1, 390, 1, 64);
    INFO("rise " << rise << " per key, " << c.name());
    AttentionInputs<bf16> inputs(c);
    for (std::size_t token = 0; token < 390; ++token) {
      for (std::size_t d = 0; d < 64; ++d) {
        inputs.qkv[token * 192 + d] = to_bf16(d == 0 ? 8.0f : 0.0f);
        if (d == 0)
          inputs.qkv[token * 192 + 64] =
              to_bf16(static_cast<float>(rise) * static_cast<float>(token));
      }
    }
    const ForwardExpected expected =
        attention_forward_expected(c, doubles(inputs.qkv), rounding_of<bf16>);
    const ForwardResult<bf16> result = run_forward(c, inputs.qkv, Way::fast);
    CHECK(distance(doubles(result.output), expected.output).most <= 1.0);
    CHECK(distance(doubles(result.log_sum_exp), expected.log_sum_exp).most <= 1.0);
  }
}

TEST_CASE("Attention on Hopper without an output, or without a log-sum-exp, has the same bits",
          "[hopper]") {
  for (const std::int64_t head_size : {64, 128}) {
    const AttentionCase c = hopper_case(2, 200, 1, head_size, 7);
    INFO(c.name());
    const AttentionInputs<bf16> inputs(c);
    const auto both = run_forward(c, inputs.qkv, Way::fast);
    const auto output = run_forward(c, inputs.qkv, Way::fast, true, false);
    const auto statistics = run_forward(c, inputs.qkv, Way::fast, false, true);
    CHECK(same_bits(output.output, both.output));
    CHECK(same_bits(statistics.log_sum_exp, both.log_sum_exp));
    const std::vector<float> untouched(both.log_sum_exp.size(), std::bit_cast<float>(0xffffffffu));
    CHECK(same_bits(output.log_sum_exp, untouched));
  }
}

// In any order of threads, and however many sequences there are beside it.
TEST_CASE("Attention on Hopper gives a sequence the same bytes whatever runs beside it, and when",
          "[hopper][slow]") {
  for (const std::int64_t head_size : {64, 128}) {
    const AttentionCase both = hopper_case(2, 200, 2, head_size, 4);
    INFO(both.name());
    const AttentionInputs<bf16> inputs(both);
    const auto first = run_forward(both, inputs.qkv, Way::fast);
    const auto backward = [](const AttentionCase& c, const AttentionInputs<bf16>& from,
                             const ForwardResult<bf16>& saved) {
      return run_backward(c, from, saved.output, saved.log_sum_exp, Way::fast);
    };
    const std::vector<bf16> gradient = backward(both, inputs, first);
    for (unsigned seed = 1; seed <= 5; ++seed) {
      INFO("seed " << seed);
      change_order(seed);
      CHECK(same_bits(run_forward(both, inputs.qkv, Way::fast).output, first.output));
      CHECK(same_bits(backward(both, inputs, first), gradient));
    }
    AttentionCase one = both;
    one.sizes.sequences = 1;
    AttentionInputs<bf16> half = inputs;
    half.qkv.resize(inputs.qkv.size() / 2);
    half.output_gradient.resize(inputs.output_gradient.size() / 2);
    const auto alone = run_forward(one, half.qkv, Way::fast);
    const auto head_of = [](const auto& all, std::size_t size) {
      return std::vector(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(size));
    };
    CHECK(same_bits(alone.output, head_of(first.output, alone.output.size())));
    CHECK(same_bits(backward(one, half, alone), head_of(gradient, half.qkv.size())));
  }
}

// Heads of other sizes are computed by the other kernels, whichever are asked for.
TEST_CASE("Asking for Hopper's kernels with heads they do not compute gets the others",
          "[hopper]") {
  AttentionCase c = hopper_case(1, 70, 2, 80);
  const AttentionInputs<bf16> inputs(c);
  const auto asked = run_forward(c, inputs.qkv, Way::fast);
  c.sizes.kernels = AttentionKernels::mma_sync;
  CHECK(same_bits(run_forward(c, inputs.qkv, Way::fast).output, asked.output));
}

}  // namespace
}  // namespace spillway::cuda
