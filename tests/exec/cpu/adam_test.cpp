// AdamW: variants agree to the bit, the update follows its equation, padding and weight decay.
#include "exec/cpu/adam.hpp"

#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

using namespace spillway;

namespace {

struct State {
  std::vector<float> master, m, v, gradient, second, out;
  double squares = 0;

  bool same(const State& other) const {
    const auto equal = [](const std::vector<float>& a, const std::vector<float>& b) {
      return std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
    };
    return equal(master, other.master) && equal(m, other.m) && equal(v, other.v) &&
           equal(out, other.out) && squares == other.squares;
  }
};

// Ordinary values, zeros, denormals and very large ones; v is never negative.
State random_state(std::size_t n, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  const auto value = [&] {
    const float x = normal(random);
    switch (random() % 8) {
      case 0:
        return 0.0f;
      case 1:
        return x * 1e-40f;  // denormal
      case 2:
        return x * 1e-22f;  // its square is denormal
      case 3:
        return x * 1e15f;
      default:
        return x;
    }
  };
  State state;
  for (std::size_t i = 0; i < n; ++i) {
    state.master.push_back(value());
    state.m.push_back(value());
    state.v.push_back(std::fabs(value()));
    state.gradient.push_back(value());
    state.second.push_back(value());
  }
  state.out.assign(n, std::nanf(""));
  return state;
}

void update(State& s, const AdamStep& step, CpuVariant variant, bool second) {
  s.squares = adamw_update(s.master.data(), s.m.data(), s.v.data(), s.gradient.data(),
                           second ? s.second.data() : nullptr, s.out.data(),
                           static_cast<std::int64_t>(s.master.size()), step, variant);
}

const AdamStep usual{3e-4f, 0.9f, 0.95f, 1e-8f, 0.1f, 7};

}  // namespace

TEST_CASE("AdamW variants are bit-identical, denormals and odd lengths included") {
  const std::uint64_t seed = 11;
  INFO("seed " << seed);
  for (const CpuVariant variant : {CpuVariant::avx2, CpuVariant::avx512}) {
    if (!cpu_variant_available(variant)) continue;
    for (const std::size_t n : {1u, 3u, 15u, 16u, 17u, 31u, 100u, 1000u, 4099u}) {
      for (const bool second : {false, true}) {
        INFO(cpu_kernels(variant).name << " n " << n << " second " << second);
        const State start = random_state(n, seed + n);
        State plain = start, wide = start;
        for (int step = 0; step < 3; ++step) {
          update(plain, usual, CpuVariant::plain, second);
          update(wide, usual, variant, second);
        }
        CHECK(wide.same(plain));
      }
    }
  }
}

TEST_CASE("AdamW follows its equation, as computed in double") {
  // m, v, p of one step from the same fp32 start; relative error a few fp32 roundings (1e-6), the
  // parameter's relative to the larger of itself and its change.
  std::mt19937_64 random(3);
  std::normal_distribution<float> normal;
  const std::size_t n = 1003;
  State s;
  for (std::size_t i = 0; i < n; ++i) {
    s.master.push_back(normal(random));
    s.m.push_back(0.1f * normal(random));
    s.v.push_back(0.01f * std::fabs(normal(random)));
    s.gradient.push_back(normal(random));
    s.second.push_back(normal(random));
  }
  s.out.assign(n, 0.0f);
  for (const std::int64_t t : {1, 2, 1000, 1000000}) {
    AdamStep step{1e-2f, 0.9f, 0.999f, 1e-8f, 0.1f, t};
    const State start = s;
    update(s, step, best_cpu_variant(), true);
    double squares = 0;
    for (std::size_t i = 0; i < n; ++i) {
      const double b1 = step.beta1, b2 = step.beta2, rate = step.learning_rate;
      const double g = static_cast<double>(start.gradient[i] + start.second[i]);
      const double m = b1 * static_cast<double>(start.m[i]) + (1 - b1) * g;
      const double v = b2 * static_cast<double>(start.v[i]) + (1 - b2) * g * g;
      const double change =
          rate * (m / (1 - std::pow(b1, t))) /
          (std::sqrt(v / (1 - std::pow(b2, t))) + static_cast<double>(step.epsilon));
      const double decayed = static_cast<double>(start.master[i]) *
                             (1 - rate * static_cast<double>(step.weight_decay));
      squares += g * g;
      REQUIRE(static_cast<double>(s.m[i]) == Approx(m).epsilon(1e-6).margin(1e-7));
      REQUIRE(static_cast<double>(s.v[i]) == Approx(v).epsilon(1e-6));
      REQUIRE(std::fabs(static_cast<double>(s.master[i]) - (decayed - change)) <=
              1e-6 * (std::fabs(decayed) + std::fabs(change)));
      REQUIRE(s.out[i] == s.master[i]);
    }
    CHECK(s.squares == Approx(squares).epsilon(1e-12));
  }
}

