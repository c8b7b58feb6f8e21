// Vectors of SPILLWAY_KERNEL_WIDTH floats and loops over them, for kernels_body.hpp. Included once
// per variant inside that variant's namespace and after its target pragma, hence no #pragma once
// and no includes. The body of a loop sees its elements through `at`, so that the last, partial
// vector needs no second copy of the arithmetic: lanes beyond the end read as zero and are not
// written.

#define SPILLWAY_INLINE inline __attribute__((always_inline))

constexpr int width = SPILLWAY_KERNEL_WIDTH;
constexpr int lanes = 16;               // partial sums of every reduction, in every variant
constexpr int vectors = lanes / width;  // vectors that hold them

using Floats = float __attribute__((vector_size(sizeof(float) * width)));
using Bits = std::uint32_t __attribute__((vector_size(sizeof(float) * width)));
using Signed = std::int32_t __attribute__((vector_size(sizeof(float) * width)));
using Unaligned = float __attribute__((vector_size(sizeof(float) * width), aligned(4), may_alias));
using Bf16s = std::uint16_t __attribute__((vector_size(sizeof(std::uint16_t) * width)));
using UnalignedBf16s = std::uint16_t
    __attribute__((vector_size(sizeof(std::uint16_t) * width), aligned(2), may_alias));

// bf16 to fp32, exactly: its bits are the upper half.
SPILLWAY_INLINE Floats widened(const Bf16s& x) {
#if SPILLWAY_KERNEL_WIDTH == 16
  const __m512i bits = _mm512_maskz_cvtepu16_epi32(0xffff, reinterpret_cast<__m256i>(x));
  return _mm512_castsi512_ps(_mm512_maskz_slli_epi32(0xffff, bits, 16));
#elif SPILLWAY_KERNEL_WIDTH == 8
  const __m256i bits = _mm256_cvtepu16_epi32(reinterpret_cast<__m128i>(x));
  return _mm256_castsi256_ps(_mm256_slli_epi32(bits, 16));
#elif defined(__SSE2__)
  const __m128i bits = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(&x));
  return _mm_castsi128_ps(_mm_unpacklo_epi16(_mm_setzero_si128(), bits));
#else
  Floats result = {};
  for (int j = 0; j < width; ++j) result[j] = to_float(bf16{x[j]});
  return result;
#endif
}

// The lower halves of all elements, which have nothing in their upper halves.
SPILLWAY_INLINE Bf16s packed(const Bits& result) {
#if SPILLWAY_KERNEL_WIDTH == 16
  return reinterpret_cast<Bf16s>(
      _mm512_maskz_cvtepi32_epi16(0xffff, reinterpret_cast<__m512i>(result)));
#elif SPILLWAY_KERNEL_WIDTH == 8
  const __m256i all = reinterpret_cast<__m256i>(result);
  return reinterpret_cast<Bf16s>(
      _mm_packus_epi32(_mm256_castsi256_si128(all), _mm256_extracti128_si256(all, 1)));
#elif defined(__SSE2__)
  // SSE2 packs signed numbers only.
  const __m128i all = _mm_srai_epi32(_mm_slli_epi32(reinterpret_cast<__m128i>(result), 16), 16);
  const __m128i packed = _mm_packs_epi32(all, all);
  Bf16s narrow;
  std::memcpy(&narrow, &packed, sizeof narrow);
  return narrow;
#else
  Bf16s narrow = {};
  for (int j = 0; j < width; ++j) narrow[j] = static_cast<std::uint16_t>(result[j]);
  return narrow;
#endif
}

// fp32 to bf16 as to_bf16() of exec/cpu/bf16.hpp, in the upper halves: to nearest, ties to even,
// NaN quiet. Not by AVX512_BF16, which takes denormals for zeros.
SPILLWAY_INLINE Bits rounded_above(const Floats& x) {
  Bits bits;
  std::memcpy(&bits, &x, sizeof bits);
  const Bits rounded = bits + 0x7fffu + (bits >> 16 & 1u);
  return (bits & 0x7fffffffu) > 0x7f800000u ? bits | 0x400000u : rounded;
}
SPILLWAY_INLINE Bf16s narrowed(const Floats& x) { return packed(rounded_above(x) >> 16); }
// The same as fp32: widened(narrowed(x)).
SPILLWAY_INLINE Floats rounded_to_bf16(const Floats& x) {
  return reinterpret_cast<Floats>(rounded_above(x) & 0xffff0000u);
}

