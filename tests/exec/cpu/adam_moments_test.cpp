// AdamW with its moments in bf16: variants and pieces agree to the bit, the parameters are made of
// moments that are not rounded yet, and what is kept of these follows its equation on average.
#include <algorithm>
#include <bit>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "exec/cpu/adam.hpp"

namespace spillway {
namespace {

template <class Element>
bool same(const std::vector<Element>& a, const std::vector<Element>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(Element)) == 0;
}

template <class Gradient, class Parameter>
struct State {
  std::vector<float> master;
  std::vector<bf16> m, v;
  std::vector<Gradient> gradient, second;
  std::vector<Parameter> out;
  double squares = 0;

  bool same_as(const State& other) const {
    return same(master, other.master) && same(m, other.m) && same(v, other.v) &&
           same(out, other.out) &&
           std::bit_cast<std::uint64_t>(squares) == std::bit_cast<std::uint64_t>(other.squares);
  }
};

// Ordinary values, zeros, denormals and very large ones; v is never negative.
template <class Gradient, class Parameter>
State<Gradient, Parameter> random_state(std::size_t n, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  const auto value = [&] {
    constexpr float sizes[] = {1, 1, 1, 0, 1e-39f, 1e-22f, 1e15f};
    return normal(random) * sizes[random() % 7];
  };
  State<Gradient, Parameter> s;
  for (std::size_t i = 0; i < n; ++i) {
    s.master.push_back(value());
    s.m.push_back(to_bf16(value()));
    s.v.push_back(to_bf16(std::fabs(value())));
    s.gradient.push_back(from_float<Gradient>(value()));
    s.second.push_back(from_float<Gradient>(value()));
  }
  s.out.assign(n, from_float<Parameter>(std::nanf("")));
  return s;
}

const AdamStep usual{3e-4f, 0.9f, 0.95f, 1e-8f, 0.1f, 7, 0.5f, 1234, 2};

template <class Gradient, class Parameter>
void update(State<Gradient, Parameter>& s, std::size_t from, bool second, const AdamStep& step,
            CpuVariant variant) {
  s.squares = adamw_update(s.master.data() + from, s.m.data() + from, s.v.data() + from,
                           s.gradient.data() + from, second ? s.second.data() + from : nullptr,
                           s.out.data() + from, static_cast<std::int64_t>(s.out.size() - from),
                           step, variant);
}

template <class Gradient, class Parameter>
void check_variants() {
  const std::uint64_t seed = 41;
  for (const CpuVariant variant : {CpuVariant::avx2, CpuVariant::avx512}) {
    if (!cpu_variant_available(variant)) continue;
    for (const std::size_t n : {1u, 3u, 15u, 16u, 17u, 31u, 100u, 1000u, 4099u}) {
      for (const bool second : {false, true}) {
        for (const std::size_t from : {0u, 1u}) {  // from element 1 on nothing is aligned
          if (from == n) continue;
          INFO(cpu_kernels(variant).name << " n " << n << " second " << second << " from " << from
                                         << " gradient " << sizeof(Gradient) << " parameter "
                                         << sizeof(Parameter) << " seed " << seed + n);
          const auto start = random_state<Gradient, Parameter>(n, seed + n);
          auto plain = start, wide = start;
          AdamStep step = usual;
          for (int k = 0; k < 3; ++k, ++step.t) {
            update(plain, from, second, step, CpuVariant::plain);
            update(wide, from, second, step, variant);
          }
          CHECK(wide.same_as(plain));
        }
      }
    }
  }
}

float widened(bf16 value) { return to_float(value); }

}  // namespace

TEST_CASE("AdamW variants are bit-identical with bf16 moments, in every width of the others") {
  check_variants<float, float>();
  check_variants<float, bf16>();
  check_variants<bf16, float>();
  check_variants<bf16, bf16>();
}

