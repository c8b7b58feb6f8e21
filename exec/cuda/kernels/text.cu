// Text on its way to the GPU: from pinned host memory, by a kernel.
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

__global__ void __launch_bounds__(threads)
    fetch_text_kernel(const std::int32_t* host, std::int32_t* to, std::int64_t words) {
  constexpr int size = pack_size<float>;
  const std::int64_t word = block_x() * threads + thread_x();
  if (word < words) store_words(to + word * size, load_words(host + word * size));
}

}  // namespace

void fetch_text(const std::int32_t* host, std::int32_t* to, std::int64_t count,
                cudaStream_t stream) {
  SPILLWAY_ASSERT(count % text_alignment == 0 && on_16_bytes(host) && on_16_bytes(to));
  if (count == 0) return;
  const std::int64_t words = count / text_alignment;
  launch("fetch_text", fetch_text_kernel,
         {dim3(grid_size(divide_up(words, threads))), dim3(threads)}, stream, host, to, words);
}

}  // namespace spillway::cuda