// The functions of exec/cpu/stochastic_rounding.hpp, for a vector of elements.
SPILLWAY_INLINE Bits mixed(Bits x) {
  x ^= x >> 16;
  x *= 0x7feb352du;
  x ^= x >> 15;
  x *= 0x846ca68bu;
  return x ^ x >> 16;
}
// Of `width` elements from `first` on.
SPILLWAY_INLINE Bits noise_of(const NoiseKey& unit, std::uint32_t first) {
  Bits lane = {};
  for (int j = 0; j < width; ++j) lane[j] = static_cast<std::uint32_t>(j);
  const Bits element = lane + first;
  return mixed(element ^ unit.a) ^ unit.b;
}
// Of results of arithmetic: NaN is quiet, and so still NaN without its lower half.
SPILLWAY_INLINE Bf16s rounded_stochastically(const Floats& x, const Bits& noise) {
  Bits bits;
  std::memcpy(&bits, &x, sizeof bits);
  const Signed magnitude = reinterpret_cast<Signed>(bits & 0x7fffffffu);
  return packed((magnitude < 0x7f7f0000 ? bits + noise : bits) >> 16);
}

struct Full {
  std::int64_t i;
  SPILLWAY_INLINE Floats load(const float* p) const {
    return *reinterpret_cast<const Unaligned*>(p + i);
  }
  SPILLWAY_INLINE void store(float* p, const Floats& v) const {
    *reinterpret_cast<Unaligned*>(p + i) = v;
  }
  SPILLWAY_INLINE Floats load(const bf16* p) const {
    return widened(*reinterpret_cast<const UnalignedBf16s*>(p + i));
  }
  SPILLWAY_INLINE void store(bf16* p, const Floats& v) const { store(p, narrowed(v)); }
  SPILLWAY_INLINE void store(bf16* p, const Bf16s& v) const {
    *reinterpret_cast<UnalignedBf16s*>(p + i) = v;
  }
  // Past the caches; p is aligned to a vector. See finish_streams.
  SPILLWAY_INLINE void stream(float* p, const Floats& v) const {
#if SPILLWAY_KERNEL_WIDTH == 16
    _mm512_stream_ps(p + i, v);
#elif SPILLWAY_KERNEL_WIDTH == 8
    _mm256_stream_ps(p + i, v);
#else
    store(p, v);
#endif
  }
  SPILLWAY_INLINE void stream(bf16* p, const Floats& v) const {
#if SPILLWAY_KERNEL_WIDTH == 16
    _mm256_stream_si256(reinterpret_cast<__m256i*>(p + i), reinterpret_cast<__m256i>(narrowed(v)));
#elif SPILLWAY_KERNEL_WIDTH == 8
    _mm_stream_si128(reinterpret_cast<__m128i*>(p + i), reinterpret_cast<__m128i>(narrowed(v)));
#else
    store(p, v);
#endif
  }
  SPILLWAY_INLINE Floats masked(const Floats& v) const { return v; }
};

struct Partial {
  std::int64_t i, count;
  SPILLWAY_INLINE std::size_t bytes() const {
    return static_cast<std::size_t>(count) * sizeof(float);
  }
  SPILLWAY_INLINE Floats load(const float* p) const {
    Floats v = {};
    std::memcpy(&v, p + i, bytes());
    return v;
  }
  SPILLWAY_INLINE void store(float* p, const Floats& v) const { std::memcpy(p + i, &v, bytes()); }
  SPILLWAY_INLINE Floats load(const bf16* p) const {
    Bf16s v = {};
    std::memcpy(&v, p + i, bytes() / 2);
    return widened(v);
  }
  SPILLWAY_INLINE void store(bf16* p, const Floats& v) const { store(p, narrowed(v)); }
  SPILLWAY_INLINE void store(bf16* p, const Bf16s& v) const { std::memcpy(p + i, &v, bytes() / 2); }
  SPILLWAY_INLINE Floats masked(const Floats& v) const {
    Floats result = {};
    std::memcpy(&result, &v, bytes());
    return result;
  }
};

// Orders what was streamed before all later stores, so that another thread sees it first.
SPILLWAY_INLINE void finish_streams() {
#if SPILLWAY_KERNEL_WIDTH >= 8
  _mm_sfence();
#endif
}