// The update of fp32 moments, begun with the widened ones, has the masters to the bit; the moments
// are its, rounded by the noise of their seed, step, unit, element and moment.
TEST_CASE("the parameters are made of the new moments before these are rounded") {
  constexpr std::size_t n = 4099;
  for (const std::int64_t t : {1, 2, 1'000'000}) {
    AdamStep step = usual;
    step.t = t;
    auto s = random_state<float, float>(n, 77);
    std::vector<float> master = s.master, m(n), v(n), out(n);
    std::transform(s.m.begin(), s.m.end(), m.begin(), widened);
    std::transform(s.v.begin(), s.v.end(), v.begin(), widened);
    const double squares = adamw_update(master.data(), m.data(), v.data(), s.gradient.data(),
                                        s.second.data(), out.data(), n, step);
    update(s, 0, true, step, best_cpu_variant());
    CHECK(same(s.master, master));
    CHECK(same(s.out, out));
    CHECK(s.squares == squares);
    const NoiseKey key = unit_noise_key(step_noise_key(step.seed, t), 2, 0);
    for (std::uint32_t i = 0; i < n; ++i) {
      const std::uint32_t noise = element_noise(key, i);
      INFO("element " << i);
      REQUIRE(s.m[i].bits == round_stochastically(m[i], noise_of_m(noise)).bits);
      REQUIRE(s.v[i].bits == round_stochastically(v[i], noise_of_v(noise)).bits);
      REQUIRE(s.v[i].bits < 0x7f80);  // neither negative, nor infinite, nor NaN
    }
  }
}

TEST_CASE(
    "a unit with bf16 moments updated in pieces is the unit updated at once, on any threads") {
  ModelSpec model;
  model.layers = 1;
  model.hidden = 12;
  model.heads = model.kv_heads = 2;
  model.ffn = 48;
  model.vocabulary = 19;
  model.positions = 5;
  for (const std::int64_t unit : {0, 1}) {
    INFO("unit " << unit);
    const auto layout = unit_layout(model, unit == 0 ? 0 : embedding_unit(model));
    const std::int64_t elements = unit_elements(model, unit);
    const auto start = random_state<float, bf16>(static_cast<std::size_t>(elements), 21);
    const auto run = [&](auto& s, std::int64_t first, std::int64_t count) {
      adamw_update_unit(s.master.data() + first, s.m.data() + first, s.v.data() + first,
                        s.gradient.data() + first, s.second.data() + first, s.out.data() + first,
                        first, count, layout, usual);
    };
    auto whole = start;
    run(whole, 0, elements);
    for (const std::int64_t piece : {1, 7, 700, 2048}) {
      INFO("pieces of " << piece);
      auto pieces = start;
      for (std::int64_t first = (elements - 1) / piece * piece; first >= 0; first -= piece)
        run(pieces, first, std::min(piece, elements - first));
      CHECK(pieces.same_as(whole));
    }
    ThreadPool pool(3);
    auto shared = start;
    adamw_update_unit(pool, shared.master.data(), shared.m.data(), shared.v.data(),
                      shared.gradient.data(), shared.second.data(), shared.out.data(), 0, elements,
                      layout, usual);
    CHECK(shared.same_as(whole));
    // Padding is zero everywhere.
    const std::int64_t used = layout.back().offset + layout.back().rows * layout.back().columns;
    for (auto i = static_cast<std::size_t>(used); i < whole.out.size(); ++i)
      REQUIRE((whole.m[i].bits == 0 && whole.v[i].bits == 0 && whole.out[i].bits == 0));
  }
}

// A tensor that begins before element 2^32 of its unit and ends behind it.
TEST_CASE("elements before and behind the 2^32nd of a unit are each rounded by their own bits") {
  constexpr std::int64_t first = (std::int64_t{1} << 32) - 1000, elements = 2000;
  const std::vector<TensorLayout> layout = {{"", 1, first + elements, 0, true}};
  const auto start = random_state<float, float>(elements, 5);
  const auto run = [&](auto& s, std::int64_t at, std::int64_t count) {
    adamw_update_unit(s.master.data() + at, s.m.data() + at, s.v.data() + at,
                      s.gradient.data() + at, nullptr, s.out.data() + at, first + at, count, layout,
                      usual);
  };
  auto whole = start, pieces = start;
  run(whole, 0, elements);
  for (std::int64_t at = 0; at < elements; at += 300)
    run(pieces, at, std::min<std::int64_t>(300, elements - at));
  CHECK(pieces.same_as(whole));
  // The bits behind are not those of the unit's first elements.
  auto begin = start;
  adamw_update_unit(begin.master.data() + 1000, begin.m.data() + 1000, begin.v.data() + 1000,
                    begin.gradient.data() + 1000, nullptr, begin.out.data() + 1000, 0, 1000, layout,
                    usual);
  CHECK_FALSE(same(begin.v, whole.v));
}

