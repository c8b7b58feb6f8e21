// AdamW and clipping: the bits of the CPU's.
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>

#include "exec/cpu/adam.hpp"
#include "exec/cuda/kernels/kernels.hpp"
#include "exec/run/clipping.hpp"
#include "tests/cuda/device_memory.hpp"

using namespace spillway;
using namespace spillway::cuda;

namespace {

AdamNumbers numbers_of(const AdamStep& step, bool skip = false) {
  const AdamConstants c = adam_constants(step);
  return {c.decay_factor, c.beta1,           c.one_minus_beta1,
          c.beta2,        c.one_minus_beta2, c.inverse_root_correction2,
          c.epsilon,      c.step_size,       c.gradient_factor,
          c.noise,        skip ? 1 : 0};
}

UnitRanges ranges_of(const std::vector<TensorLayout>& layout) {
  UnitRanges ranges;
  for (const TensorLayout& tensor : layout) {
    ranges.range[ranges.count++] = {tensor.offset, tensor.offset + tensor.rows * tensor.columns,
                                    tensor.decay};
  }
  return ranges;
}

// Ordinary values, zeros, denormals and very large ones; v is never negative.
template <class T>
std::vector<T> values(std::size_t n, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  std::vector<T> result(n);
  for (T& value : result) {
    const float x = normal(random);
    constexpr float sizes[] = {0.0f, 1e-40f, 1e-22f, 1e15f};
    const std::uint64_t kind = random() % 12;
    value = from_float<T>(kind < 4 ? x * sizes[kind] : x);
  }
  return result;
}

template <class Gradient, class Element, class Moment = float>
struct State {
  std::vector<float> master;
  std::vector<Moment> m, v;
  std::vector<Gradient> gradient, second;
  std::vector<Element> parameters;

  State(std::size_t n, std::uint64_t seed)
      : master(values<float>(n, seed)),
        m(values<Moment>(n, seed + 1)),
        v(values<Moment>(n, seed + 2)),
        gradient(values<Gradient>(n, seed + 3)),
        second(values<Gradient>(n, seed + 4)),
        parameters(n, from_float<Element>(std::nanf(""))) {
    for (Moment& x : v) x = from_float<Moment>(std::fabs(to_float(x)));
  }
};

// What is updated of which unit.
struct Piece {
  std::int64_t first = 0, elements = 0;
  std::vector<TensorLayout> layout;
};

TensorLayout tensor(std::int64_t offset, std::int64_t elements, bool decay) {
  return {"", 1, elements, offset, decay};
}

const AdamStep usual{3e-4f, 0.9f, 0.95f, 1e-8f, 0.1f, 7, 1, 12345, 3};

// One update on the GPU.
template <class Gradient, class Element, class Moment = float>
struct Update {
  DeviceArray<float> master;
  DeviceArray<Moment> m, v;
  DeviceArray<Gradient> gradient, second;
  DeviceArray<Element> parameters;
  DeviceArray<AdamNumbers> numbers;
  PinnedArray<double> squares;
  DeviceArray<std::byte> memory;
  TestStream stream;