SPILLWAY_INLINE Floats splat(float value) { return Floats{} + value; }

// Correctly rounded, so the same in every variant.
SPILLWAY_INLINE Floats square_root(const Floats& x) {
#if SPILLWAY_KERNEL_WIDTH == 16
  return _mm512_mask_sqrt_ps(x, 0xffff, x);
#elif SPILLWAY_KERNEL_WIDTH == 8
  return _mm256_sqrt_ps(x);
#elif defined(__SSE2__)
  return _mm_sqrt_ps(x);
#else
  Floats root = {};
  for (int j = 0; j < width; ++j) root[j] = __builtin_sqrtf(x[j]);
  return root;
#endif
}

template <class Body>
SPILLWAY_INLINE void for_each(std::int64_t n, Body body) {
  std::int64_t i = 0;
  for (; i + width <= n; i += width) body(Full{i});
  if (i < n) body(Partial{i, n - i});
}

// Adds the 16 partial sums pairwise: 0+8, 1+9, ..; 0+4, ..; 0+2, ..; 0+1.
template <class Number>
SPILLWAY_INLINE Number add_lanes(Number* lane) {
  for (int step = lanes / 2; step > 0; step /= 2)
    for (int j = 0; j < step; ++j) lane[j] += lane[j + step];
  return lane[0];
}

// Calls body(at, k) for every vector from element i, a multiple of 16, on; k is the vector's place
// among the 16 lanes.
template <class Body>
SPILLWAY_INLINE void for_each_lane_group(std::int64_t n, Body body, std::int64_t i = 0) {
  for (; i + lanes <= n; i += lanes)
    for (int k = 0; k < vectors; ++k) body(Full{i + k * width}, k);
  for (int k = 0; k < vectors && i < n; ++k, i += width) {
    if (i + width <= n)
      body(Full{i}, k);
    else
      body(Partial{i, n - i}, k);
  }
}

// Sum of term(at) over n elements.
template <class Term>
SPILLWAY_INLINE float sum_of(std::int64_t n, Term term) {
  Floats sum[vectors] = {};
  for_each_lane_group(
      n, [&](auto at, int k) __attribute__((always_inline)) { sum[k] += at.masked(term(at)); });
  float lane[lanes];
  std::memcpy(lane, sum, sizeof lane);
  return add_lanes(lane);
}

// Maximum of x (n > 0). NaN elements are passed over: they reach the result of the kernel by the
// arithmetic that follows.
SPILLWAY_INLINE float maximum_of(const float* x, std::int64_t n) {
  if (n < width) {
    float largest = x[0];
    for (std::int64_t i = 1; i < n; ++i) largest = x[i] > largest ? x[i] : largest;
    return largest;
  }
  Floats largest = Full{0}.load(x);
  for (std::int64_t i = width; i < n; i += width) {
    // The last vector overlaps its neighbour: harmless for a maximum.
    const Floats v = Full{i + width <= n ? i : n - width}.load(x);
    largest = v > largest ? v : largest;
  }
  float result = largest[0];
  for (int j = 1; j < width; ++j) result = largest[j] > result ? largest[j] : result;
  return result;
}

// exp by the Cephes scheme: x = n ln2 + r, |r| <= ln2 / 2, exp(r) by a polynomial of degree 7,
// times 2^n.
SPILLWAY_INLINE Floats exponential_of(Floats x) {
  const Floats smallest = splat(-87.33f), largest = splat(88.37f);
  const Floats underflow_input = x;
  x = x > largest ? largest : x;  // NaN compares false and stays
  x = x < smallest ? smallest : x;
  const float round_to_integer =
      12582912.0f;  // 1.5 * 2^23: adding it leaves the integer in the low bits
  const Floats shifted = x * 1.44269504088896341f + round_to_integer;
  const Floats n = shifted - round_to_integer;
  const Floats r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
  Floats p = splat(1.9875691500e-4f);
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = (p * (r * r) + r) + 1.0f;
  Bits exponent;
  std::memcpy(&exponent, &shifted, sizeof exponent);
  exponent = (exponent + (127u - 0x4b400000u)) << 23;
  Floats power;
  std::memcpy(&power, &exponent, sizeof power);
  const Floats result = p * power;
  return underflow_input < smallest ? Floats{} : result;
}