TEST_CASE("steps, seeds and units have moments of their own, masters of one step do not") {
  const auto start = random_state<float, float>(2048, 9);
  const auto after = [&](auto change) {
    auto s = start;
    AdamStep step = usual;
    change(step);
    update(s, 0, false, step, best_cpu_variant());
    return s;
  };
  const auto base = after([](AdamStep&) {});
  for (const auto& other :
       {after([](AdamStep& s) { s.seed = 1235; }), after([](AdamStep& s) { s.unit = 3; })}) {
    CHECK(same(other.master, base.master));
    CHECK_FALSE(same(other.m, base.m));
    CHECK_FALSE(same(other.v, base.v));
  }
}

// v = 1, no gradient, beta2 = 0.999: each step takes 0.1 % off, and bf16's numbers below 1 are 0.39
// % apart. To nearest, v would stay 1 for ever. Stochastically its mean over n elements follows
// 0.999^t: a step's rounding adds a variance of at most s^2 / 4, s <= 2^-7 v, and what t steps have
// added decays by 0.999^2 a step, so that the variance of an element stays below
// (2^-8)^2 sum 0.999^(2k) < (2^-8)^2 500 and the standard error of the mean below
// 2^-8 sqrt(500 / n) = 1.4e-3 with n = 4096. The bound is 4 of them. m with beta1 = 0.9 likewise:
// sum 0.9^(2k) < 5.3.
TEST_CASE("moments decay as they should on average, where rounding to nearest would hold them") {
  constexpr std::int64_t n = 4096;
  std::vector<float> master(n, 0.0f), out(n);
  std::vector<bf16> m(n, to_bf16(1)), v(n, to_bf16(1));
  const std::vector<float> gradient(n, 0.0f);
  bf16 nearest = to_bf16(1);
  AdamStep step{0, 0.9f, 0.999f, 1e-8f, 0, 0, 1, 3, 0};
  const auto mean = [&](const std::vector<bf16>& moment) {
    double sum = 0;
    for (const bf16 one : moment) sum += static_cast<double>(to_float(one));
    return sum / n;
  };
  for (step.t = 1; step.t <= 1000; ++step.t) {
    adamw_update(master.data(), m.data(), v.data(), gradient.data(), nullptr, out.data(), n, step);
    nearest = to_bf16(to_float(nearest) * step.beta2);
    if (step.t % 100 != 0 && step.t > 20) continue;
    INFO("step " << step.t);
    const double t = static_cast<double>(step.t);
    CHECK(std::abs(mean(v) - std::pow(0.999, t)) < 4 * std::sqrt(500.0 / n) / 256);
    CHECK(std::abs(mean(m) - std::pow(0.9, t)) < 4 * std::sqrt(5.3 / n) / 256);
  }
  CHECK(to_float(nearest) == 1.0f);
}

TEST_CASE("a gradient that is not finite leaves moments that say so, a huge one finite moments") {
  // The square of 1.8e19, 3.24e38, is below the largest number of bf16, 3.390e38; that of 1.842e19,
  // 3.393e38, is beyond it and below fp32's, 3.403e38.
  const std::vector<float> gradient = {std::nanf(""), INFINITY, 1.8e19f, 1.842e19f};
  AdamStep step = usual;
  step.gradient_factor = 1;
  step.beta1 = step.beta2 = 0;
  for (step.t = 1; step.t < 50; ++step.t) {
    std::vector<float> master(4, 1.0f), out(4);
    std::vector<bf16> m(4, to_bf16(0)), v(4, to_bf16(0));
    adamw_update(master.data(), m.data(), v.data(), gradient.data(), nullptr, out.data(), 4, step);
    REQUIRE(std::isnan(to_float(m[0])));
    REQUIRE(std::isnan(to_float(v[0])));
    REQUIRE(to_float(v[1]) == INFINITY);
    REQUIRE(std::isfinite(to_float(v[2])));
    REQUIRE(v[3].bits == 0x7f7f);
  }
}

}  // namespace spillway
