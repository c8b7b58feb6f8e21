// AdamW, and what gradient clipping makes of it, with the bits of the CPU's
// (exec/cpu/kernels_body.hpp, exec/run/clipping.cpp): the same operations in the same order, each
// of them rounded on its own.
//
// adamw moves the ideal: master, m and v read and written (24 bytes of an element), the gradient
// read (4 or 2, twice with a second) and the parameter written (4 or 2): 30 bytes with fp32
// gradients and bf16 parameters; 22 with moments in bf16, which are rounded stochastically
// (exec/cpu/stochastic_rounding.hpp). 8 elements to a thread at a time: 7 loads of 16 bytes in
// flight.
#include "exec/cuda/kernels/device_math.hpp"
#include "exec/cuda/kernels/kernels.hpp"
#include "exec/cuda/kernels/partials.hpp"

namespace spillway::cuda {

namespace {

// ---- clipping ----

__device__ inline bool finite(double x) { return x - x == 0.0; }

__device__ inline float clip_factor(double squares, double limit) {
  const double factor = __ddiv_rn(limit, __dadd_rn(__dsqrt_rn(squares), 1e-6));
  return static_cast<float>(factor < 1.0 ? factor : 1.0);  // 1 where it is NaN
}

// One warp: reads 32 norms at a time, adds them up in their order.
__global__ void prepare_kernel(const AdamNumbers* from, ClipRule rule, const double* norms,
                               std::int64_t count, std::int64_t own, AdamNumbers* to) {
  double sum = 0;
  bool all_finite = true;
  for (std::int64_t first = 0; first < count; first += warp_size) {
    const std::int64_t at = first + thread_x();
    const double norm = at < count && at != rule.left_out ? norms[at] : 0.0;
    const int here = count - first < warp_size ? static_cast<int>(count - first) : warp_size;
    for (int k = 0; k < here; ++k) {
      const double next = __shfl_sync(full_warp, norm, k);
      all_finite = all_finite && finite(next);
      sum = add(sum, next);
    }
  }
  if (thread_x() > 0) return;
  AdamNumbers numbers = *from;
  numbers.gradient_factor = 1;
  numbers.skip = 0;
  if (count > 0) {
    if (rule.skips_nonfinite && !all_finite) {
      numbers.gradient_factor = 0;
      numbers.skip = 1;
    } else if (rule.kind != ClipKind::off) {
      numbers.gradient_factor =
          clip_factor(rule.kind == ClipKind::global ? sum : norms[own], rule.limit);
    }
  }
  *to = numbers;
}

// ---- AdamW ----

constexpr int threads = 256;
constexpr int warps = threads / warp_size;
constexpr int group = 8;  // elements of a thread at a time
static_assert(adamw_block % (threads * group) == 0);

template <class Gradient, class Element, class Moment>
struct Update {
  float* master;
  Moment *m, *v;
  const Gradient *gradient, *second;
  Element* parameters;
  std::int32_t unit;
  std::int64_t first_element, elements;
  UnitRanges ranges;
  const AdamNumbers* numbers;
  double* partials;
};

// A group of elements as floats. `left` of them are in memory.
template <class T>
__device__ inline void load_group(const T* from, std::int64_t left, float (&x)[group]) {
  constexpr int size = pack_size<T>;
  if (left >= group) {
    SPILLWAY_UNROLL
    for (int first = 0; first < group; first += size) {
      float part[size];
      unpack<T>(load_words(from + first), part);
      SPILLWAY_UNROLL
      for (int i = 0; i < size; ++i) x[first + i] = part[i];
    }
  } else {
    SPILLWAY_UNROLL
    for (int i = 0; i < group; ++i) x[i] = i < left ? to_float(from[i]) : 0.0f;
  }
}
template <class T>
__device__ inline void store_group(T* to, std::int64_t left, const float (&x)[group]) {
  constexpr int size = pack_size<T>;
  if (left >= group) {
    SPILLWAY_UNROLL
    for (int first = 0; first < group; first += size) {
      float part[size];
      SPILLWAY_UNROLL
      for (int i = 0; i < size; ++i) part[i] = x[first + i];
      store_words(to + first, pack<T>(part));
    }
  } else {
    SPILLWAY_UNROLL
    for (int i = 0; i < group; ++i)
      if (i < left) to[i] = from_float<T>(x[i]);
  }
}

// Bit i: element `at` + i of the unit.
struct Cover {
  unsigned inside = 0, decays = 0;
};
__device__ inline Cover cover(const UnitRanges& ranges, std::int64_t at) {
  Cover cover;
  for (int k = 0; k < ranges.count; ++k) {
    const std::int64_t begin = ranges.range[k].begin - at, end = ranges.range[k].end - at;
    if (end <= 0 || begin >= group) continue;
    const unsigned below_end = end >= group ? (1u << group) - 1 : (1u << end) - 1;
    const unsigned below_begin = begin <= 0 ? 0 : (1u << begin) - 1;
    cover.inside |= below_end & ~below_begin;
    if (ranges.range[k].decays) cover.decays |= below_end & ~below_begin;
  }
  return cover;
}

// What is kept of new moments. A group begins on a multiple of 8: the upper halves of its elements'
// numbers are alike.
template <class Moment>
__device__ inline void round_moments(NoiseKey step, std::int32_t unit, std::int64_t first,
                                     float (&m)[group], float (&v)[group]) {
  if constexpr (sizeof(Moment) == sizeof(bf16)) {
    const NoiseKey key = unit_noise_key(step, static_cast<std::uint32_t>(unit),
                                        static_cast<std::uint32_t>(first >> 32));
    SPILLWAY_UNROLL
    for (int i = 0; i < group; ++i) {
      const std::uint32_t noise =
          element_noise(key, static_cast<std::uint32_t>(first) + static_cast<std::uint32_t>(i));
      m[i] = to_float(round_stochastically(m[i], noise_of_m(noise)));
      v[i] = to_float(round_stochastically(v[i], noise_of_v(noise)));
    }
  }
}

template <class Gradient, class Element, class Moment>
__device__ inline void update_group(const Update<Gradient, Element, Moment>& u,
                                    const AdamNumbers& c, std::int64_t at, double& squares) {
  const std::int64_t left = u.elements - at;
  float p[group], m[group], v[group], g[group];
  load_group(u.gradient + at, left, g);
  load_group(u.m + at, left, m);
  load_group(u.v + at, left, v);
  load_group(u.master + at, left, p);
  if (u.second != nullptr) {
    float more[group];
    load_group(u.second + at, left, more);
    SPILLWAY_UNROLL
    for (int i = 0; i < group; ++i) g[i] = add(g[i], more[i]);
  }
  const Cover which = cover(u.ranges, u.first_element + at);
  SPILLWAY_UNROLL
  for (int i = 0; i < group; ++i) {
    if (i >= left || (which.inside >> i & 1) == 0) {
      p[i] = m[i] = v[i] = 0;
      continue;
    }
    const double wide = static_cast<double>(g[i]);
    squares += wide * wide;
    const float gradient = multiply(g[i], c.gradient_factor);
    m[i] = add(multiply(m[i], c.beta1), multiply(gradient, c.one_minus_beta1));
    v[i] = add(multiply(v[i], c.beta2), multiply(multiply(gradient, gradient), c.one_minus_beta2));
    const float denominator =
        add(multiply(square_root(v[i]), c.inverse_root_correction2), c.epsilon);
    const float decay_factor = (which.decays >> i & 1) != 0 ? c.decay_factor : 1.0f;
    p[i] = subtract(multiply(p[i], decay_factor), multiply(divide(m[i], denominator), c.step_size));
  }
  round_moments<Moment>(c.noise, u.unit, u.first_element + at, m, v);
  store_group(u.m + at, left, m);
  store_group(u.v + at, left, v);
  store_group(u.master + at, left, p);
  store_group(u.parameters + at, left, p);
}

// The parameters alone, from the masters: what is done where an update is left out.
template <class Gradient, class Element, class Moment>
__device__ inline void copy_group(const Update<Gradient, Element, Moment>& u, std::int64_t at) {
  float p[group];
  load_group(u.master + at, u.elements - at, p);
  const Cover which = cover(u.ranges, u.first_element + at);
  SPILLWAY_UNROLL
  for (int i = 0; i < group; ++i)
    if ((which.inside >> i & 1) == 0) p[i] = 0;
  store_group(u.parameters + at, u.elements - at, p);
}

template <class Gradient, class Element, class Moment>
__global__ void __launch_bounds__(threads) adamw_kernel(Update<Gradient, Element, Moment> u) {
  __shared__ double sums[warps];
  const AdamNumbers numbers = *u.numbers;
  double squares = 0;
  for (int from = 0; from < adamw_block; from += threads * group) {
    const std::int64_t at = block_x() * adamw_block + from + thread_x() * group;
    if (at >= u.elements) continue;
    if (numbers.skip == 0)
      update_group(u, numbers, at, squares);
    else
      copy_group(u, at);
  }
  squares = warp_sum(squares);
  if (thread_x() % warp_size == 0) sums[thread_x() / warp_size] = squares;
  __syncthreads();
  if (thread_x() > 0) return;
  for (int warp = 1; warp < warps; ++warp) squares = add(squares, sums[warp]);
  u.partials[block_x()] = squares;
}

constexpr int sum_threads = 1024;

__global__ void __launch_bounds__(sum_threads)
    add_squares_kernel(const double* __restrict__ partials, std::int64_t count, double* squares) {
  __shared__ double sums[sum_threads / warp_size];
  double sum = 0;
  SPILLWAY_UNROLL
  for (std::int64_t k = thread_x(); k < count; k += sum_threads) sum = add(sum, partials[k]);
  sum = warp_sum(sum);
  if (thread_x() % warp_size == 0) sums[thread_x() / warp_size] = sum;
  __syncthreads();
  if (thread_x() >= warp_size) return;
  sum = warp_sum(sums[thread_x()]);
  if (thread_x() == 0) *squares = sum;
}

}  // namespace

void prepare_update(const AdamNumbers* from, const ClipRule& rule, const double* norms,
                    std::int64_t count, std::int64_t own, AdamNumbers* to, cudaStream_t stream) {
  if (norms == nullptr) count = 0;
  SPILLWAY_ASSERT(count == 0 || (own >= 0 && own < count));
  launch("prepare_update", prepare_kernel, {dim3(1), dim3(warp_size)}, stream, from, rule, norms,
         count, own, to);
}

template <class Gradient, class Element, class Moment>
void adamw(float* master, Moment* m, Moment* v, const Gradient* gradient, const Gradient* second,
           Element* parameters, std::int32_t unit, std::int64_t first_element,
           std::int64_t elements, const UnitRanges& ranges, const AdamNumbers* numbers,
           double* squares, const Workspace& workspace, cudaStream_t stream) {
  for (const void* p : {static_cast<const void*>(master), static_cast<const void*>(m),
                        static_cast<const void*>(v), static_cast<const void*>(gradient),
                        static_cast<const void*>(second), static_cast<const void*>(parameters)}) {
    SPILLWAY_ASSERT(on_16_bytes(p));
  }
  SPILLWAY_ASSERT(first_element % group == 0);
  SPILLWAY_ASSERT(ranges.count >= 0 && ranges.count <= UnitRanges::most);
  const std::int64_t blocks = divide_up(elements, adamw_block);
  SPILLWAY_ASSERT(static_cast<std::size_t>(blocks) * sizeof(double) <= workspace.bytes);
  const Update<Gradient, Element, Moment> update{
      master,   m,          v,       gradient,
      second,   parameters, unit,    first_element,
      elements, ranges,     numbers, reinterpret_cast<double*>(workspace.data)};
  if (elements > 0) {
    launch("adamw", adamw_kernel<Gradient, Element, Moment>,
           {dim3(grid_size(blocks)), dim3(threads)}, stream, update);
  }
  launch("adamw", add_squares_kernel, {dim3(1), dim3(sum_threads)}, stream, update.partials, blocks,
         squares);
}

#define SPILLWAY_ADAMW(Gradient, Element, Moment)                                           \
  template void adamw(float*, Moment*, Moment*, const Gradient*, const Gradient*, Element*, \
                      std::int32_t, std::int64_t, std::int64_t, const UnitRanges&,          \
                      const AdamNumbers*, double*, const Workspace&, cudaStream_t);
SPILLWAY_ADAMW(float, float, float)
SPILLWAY_ADAMW(float, bf16, float)
SPILLWAY_ADAMW(bf16, float, float)
SPILLWAY_ADAMW(bf16, bf16, float)
SPILLWAY_ADAMW(float, float, bf16)
SPILLWAY_ADAMW(float, bf16, bf16)
SPILLWAY_ADAMW(bf16, float, bf16)
SPILLWAY_ADAMW(bf16, bf16, bf16)

}  // namespace spillway::cuda
