// Attention of models whose heads of queries share heads of keys, whose queries see a window of
// keys, and whose queries and keys lie apart from their values: against fp64, with the bounds that
// a GPT's attention is held to.
#include <catch2/catch.hpp>

#include "tests/cuda/attention/attention_run.hpp"

namespace spillway::cuda {
namespace {

// Lengths around the sizes of tiles (32, 64, 128); windows within a tile, of a tile, of several,
// and longer than the sequence.
std::vector<AttentionCase> cases() {
  return {grouped_case(1, 70, 1, 3, 8, 0, 4),    grouped_case(2, 65, 2, 2, 16, 1),
          grouped_case(1, 130, 1, 2, 32, 17, 3), grouped_case(2, 130, 2, 3, 40, 64),
          grouped_case(1, 200, 1, 4, 64, 0, 5),  grouped_case(1, 257, 1, 2, 64, 33),
          grouped_case(1, 333, 1, 1, 64, 100),   grouped_case(1, 150, 1, 2, 80, 70),
          grouped_case(1, 257, 1, 2, 128, 0),    grouped_case(1, 333, 1, 2, 128, 40),
          grouped_case(1, 130, 2, 1, 128, 500)};
}

TEST_CASE("Attention of grouped queries and of a sliding window is that of fp64, on tensor cores",
          "[attention]") {
  for (const AttentionCase& c : cases()) check_forward<bf16>(c, Way::fast);
}

TEST_CASE("Gradients of grouped queries and of a sliding window are those of fp64, on tensor cores",
          "[attention]") {
  for (const AttentionCase& c : cases()) check_backward<bf16>(c, Way::fast);
}

TEST_CASE("Plain attention of grouped queries and of a sliding window is that of fp64",
          "[attention]") {
  for (const AttentionCase& c : cases()) {
    check_forward<float>(c, Way::plain);
    check_backward<float>(c, Way::plain);
    if (c.sizes.tokens > 140) continue;
    check_forward<bf16>(c, Way::plain);
    check_backward<bf16>(c, Way::plain);
  }
}

TEST_CASE("Attention of a small text with groups and a window, with every kernel there is",
          "[attention][sanitizer][few]") {
  for (const std::int64_t head_size : {16, 32, 64, 96, 128}) {
    const AttentionCase c = grouped_case(1, 130, 1, 2, head_size, 40, 3);
    check_forward<bf16>(c, Way::fast);
    check_backward<bf16>(c, Way::fast);
  }
  check_forward<float>(grouped_case(2, 70, 1, 2, 40, 20), Way::plain);
  check_backward<float>(grouped_case(2, 70, 1, 2, 40, 20), Way::plain);
}

// GPUs with less shared memory have other tiles.
#ifdef SPILLWAY_EMULATED_GPU
TEST_CASE("Attention with groups and a window fits in the shared memory of every GPU",
          "[attention]") {
  for (const std::size_t kilobytes : {std::size_t{164}, std::size_t{100}}) {
    emulator::reset();
    emulator::Machine machine;
    machine.shared_bytes = kilobytes * 1024;
    emulator::set_machine(machine);
    INFO(kilobytes << " KB of shared memory");
    for (const std::int64_t head_size : {96, 128}) {
      const AttentionCase c = grouped_case(1, 200, 1, 2, head_size, 50);
      check_forward<bf16>(c, Way::fast);
      check_backward<bf16>(c, Way::fast);
    }
  }
  emulator::reset();
}
#endif

// q and k of rows (A + 2K) in a tensor of their own, v in another with columns that are not its
// own.
template <class Element>
struct Apart {
  std::vector<Element> qk, v;
  std::int64_t qk_stride, v_stride;
  Apart(const AttentionSizes& sizes, const std::vector<Element>& qkv)
      : qk_stride(sizes.channels() + sizes.kv_channels()), v_stride(sizes.kv_channels() + 8) {
    const auto columns = static_cast<std::size_t>(sizes.columns());
    for (std::size_t i = 0; i < qkv.size(); ++i) {
      const auto column = static_cast<std::int64_t>(i % columns);
      (column < qk_stride ? qk : v).push_back(qkv[i]);
      if (column == sizes.columns() - 1) v.insert(v.end(), 8, from_float<Element>(1e30f));
    }
  }
};

template <class Element>
void check_apart(const AttentionCase& c) {
  INFO(c.name() << ", " << sizeof(Element) << " bytes");
  const AttentionInputs<Element> inputs(c);
  const ForwardResult<Element> expected = run_forward(c, inputs.qkv, Way::fast);
  const std::vector<Element> expected_gradient =
      run_backward(c, inputs, expected.output, expected.log_sum_exp, Way::fast);

  const Apart<Element> apart(c.sizes, inputs.qkv);
  const DeviceArray<Element> qk(apart.qk), v(apart.v), output_gradient(inputs.output_gradient);
  const DeviceArray<Element> output(expected.output.size()), gradient(inputs.qkv.size());
  const DeviceArray<float> log_sum_exp(expected.log_sum_exp.size());
  const DeviceArray<float> dots(static_cast<std::size_t>(c.rows() * c.sizes.heads));
  const AttentionInput<Element> input{qk.data(), v.data(), apart.qk_stride, apart.v_stride};
  const TestStream stream;
  attention_forward<Element>(c.sizes, input, output.data(), log_sum_exp.data(), stream);
  attention_backward<Element>(c.sizes, input, output.data(), log_sum_exp.data(),
                              output_gradient.data(), gradient.data(), dots.data(), stream);
  CHECK(same_bits(output.download(), expected.output));
  CHECK(same_bits(log_sum_exp.download(), expected.log_sum_exp));
  CHECK(same_bits(gradient.download(), expected_gradient));
}

// With as many heads of keys as of queries this also holds the kernels for any model against those
// of a GPT.
TEST_CASE("Attention has the same bits wherever its values lie", "[attention]") {
  for (const std::int64_t head_size : {32, 64, 128}) {
    check_apart<bf16>(attention_case(2, 200, 2, head_size, 3));
    check_apart<bf16>(grouped_case(1, 130, 1, 2, head_size, 50));
    check_apart<float>(attention_case(1, 70, 2, head_size));
  }
}

// A window that holds every token is none: it leaves all bits as they are.
TEST_CASE("A window as long as the sequence changes nothing", "[attention]") {
  AttentionCase c = attention_case(1, 130, 2, 64);
  const AttentionInputs<bf16> inputs(c);
  const ForwardResult<bf16> none = run_forward(c, inputs.qkv, Way::fast);
  c.sizes.window = 130;
  CHECK(same_bits(run_forward(c, inputs.qkv, Way::fast).output, none.output));
  c.sizes.window = 129;  // one key less, for one query
  CHECK_FALSE(same_bits(run_forward(c, inputs.qkv, Way::fast).output, none.output));
}

// Keys and values that are NaN would reach every query whose tile they are in, though masked.
TEST_CASE("Attention leaves tiles of keys alone that no query of a block sees", "[attention]") {
  const AttentionCase c = grouped_case(1, 400, 1, 2, 64, 32);
  AttentionInputs<bf16> inputs(c);
  const ForwardResult<bf16> whole = run_forward(c, inputs.qkv, Way::fast);
  const std::vector<bf16> gradient =
      run_backward(c, inputs, whole.output, whole.log_sum_exp, Way::fast);
  const auto columns = static_cast<std::size_t>(c.sizes.columns());
  const auto a = static_cast<std::size_t>(c.sizes.channels());
  for (std::size_t row = 0; row < 64; ++row)
    for (std::size_t column = a; column < columns; ++column)
      inputs.qkv[row * columns + column] = bf16{0xffff};
  const ForwardResult<bf16> result = run_forward(c, inputs.qkv, Way::fast);
  const std::vector<bf16> again =
      run_backward(c, inputs, whole.output, whole.log_sum_exp, Way::fast);
  const auto tail = [](const std::vector<bf16>& all, std::size_t from) {
    return std::vector<bf16>(all.begin() + static_cast<std::ptrdiff_t>(from), all.end());
  };
  // Queries from 128 on see keys from 97 on, in tiles of 64.
  CHECK(same_bits(tail(result.output, 128 * a), tail(whole.output, 128 * a)));
  CHECK_FALSE(same_bits(result.output, whole.output));
  // Gradients of queries and of keys from 128 on.
  CHECK(same_bits(tail(again, 128 * columns), tail(gradient, 128 * columns)));
}

TEST_CASE("Attention of groups and windows has the same bytes in any order of threads",
          "[attention]") {
  for (const std::int64_t head_size : {24, 64, 128}) {
    const AttentionCase c = grouped_case(1, 200, 1, 3, head_size, 70);
    INFO(c.name());
    const auto check_orders = [&](auto element) {
      using Element = decltype(element);
      const AttentionInputs<Element> inputs(c);
      require_repeatable([&] {
        const auto forward = run_forward(c, inputs.qkv, Way::fast);
        return bytes_of(forward.output, forward.log_sum_exp,
                        run_backward(c, inputs, forward.output, forward.log_sum_exp, Way::fast));
      });
    };
    check_orders(bf16{});
    check_orders(float{});
  }
}

}  // namespace
}  // namespace spillway::cuda
