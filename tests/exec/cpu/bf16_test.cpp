// bf16 on the host: rounding by its definition, and the optimizer's kernels with bf16 gradients and
// parameters, which are those of fp32 on the widened values, rounded at the end.
#include "exec/cpu/bf16.hpp"

#include <bit>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "exec/cpu/adam.hpp"

namespace spillway {
namespace {

constexpr CpuVariant variants[] = {CpuVariant::plain, CpuVariant::avx2, CpuVariant::avx512};

float float_of(std::uint32_t bits) { return std::bit_cast<float>(bits); }
std::uint32_t bits_of(float value) { return std::bit_cast<std::uint32_t>(value); }

std::vector<float> widened(const std::vector<bf16>& values) {
  std::vector<float> result;
  for (const bf16 value : values) result.push_back(to_float(value));
  return result;
}
const std::vector<float>& widened(const std::vector<float>& values) { return values; }

template <class Element>
std::vector<Element> narrowed(const std::vector<float>& values) {
  std::vector<Element> result;
  for (const float value : values) result.push_back(from_float<Element>(value));
  return result;
}

// Bits, so that NaN equals itself.
template <class Element>
bool same(const std::vector<Element>& a, const std::vector<Element>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(Element)) == 0;
}

// Every value of the upper half, with lower halves on, beside and far from a tie.
std::vector<float> all_kinds() {
  std::vector<float> values;
  for (std::uint32_t upper = 0; upper < 0x10000; ++upper) {
    for (const std::uint32_t lower : {0x0000u, 0x0001u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu})
      values.push_back(float_of(upper << 16 | lower));
  }
  return values;
}

// Master, moments, a gradient and another: ordinary, denormal, large; v is not negative.
template <class Gradient, class Parameter>
struct State {
  std::vector<float> master, m, v;
  std::vector<Gradient> gradient, second;
  std::vector<Parameter> out;
  double squares = 0;

