// Copies by a kernel: of text on its way to the GPU, from pinned host memory, and of activations
// inside GPU memory. No copy engine takes part, so neither waits for the copies of other streams.
//
// A copy of it would queue on the copy engine behind a layer's parameters, tens of milliseconds of
// work that the compute stream has nothing to do with. A kernel's reads share the link with them
// instead, and pass in between. Kernels that use the text do not read it there themselves: a warp
// of the embedding takes one token, 4 bytes of a transfer of 32, and embed_backward reads tokens
// in an order of their own. Here a warp reads 512 bytes in a row, every byte once: 64 sequences of
// 1024 tokens are 256 KB, about 10 us at 25 GB/s.
#include "exec/cuda/kernels/device_math.hpp"
#include "exec/cuda/kernels/kernels.hpp"

namespace spillway::cuda {

namespace {

constexpr int threads = 256;

template <class T>
__global__ void __launch_bounds__(threads) copy_kernel(const T* from, T* to, std::int64_t words) {
  constexpr std::int64_t size = sizeof(Words) / sizeof(T);
  const std::int64_t word = block_x() * threads + thread_x();
  if (word < words) store_words(to + word * size, load_words(from + word * size));
}

template <class T>
void start_copy(const char* name, const T* from, T* to, std::int64_t count, cudaStream_t stream) {
  constexpr std::int64_t size = sizeof(Words) / sizeof(T);
  SPILLWAY_ASSERT(count % size == 0 && on_16_bytes(from) && on_16_bytes(to));
  if (count == 0) return;
  const std::int64_t words = count / size;
  launch(name, copy_kernel<T>, {dim3(grid_size(divide_up(words, threads))), dim3(threads)}, stream,
         from, to, words);
}

}  // namespace

void fetch_text(const std::int32_t* host, std::int32_t* to, std::int64_t count,
                cudaStream_t stream) {
  start_copy("fetch_text", host, to, count, stream);
}

template <class Element>
void copy_activation(const Element* from, Element* to, std::int64_t n, cudaStream_t stream) {
  start_copy("copy_activation", from, to, n, stream);
}
template void copy_activation(const float*, float*, std::int64_t, cudaStream_t);
template void copy_activation(const bf16*, bf16*, std::int64_t, cudaStream_t);

}  // namespace spillway::cuda
