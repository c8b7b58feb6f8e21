// Attention that keeps to documents: against fp64, with the bounds that a GPT's attention is held
// to.
#include <catch2/catch.hpp>
#include <random>

#include "tests/cuda/attention/attention_run.hpp"

namespace spillway::cuda {
namespace {

// Borders at the edges of tiles of 16, 32, 64 and 128 and beside them; documents of one token
// among long ones and alone; one document; random ones.
std::vector<std::vector<std::int64_t>> document_lengths() {
  std::vector<std::vector<std::int64_t>> all = {
      {64}, {128, 1, 63}, {16, 32, 16, 1, 15}, {65, 63}, {63, 66}, {1}, {1, 200, 1}, {1000}};
  std::mt19937_64 random(5);
  std::vector<std::int64_t> lengths;
  for (int i = 0; i < 50; ++i)
    lengths.push_back(static_cast<std::int64_t>(random() % (i % 2 == 0 ? 9 : 90)) + 1);
  all.push_back(lengths);
  return all;
}

std::vector<AttentionCase> document_cases() {
  const std::vector<AttentionCase> shapes = {
      attention_case(2, 200, 1, 64),        grouped_case(1, 70, 1, 3, 8, 0, 4),
      grouped_case(2, 130, 2, 2, 32, 17),   grouped_case(1, 257, 1, 2, 64, 33),
      grouped_case(1, 150, 1, 2, 80, 70),   grouped_case(2, 260, 1, 2, 128, 0),
      grouped_case(1, 333, 1, 1, 128, 100), attention_case(1, 333, 1, 16)};
  std::vector<AttentionCase> all;
  std::size_t next = 0;
  for (const auto& lengths : document_lengths()) {
    for (int i = 0; i < 3; ++i)
      all.push_back(with_documents(shapes[next++ % shapes.size()], lengths));
  }
  return all;
}

TEST_CASE("Attention within documents is that of fp64, on tensor cores", "[attention]") {
  for (const AttentionCase& c : document_cases()) check_forward<bf16>(c, Way::fast);
}

TEST_CASE("Gradients of attention within documents are those of fp64, on tensor cores",
          "[attention]") {
  for (const AttentionCase& c : document_cases()) check_backward<bf16>(c, Way::fast);
}

TEST_CASE("Plain attention within documents is that of fp64", "[attention]") {
  for (const AttentionCase& c : document_cases()) {
    if (c.sizes.tokens > 260) continue;
    check_forward<float>(c, Way::plain);
    check_backward<float>(c, Way::plain);
    if (c.sizes.tokens > 140) continue;
    check_forward<bf16>(c, Way::plain);
    check_backward<bf16>(c, Way::plain);
  }
}

TEST_CASE("Attention of a small text of documents, with every kernel there is",
          "[attention][sanitizer][few]") {
  for (const std::int64_t head_size : {16, 32, 64, 96, 128}) {
    const AttentionCase c =
        with_documents(grouped_case(1, 130, 1, 2, head_size, 40, 3), {30, 1, 50});
    check_forward<bf16>(c, Way::fast);
    check_backward<bf16>(c, Way::fast);
  }
  const AttentionCase c = with_documents(grouped_case(2, 70, 1, 2, 40, 20), {30, 1, 50});
  check_forward<float>(c, Way::plain);
  check_backward<float>(c, Way::plain);
}

#ifdef SPILLWAY_EMULATED_GPU
TEST_CASE("Attention within documents fits in the shared memory of every GPU", "[attention]") {
  for (const std::size_t kilobytes : {std::size_t{164}, std::size_t{100}}) {
    emulator::reset();
    emulator::Machine machine;
    machine.shared_bytes = kilobytes * 1024;
    emulator::set_machine(machine);
    INFO(kilobytes << " KB of shared memory");
    for (const std::int64_t head_size : {96, 128}) {
      const AttentionCase c = with_documents(grouped_case(1, 200, 1, 2, head_size, 0), {70, 3});
      check_forward<bf16>(c, Way::fast);
      check_backward<bf16>(c, Way::fast);
    }
  }
  emulator::reset();
}
#endif

// One document is a sequence: the kernels that keep to borders have the bits of those that do not.
TEST_CASE("Attention within a document as long as the sequence changes nothing", "[attention]") {
  for (const AttentionCase& c :
       {attention_case(2, 130, 2, 64), grouped_case(1, 200, 1, 2, 128, 50, 3)}) {
    const auto check = [&](auto element) {
      using Element = decltype(element);
      const AttentionInputs<Element> inputs(c);
      const AttentionCase one = with_documents(c, {c.sizes.tokens});
      const ForwardResult<Element> none = run_forward(c, inputs.qkv, Way::fast);
      const ForwardResult<Element> whole = run_forward(one, inputs.qkv, Way::fast);
      CHECK(same_bits(whole.output, none.output));
      CHECK(same_bits(whole.log_sum_exp, none.log_sum_exp));
      CHECK(same_bits(run_backward(one, inputs, none.output, none.log_sum_exp, Way::fast),
                      run_backward(c, inputs, none.output, none.log_sum_exp, Way::fast)));
      const AttentionCase two = with_documents(c, {c.sizes.tokens - 1});
      CHECK_FALSE(same_bits(run_forward(two, inputs.qkv, Way::fast).output, none.output));
    };
    check(bf16{});
    check(float{});
  }
}

// Keys and values that are NaN would reach every query whose tile they are in, though masked.
TEST_CASE("Attention leaves tiles of keys alone that are of other documents", "[attention]") {
  const AttentionCase c = with_documents(grouped_case(1, 400, 1, 2, 64, 0), {100});
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
  CHECK(same_bits(tail(result.output, 128 * a), tail(whole.output, 128 * a)));
  CHECK_FALSE(same_bits(result.output, whole.output));
  CHECK(same_bits(tail(again, 128 * columns), tail(gradient, 128 * columns)));
}

TEST_CASE("Attention within documents has the same bytes in any order of threads", "[attention]") {
  for (const std::int64_t head_size : {24, 64, 128}) {
    const AttentionCase c = with_documents(grouped_case(1, 200, 1, 3, head_size, 70), {33, 1, 90});
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
