// The kernels of kernels_cpu.hpp, written once over the vectors of kernels_simd.hpp. Each of
// kernels_plain.cpp, kernels_avx2.cpp and kernels_avx512.cpp includes this file, after its target
// pragma and with SPILLWAY_KERNEL_VARIANT, SPILLWAY_KERNEL_NAME and SPILLWAY_KERNEL_WIDTH set.
#pragma once

namespace spillway::SPILLWAY_KERNEL_VARIANT {

#include "exec/cpu/kernels_simd.hpp"

namespace {

#define SPILLWAY_LOOP(at) [&](auto at) __attribute__((always_inline))

void exponential(const float* x, float* y, std::int64_t n) {
  for_each(
      n, SPILLWAY_LOOP(at) { at.store(y, exponential_of(at.load(x))); });
}

template <class A, class B, class Out>
void add(const A* a, const B* b, Out* out, std::int64_t n) {
  for_each(
      n, SPILLWAY_LOOP(at) { at.store(out, at.load(a) + at.load(b)); });
}

void fill_rows(const float* row, float* out, std::int64_t rows, std::int64_t columns) {
  for (std::int64_t i = 0; i < rows; ++i)
    std::memcpy(out + i * columns, row, static_cast<std::size_t>(columns) * sizeof(float));
}

void add_to_rows(const float* x, const float* row, float* out, std::int64_t rows,
                 std::int64_t columns) {
  for (std::int64_t i = 0; i < rows; ++i) add(x + i * columns, row, out + i * columns, columns);
}

void add_column_sums(const float* x, float* sums, std::int64_t rows, std::int64_t columns) {
  for (std::int64_t i = 0; i < rows; ++i) add(sums, x + i * columns, sums, columns);
}

void norm_statistics(const float* x, float* mean, float* rstd, std::int64_t rows,
                     std::int64_t columns, float epsilon) {
  const float count = static_cast<float>(columns);
  for (std::int64_t i = 0; i < rows; ++i, x += columns) {
    const float row_mean = sum_of(
                               columns, SPILLWAY_LOOP(at) { return at.load(x); }) /
                           count;
    const float squares = sum_of(
        columns, SPILLWAY_LOOP(at) {
          const Floats difference = at.load(x) - row_mean;
          return difference * difference;
        });
    mean[i] = row_mean;
    rstd[i] = 1.0f / std::sqrt(squares / count + epsilon);
  }
}

void norm_apply(const float* x, const float* mean, const float* rstd, const float* weight,
                const float* bias, float* y, std::int64_t rows, std::int64_t columns) {
  for (std::int64_t i = 0; i < rows; ++i, x += columns, y += columns) {
    const float row_mean = mean[i], row_rstd = rstd[i];
    for_each(
        columns, SPILLWAY_LOOP(at) {
          at.store(y, (at.load(x) - row_mean) * row_rstd * at.load(weight) + at.load(bias));
        });
  }
}

// With xhat = (x - mean) rstd and g = dy w:  dx = rstd (g - mean(g) - xhat mean(g xhat)).
void norm_backward(const float* y_gradient, const float* x, const float* mean, const float* rstd,
                   const float* weight, float* x_gradient, bool overwrite, float* weight_gradient,
                   float* bias_gradient, std::int64_t rows, std::int64_t columns) {
  const float count = static_cast<float>(columns);
  for (std::int64_t i = 0; i < rows; ++i) {
    const float* dy = y_gradient + i * columns;
    const float* row = x + i * columns;
    float* dx = x_gradient + i * columns;
    const float m = mean[i], r = rstd[i];
    const float mean_g = sum_of(
                             columns, SPILLWAY_LOOP(at) { return at.load(dy) * at.load(weight); }) /
                         count;
    const float mean_g_xhat =
        sum_of(
            columns, SPILLWAY_LOOP(
                         at) { return at.load(dy) * at.load(weight) * ((at.load(row) - m) * r); }) /
        count;
    for_each(
        columns, SPILLWAY_LOOP(at) {
          const Floats g = at.load(dy), xhat = (at.load(row) - m) * r;
          const Floats change = (g * at.load(weight) - mean_g - xhat * mean_g_xhat) * r;
          if (weight_gradient != nullptr) {
            at.store(weight_gradient, at.load(weight_gradient) + g * xhat);
            at.store(bias_gradient, at.load(bias_gradient) + g);
          }
          at.store(dx, overwrite ? change : at.load(dx) + change);
        });
  }
}

void norm_weight_gradient(const float* y_gradient, const float* x, const float* mean,
                          const float* rstd, float* weight_gradient, float* bias_gradient,
                          std::int64_t rows, std::int64_t columns) {
  for (std::int64_t i = 0; i < rows; ++i, y_gradient += columns, x += columns) {
    const float m = mean[i], r = rstd[i];
    for_each(
        columns, SPILLWAY_LOOP(at) {
          const Floats g = at.load(y_gradient), xhat = (at.load(x) - m) * r;
          at.store(weight_gradient, at.load(weight_gradient) + g * xhat);
          at.store(bias_gradient, at.load(bias_gradient) + g);
        });
  }
}

constexpr float gelu_slope = 1.5957691216057308f;  // 2 sqrt(2 / pi)
constexpr float gelu_cubic = 0.044715f;

// 1 / (1 + exp(-2u)), and so never a denormal: -2u is held below 80.
SPILLWAY_INLINE Floats gelu_gate(const Floats& x) {
  const Floats minus_2u = x * (x * x * gelu_cubic + 1.0f) * -gelu_slope;
  const Floats limit = splat(80.0f);
  return 1.0f / (exponential_of(minus_2u > limit ? limit : minus_2u) + 1.0f);
}

void gelu_forward(const float* x, float* y, std::int64_t n) {
  for_each(
      n, SPILLWAY_LOOP(at) {
        const Floats v = at.load(x);
        at.store(y, v * gelu_gate(v));
      });
}

// d/dx (x s(2u)) = s + x s (1 - s) 2u'.
void gelu_backward(const float* x, float* gradient, std::int64_t n) {
  for_each(
      n, SPILLWAY_LOOP(at) {
        const Floats v = at.load(x), s = gelu_gate(v);
        const Floats slope = (v * v * (3.0f * gelu_cubic) + 1.0f) * gelu_slope;
        at.store(gradient, at.load(gradient) * (s + v * s * (1.0f - s) * slope));
      });
}

#include "exec/cpu/kernels_llama_body.hpp"

SPILLWAY_INLINE void zero(float* p, std::int64_t n) {
  if (n > 0) std::memset(p, 0, static_cast<std::size_t>(n) * sizeof(float));
}

// x -> exp(x - shift), returns the sum.
SPILLWAY_INLINE float exponentials_and_sum(float* x, std::int64_t n, float shift) {
  return sum_of(
      n, SPILLWAY_LOOP(at) {
        const Floats e = exponential_of(at.load(x) - shift);
        at.store(x, e);
        return e;
      });
}

// The keys that row i of a chunk sees, among those of its scores.
struct SeenKeys {
  std::int64_t begin, end;
};
SPILLWAY_INLINE SeenKeys seen_keys(const AttentionRows& a, std::int64_t i) {
  const std::int64_t end = a.first_query + i + 1;
  const std::int64_t begin = a.window > 0 && a.window < end ? end - a.window : 0;
  if (a.starts == nullptr) return {begin, end};
  const std::int64_t start = a.starts[i] - a.first_key;
  return {start > begin ? start : begin, end};
}
SPILLWAY_INLINE void zero_unseen(float* row, const SeenKeys& seen, std::int64_t keys) {
  zero(row, seen.begin);
  zero(row + seen.end, keys - seen.end);
}

void attention_softmax(AttentionRows a, float* row_sums, float* log_sum_exp) {
  for (std::int64_t i = 0; i < a.rows; ++i) {
    float* row = a.scores + i * a.keys;
    const SeenKeys seen = seen_keys(a, i);
    float* scores = row + seen.begin;
    const std::int64_t count = seen.end - seen.begin;
    const float largest = maximum_of(scores, count);
    row_sums[i] = exponentials_and_sum(scores, count, largest);
    log_sum_exp[i] = static_cast<float>(std::log(static_cast<double>(row_sums[i]))) + largest;
    zero_unseen(row, seen, a.keys);
  }
}

void attention_probabilities(AttentionRows a, const float* log_sum_exp) {
  for (std::int64_t i = 0; i < a.rows; ++i) {
    float* row = a.scores + i * a.keys;
    const SeenKeys seen = seen_keys(a, i);
    float* scores = row + seen.begin;
    const float shift = log_sum_exp[i];
    for_each(
        seen.end - seen.begin,
        SPILLWAY_LOOP(at) { at.store(scores, exponential_of(at.load(scores) - shift)); });
    zero_unseen(row, seen, a.keys);
  }
}

void attention_score_gradient(AttentionRows p, float* gradient, const float* row_dots,
                              float scale) {
  for (std::int64_t i = 0; i < p.rows; ++i) {
    const SeenKeys seen = seen_keys(p, i);
    const float* probabilities = p.scores + i * p.keys + seen.begin;
    float* row = gradient + i * p.keys;
    float* g = row + seen.begin;
    const float dot = row_dots[i];
    for_each(
        seen.end - seen.begin,
        SPILLWAY_LOOP(at) { at.store(g, at.load(probabilities) * (at.load(g) - dot) * scale); });
    zero_unseen(row, seen, p.keys);
  }
}

void divide_rows(float* x, const float* divisors, std::int64_t rows, std::int64_t columns,
                 std::int64_t stride) {
  for (std::int64_t i = 0; i < rows; ++i, x += stride) {
    const float divisor = divisors[i];
    for_each(
        columns, SPILLWAY_LOOP(at) { at.store(x, at.load(x) / divisor); });
  }
}

void row_dots(const float* a, const float* b, float* dots, std::int64_t rows, std::int64_t columns,
              std::int64_t stride) {
  for (std::int64_t i = 0; i < rows; ++i, a += stride, b += stride)
    dots[i] = sum_of(
        columns, SPILLWAY_LOOP(at) { return at.load(a) * at.load(b); });
}

double cross_entropy(float* logits, std::int32_t target, std::int64_t n, float scale) {
  const float largest = maximum_of(logits, n);
  const double target_logit = static_cast<double>(logits[target]) - static_cast<double>(largest);
  const float sum = exponentials_and_sum(logits, n, largest);
  const float factor = scale / sum;
  for_each(
      n, SPILLWAY_LOOP(at) { at.store(logits, at.load(logits) * factor); });
  logits[target] -= scale;
  return std::log(static_cast<double>(sum)) - target_logit;
}

// Vectors of doubles of the CPU's own width, made of half a vector of floats. GCC's conversion of
// whole vectors goes through memory.
constexpr int half = width / 2;
using HalfDoubles = double __attribute__((vector_size(sizeof(double) * half)));

// half elements at p, plus those at second unless it is null.
SPILLWAY_INLINE HalfDoubles load_wide(const float* p, const float* second) {
#if SPILLWAY_KERNEL_WIDTH == 16
  __m256 g = _mm256_loadu_ps(p);
  if (second != nullptr) g = _mm256_add_ps(g, _mm256_loadu_ps(second));
  return _mm512_maskz_cvtps_pd(0xff, g);
#elif SPILLWAY_KERNEL_WIDTH == 8
  __m128 g = _mm_loadu_ps(p);
  if (second != nullptr) g = _mm_add_ps(g, _mm_loadu_ps(second));
  return _mm256_cvtps_pd(g);
#else
  const float low = second != nullptr ? p[0] + second[0] : p[0];
  const float high = second != nullptr ? p[1] + second[1] : p[1];
  return HalfDoubles{static_cast<double>(low), static_cast<double>(high)};
#endif
}

#if SPILLWAY_KERNEL_WIDTH == 16
SPILLWAY_INLINE __m256 half_floats(const bf16* p) {
  const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
}
#elif SPILLWAY_KERNEL_WIDTH == 8
SPILLWAY_INLINE __m128 half_floats(const bf16* p) {
  const __m128i bits = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p));
  return _mm_castsi128_ps(_mm_slli_epi32(_mm_cvtepu16_epi32(bits), 16));
}
#endif