  bool same_as(const State& other) const {
    return same(master, other.master) && same(m, other.m) && same(v, other.v) &&
           same(out, other.out) &&
           std::bit_cast<std::uint64_t>(squares) == std::bit_cast<std::uint64_t>(other.squares);
  }
};

template <class Gradient, class Parameter>
State<Gradient, Parameter> random_state(std::size_t n, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  const auto values = [&] {
    std::vector<float> result;
    for (std::size_t i = 0; i < n; ++i) {
      const float scales[] = {1, 1, 1, 0, 1e-39f, 1e-20f, 1e12f};
      result.push_back(normal(random) * scales[random() % 7]);
    }
    return result;
  };
  State<Gradient, Parameter> s;
  s.master = values();
  s.m = values();
  s.v = values();
  for (float& value : s.v) value = std::fabs(value);
  s.gradient = narrowed<Gradient>(values());
  s.second = narrowed<Gradient>(values());
  s.out = narrowed<Parameter>(std::vector<float>(n, std::nanf("")));
  return s;
}

const AdamStep usual{3e-4f, 0.9f, 0.95f, 1e-8f, 0.1f, 7, 0.5f};

// The update of elements [from, end).
template <class Gradient, class Parameter>
void update(State<Gradient, Parameter>& s, std::size_t from, bool second, CpuVariant variant) {
  s.squares = adamw_update(s.master.data() + from, s.m.data() + from, s.v.data() + from,
                           s.gradient.data() + from, second ? s.second.data() + from : nullptr,
                           s.out.data() + from, static_cast<std::int64_t>(s.out.size() - from),
                           usual, variant);
}

template <class Gradient, class Parameter>
void check_against_fp32(std::uint64_t seed) {
  for (const std::size_t n : {1u, 3u, 8u, 15u, 16u, 17u, 31u, 100u, 1000u, 4099u}) {
    for (const bool second : {false, true}) {
      // From element 1 on nothing is aligned to a vector.
      for (const std::size_t from : {0u, 1u}) {
        if (from == n) continue;
        auto start = random_state<Gradient, Parameter>(n, seed + n);
        start.gradient[n - 1] = from_float<Gradient>(std::nanf(""));
        if (n > 20) start.gradient[n - 18] = from_float<Gradient>(-INFINITY);
        State<float, float> exact;
        exact.master = start.master;
        exact.m = start.m;
        exact.v = start.v;
        exact.gradient = widened(start.gradient);
        exact.second = widened(start.second);
        exact.out.assign(n, std::nanf(""));
        update(exact, from, second, CpuVariant::plain);
        for (const CpuVariant variant : variants) {
          if (!cpu_variant_available(variant)) continue;
          INFO(cpu_kernels(variant).name << " n " << n << " second " << second << " from " << from);
          auto s = start;
          update(s, from, second, variant);
          CHECK(same(s.master, exact.master));
          CHECK(same(s.m, exact.m));
          CHECK(same(s.v, exact.v));
          CHECK(same(s.out, narrowed<Parameter>(exact.out)));
          CHECK(std::isnan(s.squares));
        }
      }
    }
  }
}

ModelSpec small_model() {
  ModelSpec model;
  model.layers = 1;
  model.hidden = 12;
  model.heads = model.kv_heads = 2;
  model.ffn = 48;
  model.vocabulary = 19;
  model.positions = 5;
  return model;
}

template <class Gradient, class Parameter>
void check_pieces(std::int64_t unit) {
  const ModelSpec model = small_model();
  const auto layout = unit_layout(model, unit == 0 ? 0 : embedding_unit(model));
  const auto elements = static_cast<std::size_t>(unit_elements(model, unit));
  const auto used =
      static_cast<std::size_t>(layout.back().offset + layout.back().rows * layout.back().columns);
  auto whole = random_state<Gradient, Parameter>(elements, 21);
  auto pieces = whole;
  const auto run = [&](State<Gradient, Parameter>& s, std::size_t first, std::size_t count) {
    return adamw_update_unit(s.master.data() + first, s.m.data() + first, s.v.data() + first,
                             s.gradient.data() + first, s.second.data() + first,
                             s.out.data() + first, static_cast<std::int64_t>(first),
                             static_cast<std::int64_t>(count), layout, usual);
  };
  const double squares = run(whole, 0, elements);
  double sum = 0;
  for (std::size_t first = 0; first < elements; first += 700)
    sum += run(pieces, first, std::min<std::size_t>(700, elements - first));
  CHECK(pieces.same_as(whole));
  CHECK(sum == Approx(squares).epsilon(1e-12));
  for (std::size_t i = used; i < elements; ++i) {
    REQUIRE(whole.master[i] == 0.0f);
    REQUIRE(bits_of(to_float(whole.out[i])) == 0);
  }
  // Weight decay is for matrices and tables: with no gradient and no moments, p (1 - lr decay).
  auto still = random_state<Gradient, Parameter>(elements, 22);
  std::fill(still.master.begin(), still.master.end(), 1.0f);
  for (auto* buffer : {&still.m, &still.v}) std::fill(buffer->begin(), buffer->end(), 0.0f);
  std::fill(still.gradient.begin(), still.gradient.end(), Gradient{});
  std::fill(still.second.begin(), still.second.end(), Gradient{});
  AdamStep decay = usual;
  decay.learning_rate = decay.weight_decay = 0.5f;
  adamw_update_unit(still.master.data(), still.m.data(), still.v.data(), still.gradient.data(),
                    nullptr, still.out.data(), 0, static_cast<std::int64_t>(elements), layout,
                    decay);
  for (const TensorLayout& tensor : layout) {
    INFO(tensor.name);
    const auto at = static_cast<std::size_t>(tensor.offset);
    CHECK(to_float(still.out[at]) == (tensor.decay ? 0.75f : 1.0f));
  }
}

// Large enough for several pieces.
template <class Gradient, class Parameter>
void check_crew() {
  constexpr std::size_t elements = 300'000;
  const std::vector<TensorLayout> layout = {{"a", 1, 1000, 0, false}, {"b", 290, 1000, 1000, true}};
  const auto start = random_state<Gradient, Parameter>(elements, 5);
  const auto run = [&](int threads) {
    ThreadPool pool(threads);
    auto s = start;
    s.squares = adamw_update_unit(pool, s.master.data(), s.m.data(), s.v.data(), s.gradient.data(),
                                  nullptr, s.out.data(), 0, elements, layout, usual);
    return s;
  };
  const auto alone = run(1);
  CHECK(run(3).same_as(alone));
}

}  // namespace