TEST_CASE("A unit updated in pieces equals the unit updated at once, and padding stays zero") {
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
    const std::int64_t used = layout.back().offset + layout.back().rows * layout.back().columns;
    REQUIRE(used < elements);
    State whole = random_state(static_cast<std::size_t>(elements), 21);
    for (auto* buffer : {&whole.master, &whole.m, &whole.v, &whole.gradient, &whole.second})
      std::fill(buffer->begin() + used, buffer->end(), 0.0f);
    State pieces = whole;
    const auto run = [&](State& s, std::int64_t first, std::int64_t count, const AdamStep& step) {
      return adamw_update_unit(s.master.data() + first, s.m.data() + first, s.v.data() + first,
                               s.gradient.data() + first, s.second.data() + first,
                               s.out.data() + first, first, count, layout, step);
    };
    AdamStep step = usual;
    step.epsilon = 0;  // 0 / 0 if padding were updated like the rest
    const double squares = run(whole, 0, elements, step);
    double sum = 0;
    for (std::int64_t first = 0; first < elements; first += 700)
      sum += run(pieces, first, std::min<std::int64_t>(700, elements - first), step);
    CHECK(pieces.same(whole));
    CHECK(sum == Approx(squares).epsilon(1e-12));
    for (auto* buffer : {&whole.master, &whole.m, &whole.v, &whole.out})
      for (std::int64_t i = used; i < elements; ++i)
        REQUIRE((*buffer)[static_cast<std::size_t>(i)] == 0.0f);
  }
}

TEST_CASE("Weight decay moves matrices and tables, not norms and biases") {
  // With g = m = v = 0 the step is decay alone: p becomes p (1 - lr weight_decay) or stays.
  ModelSpec model;
  model.layers = 1;
  model.hidden = 8;
  model.heads = model.kv_heads = 2;
  model.ffn = 32;
  model.vocabulary = 10;
  model.positions = 4;
  const auto layout = unit_layout(model, 0);
  const auto n = static_cast<std::size_t>(unit_elements(model, 0));
  std::vector<float> master(n, 1.0f), m(n), v(n), gradient(n), out(n);
  const AdamStep step{0.5f, 0.9f, 0.95f, 1e-8f, 0.5f, 1};
  const double squares =
      adamw_update_unit(master.data(), m.data(), v.data(), gradient.data(), nullptr, out.data(), 0,
                        static_cast<std::int64_t>(n), layout, step);
  CHECK(squares == 0.0);
  int decayed = 0;
  for (const TensorLayout& tensor : layout) {
    INFO(tensor.name);
    for (std::int64_t i = 0; i < tensor.rows * tensor.columns; ++i)
      REQUIRE(out[static_cast<std::size_t>(tensor.offset + i)] == (tensor.rows > 1 ? 0.75f : 1.0f));
    decayed += tensor.decay ? 1 : 0;
  }
  CHECK(decayed == 4);
}