SPILLWAY_INLINE HalfDoubles load_wide(const bf16* p, const bf16* second) {
#if SPILLWAY_KERNEL_WIDTH == 16
  __m256 g = half_floats(p);
  if (second != nullptr) g = _mm256_add_ps(g, half_floats(second));
  return _mm512_maskz_cvtps_pd(0xff, g);
#elif SPILLWAY_KERNEL_WIDTH == 8
  __m128 g = half_floats(p);
  if (second != nullptr) g = _mm_add_ps(g, half_floats(second));
  return _mm256_cvtps_pd(g);
#else
  HalfDoubles wide = {};
  for (int j = 0; j < half; ++j) {
    const float g = to_float(p[j]);
    wide[j] = static_cast<double>(second != nullptr ? g + to_float(second[j]) : g);
  }
  return wide;
#endif
}

template <class Gradient>
double sum_of_squares(const Gradient* a, const Gradient* b, std::int64_t n) {
  constexpr std::int64_t block = 2048, group = 64 * block;
  constexpr int sums = 2 * lanes;  // so many that an addition need not wait for the one before
  double total = 0, of_group = 0, lane[sums];
  std::int64_t i = 0;
  for (; i + block <= n; i += block) {
    HalfDoubles squares[sums / half] = {};
    for (std::int64_t j = i; j < i + block; j += sums) {
      for (int k = 0; k < sums / half; ++k) {
        const std::int64_t at = j + k * half;
        const HalfDoubles wide = load_wide(a + at, b != nullptr ? b + at : nullptr);
        squares[k] += wide * wide;
      }
    }
    std::memcpy(lane, squares, sizeof lane);
    for (int k = 0; k < lanes; ++k) lane[k] += lane[k + lanes];
    of_group += add_lanes(lane);
    if ((i + block) % group == 0) {
      total += of_group;
      of_group = 0;
    }
  }
  if (i < n) {
    std::memset(lane, 0, sizeof lane);
    for (std::int64_t j = i; j < n; ++j) {
      const double g =
          static_cast<double>(b != nullptr ? to_float(a[j]) + to_float(b[j]) : to_float(a[j]));
      lane[(j - i) % sums] += g * g;
    }
    for (int k = 0; k < lanes; ++k) lane[k] += lane[k + lanes];
    of_group += add_lanes(lane);
  }
  return total + of_group;
}

