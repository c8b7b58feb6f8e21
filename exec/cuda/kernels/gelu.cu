// GELU by its tanh approximation, as the gate s = 1 / (1 + exp(-2u)): y = x s, with
// u = sqrt(2 / pi) (x + 0.044715 x^3); a kernel of its own, so that the result of recomputing it
// from a saved matrix product is the saved one.
//
// Forward moves the ideal: one read and one write of an element (4 bytes in bf16); backward two
// reads and one write (6 bytes), and with the sums of its rows nothing more: a warp goes down 32
// packs of columns, so that it has their sums in registers. Where y was not saved, backward makes
// it on the way (2 bytes; alone it would be 4).
#include "exec/cuda/kernels/column_tiles.hpp"
#include "exec/cuda/kernels/device_math.hpp"
#include "exec/cuda/kernels/kernels.hpp"

namespace spillway::cuda {

namespace {

constexpr int threads = 256;
constexpr int packs_per_thread = 2;  // loads in flight
constexpr int rows_in_flight = 2;    // backward: of each of the inputs

constexpr float slope = 1.5957691216057308f;  // 2 sqrt(2 / pi)
constexpr float cubic = 0.044715f;

// -2u is held below 80, so that exp is finite. Every operation is rounded on its own, so that y has
// the same bits in every kernel.
template <class Element>
__device__ inline float gate(float x) {
  const float minus_2u = multiply(multiply(x, multiply_add(multiply(x, x), cubic, 1.0f)), -slope);
  return reciprocal<Element>(add(exponential<Element>(minus_2u > 80.0f ? 80.0f : minus_2u), 1.0f));
}

template <class Element>
__global__ void __launch_bounds__(threads)
    forward_kernel(const Element* __restrict__ x, Element* __restrict__ y, std::int64_t packs) {
  constexpr int size = pack_size<Element>;
  const std::int64_t first = block_x() * (threads * packs_per_thread) + thread_x();
  Words words[packs_per_thread];
  SPILLWAY_UNROLL
  for (int k = 0; k < packs_per_thread; ++k)
    if (first + k * threads < packs) words[k] = load_words(x + (first + k * threads) * size);
  SPILLWAY_UNROLL
  for (int k = 0; k < packs_per_thread; ++k) {
    if (first + k * threads >= packs) continue;
    float v[size];
    unpack<Element>(words[k], v);
    SPILLWAY_UNROLL
    for (int i = 0; i < size; ++i) v[i] = multiply(v[i], gate<Element>(v[i]));
    store_words(y + (first + k * threads) * size, pack<Element>(v));
  }
}

// d/dx (x s(2u)) = s + x s (1 - s) 2u'. v becomes y. Each operation is rounded on its own, so that
// the bits are those of every kernel that this is a part of.
template <class Element>
__device__ inline void backward_pack(float (&v)[pack_size<Element>],
                                     float (&g)[pack_size<Element>]) {
  SPILLWAY_UNROLL
  for (int i = 0; i < pack_size<Element>; ++i) {
    const float s = gate<Element>(v[i]);
    const float y = multiply(v[i], s);
    const float steep = multiply(add(multiply(multiply(v[i], v[i]), 3.0f * cubic), 1.0f), slope);
    g[i] = multiply(g[i], add(s, multiply(multiply(y, add(1.0f, -s)), steep)));
    v[i] = y;
  }
}

template <class Element>
struct GeluGradient {
  const Element* x;
  Element *gradient, *y;
  std::int64_t rows, columns, chunk_rows;
  float* partials;  // (chunks, columns)
};

// What is summed up is the gradient as it is stored.
template <class Element, bool writes_y>
__global__ void __launch_bounds__(warp_size* row_warps, 4)
    backward_kernel(GeluGradient<Element> gelu) {
  constexpr int size = pack_size<Element>, count = rows_in_flight;
  __shared__ __align__(16) TileSums<Element> sums;
  const std::int64_t column = block_x() * tile_columns<Element> + thread_x() * size;
  const std::int64_t begin = block_y() * gelu.chunk_rows;
  const std::int64_t end =
      begin + gelu.chunk_rows < gelu.rows ? begin + gelu.chunk_rows : gelu.rows;
  float sum[size] = {};
  for (std::int64_t row = begin + thread_y(); row < end && column < gelu.columns;
       row += row_warps * count) {
    const std::int64_t first = row * gelu.columns + column, step = row_warps * gelu.columns;
    Words x_words[count], g_words[count];
    SPILLWAY_UNROLL
    for (int k = 0; k < count; ++k) {
      if (row + k * row_warps >= end) continue;
      x_words[k] = load_words(gelu.x + first + k * step);
      g_words[k] = load_words(gelu.gradient + first + k * step);
    }
    SPILLWAY_UNROLL
    for (int k = 0; k < count; ++k) {
      if (row + k * row_warps >= end) continue;
      float v[size], g[size];
      unpack<Element>(x_words[k], v);
      unpack<Element>(g_words[k], g);
      backward_pack<Element>(v, g);
      const Words stored = pack<Element>(g);
      store_words(gelu.gradient + first + k * step, stored);
      if constexpr (writes_y) store_words(gelu.y + first + k * step, pack<Element>(v));
      unpack<Element>(stored, g);
      SPILLWAY_UNROLL
      for (int i = 0; i < size; ++i) sum[i] += g[i];
    }
  }
  add_up_tile<Element>(sum, sums, gelu.partials + block_y() * gelu.columns, gelu.columns);
}

}  // namespace

template <class Element>
void gelu_forward(const Element* x, Element* y, std::int64_t n, cudaStream_t stream) {
  SPILLWAY_ASSERT(n % 8 == 0 && on_16_bytes(x) && on_16_bytes(y));
  if (n == 0) return;
  const std::int64_t packs = n / pack_size<Element>;
  const Launch shape{dim3(grid_size(divide_up(packs, threads * packs_per_thread))), dim3(threads)};
  launch("gelu_forward", forward_kernel<Element>, shape, stream, x, y, packs);
}

template <class Element, class Gradient>
void gelu_backward(const Element* x, Element* gradient, Element* y, Gradient* sums, bool overwrites,
                   std::int64_t rows, std::int64_t columns, const Workspace& workspace,
                   cudaStream_t stream) {
  SPILLWAY_ASSERT(columns % 8 == 0 && columns > 0);
  SPILLWAY_ASSERT(on_16_bytes(x) && on_16_bytes(gradient) && on_16_bytes(y));
  const RowChunks cut = row_chunks(rows, columns, pack_size<Element>);
  SPILLWAY_ASSERT(static_cast<std::size_t>(cut.chunks * columns) * sizeof(float) <=
                  workspace.bytes);
  auto* const partials = reinterpret_cast<float*>(workspace.data);
  if (rows > 0) {
    const GeluGradient<Element> gelu{x, gradient, y, rows, columns, cut.rows, partials};
    const Launch shape{dim3(grid_size(cut.tiles), static_cast<unsigned>(cut.chunks)),
                       dim3(warp_size, row_warps)};
    launch("gelu_backward",
           y != nullptr ? backward_kernel<Element, true> : backward_kernel<Element, false>, shape,
           stream, gelu);
  }
  if (sums != nullptr)
    add_partials<Gradient>(partials, cut.chunks, {{sums}, 1, columns, overwrites}, stream);
}

template void gelu_forward(const float*, float*, std::int64_t, cudaStream_t);
template void gelu_forward(const bf16*, bf16*, std::int64_t, cudaStream_t);

#define SPILLWAY_GELU_BACKWARD(Element, Gradient)                                                \
  template void gelu_backward(const Element*, Element*, Element*, Gradient*, bool, std::int64_t, \
                              std::int64_t, const Workspace&, cudaStream_t);
SPILLWAY_GELU_BACKWARD(float, float)
SPILLWAY_GELU_BACKWARD(float, bf16)
SPILLWAY_GELU_BACKWARD(bf16, float)
SPILLWAY_GELU_BACKWARD(bf16, bf16)
#undef SPILLWAY_GELU_BACKWARD

}  // namespace spillway::cuda