  Update(const State<Gradient, Element, Moment>& s, const AdamNumbers& with)
      : master(s.master),
        m(s.m),
        v(s.v),
        gradient(s.gradient),
        second(s.second),
        parameters(s.parameters.size()),
        numbers(std::vector<AdamNumbers>{with}),
        squares(1),
        memory(workspace_bytes(8, 8, static_cast<std::int64_t>(s.master.size()))) {}
  void run(const Piece& piece, bool two) {
    adamw(master.data(), m.data(), v.data(), gradient.data(), two ? second.data() : nullptr,
          parameters.data(), usual.unit, piece.first, piece.elements, ranges_of(piece.layout),
          numbers.data(), squares.data(), Workspace{memory.data(), memory.size()}, stream);
    static_cast<void>(memory.download());  // checks its guards
  }
};

// The GPU's masters, moments and parameters have the bits of the CPU's; the sum of squares, in
// another order, agrees to 1e-12.
template <class Gradient, class Element, class Moment>
void check_with(const Piece& piece, bool two, const AdamStep& step, std::uint64_t seed) {
  INFO("first " << piece.first << " elements " << piece.elements << " tensors "
                << piece.layout.size() << " second " << two << " gradient " << sizeof(Gradient)
                << " parameter " << sizeof(Element) << " moment " << sizeof(Moment) << " seed "
                << seed);
  State<Gradient, Element, Moment> cpu(static_cast<std::size_t>(piece.elements), seed);
  Update<Gradient, Element, Moment> gpu(cpu, numbers_of(step));
  for (int repeat = 0; repeat < 2; ++repeat) {
    gpu.run(piece, two);
    const double squares =
        adamw_update_unit(cpu.master.data(), cpu.m.data(), cpu.v.data(), cpu.gradient.data(),
                          two ? cpu.second.data() : nullptr, cpu.parameters.data(), piece.first,
                          piece.elements, piece.layout, step, CpuVariant::plain);
    CHECK(same_bits(gpu.master.download(), cpu.master));
    CHECK(same_bits(gpu.m.download(), cpu.m));
    CHECK(same_bits(gpu.v.download(), cpu.v));
    CHECK(same_bits(gpu.parameters.download(), cpu.parameters));
    CHECK(gpu.squares.wait()[0] == Approx(squares).epsilon(1e-12));
  }
}

template <class Gradient, class Element>
void check(const Piece& piece, bool two, const AdamStep& step, std::uint64_t seed) {
  check_with<Gradient, Element, float>(piece, two, step, seed);
  check_with<Gradient, Element, bf16>(piece, two, step, seed + 500);
}

template <class Gradient, class Element>
void check_pieces() {
  AdamStep clipped = usual;
  clipped.gradient_factor = 0.37f;
  std::uint64_t seed = 1;
  for (const bool two : {false, true}) {
    for (const AdamStep& step : {usual, clipped}) {
      check<Gradient, Element>({0, 1, {tensor(0, 1, true)}}, two, step, ++seed);
      check<Gradient, Element>({0, 4096, {tensor(0, 4096, true)}}, two, step, ++seed);
      // Padding between tensors and behind them, borders within a thread's elements.
      check<Gradient, Element>({0,
                                10'240,
                                {tensor(0, 24, false), tensor(24, 3, true), tensor(30, 5000, true),
                                 tensor(5037, 2000, false), tensor(8192, 1000, true)}},
                               two, step, ++seed);
      // A piece from the middle of a unit; tensors begin before it and end behind.
      check<Gradient, Element>(
          {4096, 2048, {tensor(0, 4000, true), tensor(4000, 500, false), tensor(5000, 9000, true)}},
          two, step, ++seed);
      // Padding alone.
      check<Gradient, Element>({6144, 2048, {tensor(0, 6000, true)}}, two, step, ++seed);
    }
  }
  // Far into a unit of 8 billion elements: offsets beyond 32 bits, other bits to round with.
  const std::int64_t far = std::int64_t{3} << 31;
  check<Gradient, Element>({far,
                            6144,
                            {tensor(0, far + 1000, true), tensor(far + 1008, 500, false),
                             tensor(far + 2048, far, true)}},
                           true, usual, 77);
}

}  // namespace

TEST_CASE("AdamW on the GPU has the bits of the CPU's", "[kernels]") {
  check_pieces<float, float>();
  check_pieces<float, bf16>();
  check_pieces<bf16, float>();
  check_pieces<bf16, bf16>();
}

TEST_CASE("AdamW on the GPU of one piece with padding", "[kernels][sanitizer][few]") {
  const Piece piece{0, 6144, {tensor(0, 3000, true), tensor(4096, 2000, false)}};
  check<float, float>(piece, true, usual, 31);
  check<float, bf16>(piece, true, usual, 32);
  check<bf16, float>(piece, false, usual, 33);
  check<bf16, bf16>(piece, true, usual, 34);
}

TEST_CASE("AdamW on the GPU: the sum of squares does not depend on the order of threads",
          "[kernels]") {
  const Piece piece{0, 50'000, {tensor(0, 50'000, true)}};
  const State<bf16, bf16> state(50'000, 9);
  require_repeatable([&] {
    Update<bf16, bf16> gpu(state, numbers_of(usual));
    gpu.run(piece, false);
    return bytes_of(gpu.master.download(), std::vector<double>{gpu.squares.wait()[0]});
  });
}

TEST_CASE("An update left out on the GPU writes parameters from masters, padding zero, no more",
          "[kernels]") {
  const Piece piece{0, 6144, {tensor(0, 3000, true), tensor(4096, 2048, false)}};
  const State<float, bf16, bf16> state(6144, 4);
  Update<float, bf16, bf16> gpu(state, numbers_of(usual, true));
  gpu.run(piece, false);
  CHECK(same_bits(gpu.master.download(), state.master));
  CHECK(same_bits(gpu.m.download(), state.m));
  CHECK(same_bits(gpu.v.download(), state.v));
  std::vector<bf16> expected;
  for (std::size_t i = 0; i < 6144; ++i)
    expected.push_back(to_bf16(i < 3000 || i >= 4096 ? state.master[i] : 0.0f));
  CHECK(same_bits(gpu.parameters.download(), expected));
  CHECK(gpu.squares.wait()[0] == 0);
}