// The sum of squares is kept in 16 double lanes, like every other sum.
// Halves of a vector of floats as doubles. Kept apart: a vector of doubles twice as wide as the
// CPU's own would live in memory, and its stores would stand in the way of those to the streams.
SPILLWAY_INLINE HalfDoubles low_half(const Floats& x) {
#if SPILLWAY_KERNEL_WIDTH == 16
  return _mm512_maskz_cvtps_pd(0xff, __builtin_shufflevector(x, x, 0, 1, 2, 3, 4, 5, 6, 7));
#elif SPILLWAY_KERNEL_WIDTH == 8
  return _mm256_cvtps_pd(_mm256_castps256_ps128(x));
#else
  return HalfDoubles{static_cast<double>(x[0]), static_cast<double>(x[1])};
#endif
}
SPILLWAY_INLINE HalfDoubles high_half(const Floats& x) {
#if SPILLWAY_KERNEL_WIDTH == 16
  return _mm512_maskz_cvtps_pd(0xff, __builtin_shufflevector(x, x, 8, 9, 10, 11, 12, 13, 14, 15));
#elif SPILLWAY_KERNEL_WIDTH == 8
  return _mm256_cvtps_pd(_mm256_extractf128_ps(x, 1));
#else
  return HalfDoubles{static_cast<double>(x[2]), static_cast<double>(x[3])};
#endif
}