TEST_CASE("to_bf16 gives the nearest value, of two as near the even one, and NaN for NaN") {
  // The nearest of the three around the truncated one, found in double; what lies beyond the
  // largest finite value by half a step or more is infinite.
  for (const float value : all_kinds()) {
    const bf16 rounded = to_bf16(value);
    if (std::isnan(value)) {
      REQUIRE(std::isnan(to_float(rounded)));
      REQUIRE((rounded.bits & 0x40) != 0);  // quiet
      REQUIRE(rounded.bits >> 15 == bits_of(value) >> 31);
      continue;
    }
    const auto down = static_cast<std::uint16_t>(bits_of(value) >> 16);
    const auto up = static_cast<std::uint16_t>(down + 1);
    // Beyond the largest finite value, one more step of the same size.
    const auto exactly = [](std::uint16_t bits) {
      const float as_float = to_float(bf16{bits});
      return std::isinf(as_float) ? std::copysign(0x1p128, static_cast<double>(as_float))
                                  : static_cast<double>(as_float);
    };
    if (std::isinf(value)) {
      REQUIRE(rounded.bits == down);
      continue;
    }
    const double exact = static_cast<double>(value);
    const double below = std::fabs(exact - exactly(down)), above = std::fabs(exactly(up) - exact);
    const bool takes_down = below < above || (below == above && down % 2 == 0);
    INFO(std::hex << bits_of(value));
    REQUIRE(rounded.bits == (takes_down ? down : up));
  }
  CHECK(to_float(to_bf16(1.0f)) == 1.0f);
  CHECK(std::isinf(to_float(to_bf16(std::numeric_limits<float>::max()))));
}

TEST_CASE("round_to_bf16 is to_bf16 of every element, in every variant and any alignment") {
  const std::vector<float> values = all_kinds();
  const std::vector<bf16> expected = narrowed<bf16>(values);
  for (const CpuVariant variant : variants) {
    if (!cpu_variant_available(variant)) continue;
    INFO(cpu_kernels(variant).name);
    for (const std::size_t from : {0u, 1u, 5u}) {
      std::vector<bf16> found(expected.size());
      std::copy_n(expected.begin(), from, found.begin());
      cpu_kernels(variant).round_to_bf16(values.data() + from, found.data() + from,
                                         static_cast<std::int64_t>(values.size() - from));
      CHECK(same(found, expected));
    }
  }
}

TEST_CASE("AdamW with bf16 is AdamW of the widened gradient, its parameters the rounded masters") {
  const std::uint64_t seed = 12;
  INFO("seed " << seed);
  check_against_fp32<float, float>(seed);
  check_against_fp32<float, bf16>(seed);
  check_against_fp32<bf16, float>(seed);
  check_against_fp32<bf16, bf16>(seed);
}

TEST_CASE("AdamW writes no element beyond those it is given, whatever their width") {
  for (const CpuVariant variant : variants) {
    if (!cpu_variant_available(variant)) continue;
    for (const std::int64_t n : {1, 7, 16, 23}) {
      auto s = random_state<bf16, bf16>(64, 9);
      const auto before = s;
      adamw_update(s.master.data(), s.m.data(), s.v.data(), s.gradient.data(), nullptr,
                   s.out.data(), n, usual, variant);
      INFO(cpu_kernels(variant).name << " n " << n);
      for (std::size_t i = static_cast<std::size_t>(n); i < 64; ++i) {
        REQUIRE(s.out[i].bits == before.out[i].bits);
        REQUIRE(s.master[i] == before.master[i]);
      }
    }
  }
}

TEST_CASE(
    "A unit with bf16 updated in pieces equals the unit updated at once, and padding stays zero") {
  for (const std::int64_t unit : {0, 1}) {
    INFO("unit " << unit);
    check_pieces<float, bf16>(unit);
    check_pieces<bf16, float>(unit);
    check_pieces<bf16, bf16>(unit);
  }
}

TEST_CASE("Threads share an update with bf16 and leave its bits alone") {
  check_crew<float, bf16>();
  check_crew<bf16, float>();
  check_crew<bf16, bf16>();
}

TEST_CASE("The sum of squares of bf16 is that of the widened elements, to the bit") {
  for (const std::size_t n : {1u, 31u, 2047u, 2048u, 2049u, 10'007u}) {
    const auto s = random_state<bf16, bf16>(n, n);
    const std::vector<float> a = widened(s.gradient), b = widened(s.second);
    const auto count = static_cast<std::int64_t>(n);
    for (const CpuVariant variant : variants) {
      if (!cpu_variant_available(variant)) continue;
      INFO(cpu_kernels(variant).name << " n " << n);
      const CpuKernels& plain = cpu_kernels(CpuVariant::plain);
      const CpuKernels& kernels = cpu_kernels(variant);
      CHECK(kernels.sum_squares(s.gradient.data(), nullptr, count) ==
            plain.sum_squares(a.data(), nullptr, count));
      CHECK(kernels.sum_squares(s.gradient.data(), s.second.data(), count) ==
            plain.sum_squares(a.data(), b.data(), count));
      auto poisoned = s.gradient;
      poisoned[n / 2] = to_bf16(std::nanf(""));
      CHECK(std::isnan(kernels.sum_squares(poisoned.data(), nullptr, count)));
    }
  }
}

}  // namespace spillway
