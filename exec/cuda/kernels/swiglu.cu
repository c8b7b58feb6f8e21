// SwiGLU, forward and backward. With s = 1 / (1 + exp(-gate)):
//
//   product = gate s up,   d(up) = d gate s,   d(gate) = d up s (1 + gate (1 - s))
//
// Forward moves the ideal, two reads and one write for an element of the product (6 bytes in bf16);
// backward three reads and two writes (10 bytes), and 2 bytes more where it makes the product,
// which was not saved, on the way.
#include "exec/cuda/kernels/device_math.hpp"
#include "exec/cuda/kernels/kernels.hpp"

namespace spillway::cuda {

namespace {

constexpr int threads = 256;
constexpr int packs_per_thread = 2;  // loads in flight, of each of the inputs

// -x is held below 80, so that exp is finite. Every operation is rounded on its own, so that the
// product has the same bits in every kernel.
template <class Element>
__device__ inline float sigmoid(float x) {
  return reciprocal<Element>(add(exponential<Element>(-x > 80.0f ? 80.0f : -x), 1.0f));
}

// Where a pack of the product's row lies in a row twice as wide.
__device__ inline std::int64_t place_in_wide(std::int64_t pack, std::uint32_t packs_of_row) {
  const auto number = static_cast<std::uint32_t>(pack);
  return pack + static_cast<std::int64_t>(number / packs_of_row) * packs_of_row;
}

template <class Element>
__global__ void __launch_bounds__(threads)
    swiglu_forward_kernel(const Element* __restrict__ gate_up, Element* __restrict__ product,
                          std::int64_t packs, std::uint32_t packs_of_row) {
  constexpr int size = pack_size<Element>;
  const std::int64_t first = block_x() * (threads * packs_per_thread) + thread_x();
  const std::int64_t columns = static_cast<std::int64_t>(packs_of_row) * size;
  Words gates[packs_per_thread], ups[packs_per_thread];
  SPILLWAY_UNROLL
  for (int k = 0; k < packs_per_thread; ++k) {
    const std::int64_t at = first + k * threads;
    if (at >= packs) continue;
    const Element* const gate = gate_up + place_in_wide(at, packs_of_row) * size;
    gates[k] = load_words(gate);
    ups[k] = load_words(gate + columns);
  }
  SPILLWAY_UNROLL
  for (int k = 0; k < packs_per_thread; ++k) {
    const std::int64_t at = first + k * threads;
    if (at >= packs) continue;
    float gate[size], up[size];
    unpack<Element>(gates[k], gate);
    unpack<Element>(ups[k], up);
    SPILLWAY_UNROLL
    for (int i = 0; i < size; ++i)
      up[i] = multiply(multiply(gate[i], sigmoid<Element>(gate[i])), up[i]);
    store_words(product + at * size, pack<Element>(up));
  }
}

template <class Element, bool makes_product>
__global__ void __launch_bounds__(threads)
    swiglu_backward_kernel(const Element* __restrict__ gate_up, Element* gradient,
                           Element* __restrict__ product, std::int64_t packs,
                           std::uint32_t packs_of_row) {
  constexpr int size = pack_size<Element>;
  const std::int64_t first = block_x() * (threads * packs_per_thread) + thread_x();
  const std::int64_t columns = static_cast<std::int64_t>(packs_of_row) * size;
  Words gates[packs_per_thread], ups[packs_per_thread], gradients[packs_per_thread];
  SPILLWAY_UNROLL
  for (int k = 0; k < packs_per_thread; ++k) {
    const std::int64_t at = first + k * threads;
    if (at >= packs) continue;
    const std::int64_t gate = place_in_wide(at, packs_of_row) * size;
    gates[k] = load_words(gate_up + gate);
    ups[k] = load_words(gate_up + gate + columns);
    gradients[k] = load_words(gradient + gate + columns);
  }
  SPILLWAY_UNROLL
  for (int k = 0; k < packs_per_thread; ++k) {
    const std::int64_t at = first + k * threads;
    if (at >= packs) continue;
    float gate[size], up[size], d[size], y[size];
    unpack<Element>(gates[k], gate);
    unpack<Element>(ups[k], up);
    unpack<Element>(gradients[k], d);
    SPILLWAY_UNROLL
    for (int i = 0; i < size; ++i) {
      const float s = sigmoid<Element>(gate[i]), silu = multiply(gate[i], s);
      y[i] = multiply(silu, up[i]);
      const float slope = multiply(s, multiply_add(gate[i], subtract(1.0f, s), 1.0f));
      gate[i] = multiply(multiply(d[i], up[i]), slope);
      up[i] = multiply(d[i], silu);
    }
    const std::int64_t to = place_in_wide(at, packs_of_row) * size;
    store_words(gradient + to, pack<Element>(gate));
    store_words(gradient + to + columns, pack<Element>(up));
    if constexpr (makes_product) store_words(product + at * size, pack<Element>(y));
  }
}

struct Packs {
  std::int64_t all;
  std::uint32_t of_row;
  Launch shape;
};
template <class Element>
Packs packs_of(std::int64_t rows, std::int64_t columns) {
  SPILLWAY_ASSERT(columns % 8 == 0 && columns > 0 && rows >= 0);
  const std::int64_t of_row = columns / pack_size<Element>, all = rows * of_row;
  SPILLWAY_ASSERT(all <= 0x7fffffff);  // the kernels divide in 32 bits
  Launch shape;
  if (all > 0) shape.grid = dim3(grid_size(divide_up(all, threads * packs_per_thread)));
  shape.block = dim3(threads);
  return {all, static_cast<std::uint32_t>(of_row), shape};
}

}  // namespace

template <class Element>
void swiglu_forward(const Element* gate_up, Element* product, std::int64_t rows,
                    std::int64_t columns, cudaStream_t stream) {
  SPILLWAY_ASSERT(on_16_bytes(gate_up) && on_16_bytes(product));
  const Packs packs = packs_of<Element>(rows, columns);
  if (packs.all == 0) return;
  launch("swiglu_forward", swiglu_forward_kernel<Element>, packs.shape, stream, gate_up, product,
         packs.all, packs.of_row);
}

template <class Element>
void swiglu_backward(const Element* gate_up, Element* gradient, Element* product, std::int64_t rows,
                     std::int64_t columns, cudaStream_t stream) {
  SPILLWAY_ASSERT(on_16_bytes(gate_up) && on_16_bytes(gradient) && on_16_bytes(product));
  const Packs packs = packs_of<Element>(rows, columns);
  if (packs.all == 0) return;
  launch("swiglu_backward",
         product != nullptr ? swiglu_backward_kernel<Element, true>
                            : swiglu_backward_kernel<Element, false>,
         packs.shape, stream, gate_up, gradient, product, packs.all, packs.of_row);
}

#define SPILLWAY_SWIGLU(Element)                                                                \
  template void swiglu_forward(const Element*, Element*, std::int64_t, std::int64_t,            \
                               cudaStream_t);                                                   \
  template void swiglu_backward(const Element*, Element*, Element*, std::int64_t, std::int64_t, \
                                cudaStream_t);
SPILLWAY_SWIGLU(float)
SPILLWAY_SWIGLU(bf16)
#undef SPILLWAY_SWIGLU

}  // namespace spillway::cuda