// The parameters are made of the moments as they are computed; what is kept of these is rounded.
template <class At>
SPILLWAY_INLINE void store_moments(const At& at, float* m, float* v, const Floats& new_m,
                                   const Floats& new_v, const NoiseKey&, std::uint32_t) {
  at.store(m, new_m);
  at.store(v, new_v);
}
template <class At>
SPILLWAY_INLINE void store_moments(const At& at, bf16* m, bf16* v, const Floats& new_m,
                                   const Floats& new_v, const NoiseKey& key, std::uint32_t first) {
  const Bits noise = noise_of(key, first + static_cast<std::uint32_t>(at.i));
  at.store(m, rounded_stochastically(new_m, noise & 0xffffu));
  at.store(v, rounded_stochastically(new_v, noise >> 16));
}

template <class Gradient, class Parameter, class Moment>
double adamw(float* master, Moment* m, Moment* v, const Gradient* gradient,
             const Gradient* second_gradient, Parameter* parameters_out, std::int64_t n,
             const AdamConstants& constants, NoisePlace place) {
  const AdamConstants c = constants;
  const NoiseKey key =
      unit_noise_key(c.noise, place.unit, static_cast<std::uint32_t>(place.first_element >> 32));
  const auto first_element = static_cast<std::uint32_t>(place.first_element);
  HalfDoubles low[vectors] = {}, high[vectors] = {};
  // Updates a vector of elements and returns their new parameters.
  const auto update = [&](auto at, int k) __attribute__((always_inline)) {
    Floats g = at.load(gradient);
    if (second_gradient != nullptr) g += at.load(second_gradient);
    const HalfDoubles first = low_half(g), second = high_half(g);
    low[k] += first * first;
    high[k] += second * second;
    g *= c.gradient_factor;
    const Floats new_m = at.load(m) * c.beta1 + g * c.one_minus_beta1;
    const Floats new_v = at.load(v) * c.beta2 + g * g * c.one_minus_beta2;
    const Floats denominator = square_root(new_v) * c.inverse_root_correction2 + c.epsilon;
    const Floats p = at.load(master) * c.decay_factor - new_m / denominator * c.step_size;
    store_moments(at, m, v, new_m, new_v, key, first_element);
    at.store(master, p);
    return p;
  };
  std::int64_t i = 0;
  // The parameters are not read here: written past the caches where they are aligned, they need not
  // be fetched first. A line at a time, with no other store in between that could part it.
  constexpr std::size_t line_bytes = 64, line_vectors = line_bytes / sizeof(Parameter) / width;
  constexpr int line = line_vectors * width;
  if (reinterpret_cast<std::uintptr_t>(parameters_out) % line_bytes == 0) {
    for (; i + line <= n; i += line) {
      Floats p[line_vectors];
      for (int j = 0; j < line / width; ++j) p[j] = update(Full{i + j * width}, j % vectors);
      for (int j = 0; j < line / width; ++j) Full{i + j * width}.stream(parameters_out, p[j]);
    }
    finish_streams();
  }
  for_each_lane_group(
      n,
      [&](auto at, int k)
          __attribute__((always_inline)) { at.store(parameters_out, update(at, k)); },
      i);
  double lane[lanes];
  for (int k = 0; k < vectors; ++k) {
    std::memcpy(lane + k * width, &low[k], sizeof low[k]);
    std::memcpy(lane + k * width + half, &high[k], sizeof high[k]);
  }
  return add_lanes(lane);
}

