// GELU by its tanh approximation, as the gate s = 1 / (1 + exp(-2u)): y = x s, with
// u = sqrt(2 / pi) (x + 0.044715 x^3); a kernel of its own, so that the result of recomputing it
// from a saved matrix product is the saved one.
//
// Forward moves the ideal: one read and one write of an element (4 bytes in bf16); backward two
// reads and one write (6 bytes).
#include "exec/cuda/device_math.hpp"
#include "exec/cuda/kernels.hpp"

namespace spillway::cuda {

namespace {

constexpr int threads = 256;
constexpr int packs_per_thread = 4;  // loads in flight; of each of the inputs
constexpr int backward_packs_per_thread = 2;

constexpr float slope = 1.5957691216057308f;  // 2 sqrt(2 / pi)
constexpr float cubic = 0.044715f;

// -2u is held below 80, so that exp is finite.
template <class Element>
__device__ inline float gate(float x) {
  const float minus_2u = x * (x * x * cubic + 1.0f) * -slope;
  return reciprocal<Element>(exponential<Element>(minus_2u > 80.0f ? 80.0f : minus_2u) + 1.0f);
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
    for (int i = 0; i < size; ++i) v[i] = v[i] * gate<Element>(v[i]);
    store_words(y + (first + k * threads) * size, pack<Element>(v));
  }
}

// d/dx (x s(2u)) = s + x s (1 - s) 2u'.
template <class Element>
__global__ void __launch_bounds__(threads)
    backward_kernel(const Element* __restrict__ x, Element* __restrict__ gradient,
                    std::int64_t packs) {
  constexpr int size = pack_size<Element>, count = backward_packs_per_thread;
  const std::int64_t first = block_x() * (threads * count) + thread_x();
  Words x_words[count], g_words[count];
  SPILLWAY_UNROLL
  for (int k = 0; k < count; ++k) {
    if (first + k * threads >= packs) continue;
    x_words[k] = load_words(x + (first + k * threads) * size);
    g_words[k] = load_words(gradient + (first + k * threads) * size);
  }
  SPILLWAY_UNROLL
  for (int k = 0; k < count; ++k) {
    if (first + k * threads >= packs) continue;
    float v[size], g[size];
    unpack<Element>(x_words[k], v);
    unpack<Element>(g_words[k], g);
    SPILLWAY_UNROLL
    for (int i = 0; i < size; ++i) {
      const float s = gate<Element>(v[i]);
      const float steep = (v[i] * v[i] * (3.0f * cubic) + 1.0f) * slope;
      g[i] = g[i] * (s + v[i] * s * (1.0f - s) * steep);
    }
    store_words(gradient + (first + k * threads) * size, pack<Element>(g));
  }
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

template <class Element>
void gelu_backward(const Element* x, Element* gradient, std::int64_t n, cudaStream_t stream) {
  SPILLWAY_ASSERT(n % 8 == 0 && on_16_bytes(x) && on_16_bytes(gradient));
  if (n == 0) return;
  const std::int64_t packs = n / pack_size<Element>;
  const Launch shape{dim3(grid_size(divide_up(packs, threads * backward_packs_per_thread))),
                     dim3(threads)};
  launch("gelu_backward", backward_kernel<Element>, shape, stream, x, gradient, packs);
}

template void gelu_forward(const float*, float*, std::int64_t, cudaStream_t);
template void gelu_forward(const bf16*, bf16*, std::int64_t, cudaStream_t);
template void gelu_backward(const float*, float*, std::int64_t, cudaStream_t);
template void gelu_backward(const bf16*, bf16*, std::int64_t, cudaStream_t);

}  // namespace spillway::cuda