namespace {

// prepare_update against gradient_use, and the numbers it does not touch. left_out: a unit that has
// no norm; -1: all have one.
void check_use(const Workload& workload, const std::vector<double>& norms, int unit,
               int left_out = -1) {
  std::string shown;
  for (std::size_t i = 0; i < std::min<std::size_t>(norms.size(), 8); ++i)
    shown += std::to_string(norms[i]) + " ";
  INFO("norms " << norms.size() << ": " << shown << ", unit " << unit << ", scope "
                << static_cast<int>(workload.clip.scope) << ", limit " << workload.clip.limit);
  std::vector<bool> frozen(norms.size());
  if (left_out >= 0) frozen[static_cast<std::size_t>(left_out)] = true;
  const GradientUse use = gradient_use(workload, norms, unit, frozen);
  ClipRule rule;
  rule.kind = workload.clip.scope == ClipScope::off      ? ClipKind::off
              : workload.clip.scope == ClipScope::global ? ClipKind::global
                                                         : ClipKind::layer;
  rule.skips_nonfinite = workload.on_nonfinite == OnNonFinite::skip;
  rule.limit = workload.clip.limit;
  rule.left_out = left_out;
  PinnedArray<AdamNumbers> from(1);
  AdamStep step = usual;
  step.gradient_factor = 123;  // overwritten
  *from.data() = numbers_of(step, true);
  DeviceArray<AdamNumbers> to(1);
  DeviceArray<double> device_norms(norms);
  TestStream stream;
  const auto count = static_cast<std::int64_t>(norms.size());
  prepare_update(from.data(), rule, norms.empty() ? nullptr : device_norms.data(), count,
                 count == 1 ? 0 : unit, to.data(), stream);
  const AdamNumbers got = to.download()[0];
  CHECK((got.skip != 0) == use.skip);
  CHECK(std::bit_cast<std::uint32_t>(got.gradient_factor) ==
        std::bit_cast<std::uint32_t>(use.factor));
  const AdamNumbers expected = numbers_of(step);
  CHECK(got.decay_factor == expected.decay_factor);
  CHECK(got.beta1 == expected.beta1);
  CHECK(got.one_minus_beta1 == expected.one_minus_beta1);
  CHECK(got.beta2 == expected.beta2);
  CHECK(got.one_minus_beta2 == expected.one_minus_beta2);
  CHECK(got.inverse_root_correction2 == expected.inverse_root_correction2);
  CHECK(got.epsilon == expected.epsilon);
  CHECK(got.step_size == expected.step_size);
  CHECK(got.noise.a == expected.noise.a);
  CHECK(got.noise.b == expected.noise.b);
}

}  // namespace

TEST_CASE("What clipping makes of a gradient on the GPU has the bits of the CPU's", "[kernels]") {
  const std::uint64_t seed = 21;
  INFO("seed " << seed);
  std::mt19937_64 random(seed);
  std::lognormal_distribution<double> squares(0, 6);
  const double infinity = std::numeric_limits<double>::infinity();
  for (const ClipScope scope : {ClipScope::off, ClipScope::global, ClipScope::layer}) {
    for (const OnNonFinite on_nonfinite : {OnNonFinite::stop, OnNonFinite::skip}) {
      Workload workload;
      workload.clip.scope = scope;
      workload.on_nonfinite = on_nonfinite;
      for (const double limit : {1.0, 0.1, 1e6}) {
        workload.clip.limit = limit;
        for (const std::size_t count : {0u, 1u, 2u, 13u, 32u, 33u, 100u}) {
          std::vector<double> norms(count);
          for (double& norm : norms) norm = squares(random);
          const int last = static_cast<int>(count) - 1;
          check_use(workload, norms, std::max(0, last / 2));
          if (count == 0) continue;
          for (const double bad : {infinity, std::nan(""), 0.0}) {
            norms[static_cast<std::size_t>(last)] = bad;
            check_use(workload, norms, last);
            check_use(workload, norms, 0);
          }
          // A frozen unit's is whatever lies there.
          if (count < 3) continue;
          norms[count - 2] = std::nan("");
          check_use(workload, norms, last, last - 1);
        }
      }
    }
  }
}

TEST_CASE("What clipping makes of a gradient on the GPU, of fewer and more units than a warp",
          "[kernels][sanitizer]") {
  Workload workload;
  workload.clip = {ClipScope::global, 0.1};
  for (const std::size_t count : {1u, 33u}) check_use(workload, std::vector<double>(count, 2.0), 0);
}