template <class From, class To>
void convert(const From* x, To* y, std::int64_t n) {
  for_each(
      n, SPILLWAY_LOOP(at) { at.store(y, at.load(x)); });
}

void round_in_place(float* x, std::int64_t n) {
  for_each(
      n, SPILLWAY_LOOP(at) { at.store(x, rounded_to_bf16(at.load(x))); });
}

}  // namespace

const CpuKernels table = {SPILLWAY_KERNEL_NAME,
                          exponential,
                          add<float, float, float>,
                          add<bf16, bf16, bf16>,
                          add<float, bf16, float>,
                          fill_rows,
                          add_to_rows,
                          add_column_sums,
                          norm_statistics,
                          norm_apply,
                          norm_backward,
                          norm_weight_gradient,
                          gelu_forward,
                          gelu_backward,
                          rms_statistics,
                          rms_apply,
                          rms_backward,
                          rms_weight_gradient,
                          swiglu_forward,
                          swiglu_backward,
                          rotate_heads,
                          attention_softmax,
                          attention_probabilities,
                          attention_score_gradient,
                          divide_rows,
                          row_dots,
                          cross_entropy,
                          sum_of_squares<float>,
                          sum_of_squares<bf16>,
                          {adamw<float, float, float>, adamw<float, float, bf16>},
                          {adamw<float, bf16, float>, adamw<float, bf16, bf16>},
                          {adamw<bf16, float, float>, adamw<bf16, float, bf16>},
                          {adamw<bf16, bf16, float>, adamw<bf16, bf16, bf16>},
                          convert<float, bf16>,
                          convert<bf16, float>,
                          round_in_place};

}  // namespace spillway::SPILLWAY_KERNEL_VARIANT
