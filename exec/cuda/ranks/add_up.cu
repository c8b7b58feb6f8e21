// Reads every operand once and writes the sum: (ranks + 1) x n elements of traffic.
#include "exec/cuda/ranks/add_up.hpp"

#include <algorithm>

#include "base/errors.hpp"
#include "exec/cuda/kernels/device_math.hpp"

namespace spillway::cuda {

namespace {

constexpr int threads = 256;
constexpr std::int64_t most_blocks = 4096;

template <class Element>
struct Operands {
  const Element* from[most_sums];
  int count;
};

// The first `packs` of 16 bytes; then the elements behind them, one by one.
template <class Element>
__global__ void __launch_bounds__(threads)
    add_up_kernel(Operands<Element> operands, Element* to, std::int64_t packs, std::int64_t n,
                  bool adds) {
  constexpr int size = pack_size<Element>;
  const std::int64_t all = static_cast<std::int64_t>(gridDim.x) * threads;
  const std::int64_t first = block_x() * threads + thread_x();
  for (std::int64_t at = first; at < packs; at += all) {
    float sum[size], value[size];
    unpack<Element>(load_words(operands.from[0] + at * size), sum);
    for (int k = 1; k < operands.count; ++k) {
      unpack<Element>(load_words(operands.from[k] + at * size), value);
      SPILLWAY_UNROLL
      for (int i = 0; i < size; ++i) sum[i] = add(sum[i], value[i]);
    }
    if (adds) {
      unpack<Element>(load_words(to + at * size), value);
      SPILLWAY_UNROLL
      for (int i = 0; i < size; ++i) sum[i] = add(sum[i], value[i]);
    }
    store_words(to + at * size, pack<Element>(sum));
  }
  for (std::int64_t i = packs * size + first; i < n; i += all) {
    float sum = to_float(operands.from[0][i]);
    for (int k = 1; k < operands.count; ++k) sum = add(sum, to_float(operands.from[k][i]));
    if (adds) sum = add(sum, to_float(to[i]));
    to[i] = from_float<Element>(sum);
  }
}

template <class Element>
void add_up_elements(std::span<const std::byte* const> from, std::byte* to, std::int64_t n,
                     bool adds, cudaStream_t stream) {
  Operands<Element> operands{};
  operands.count = static_cast<int>(from.size());
  bool in_packs = on_16_bytes(to);
  for (std::size_t k = 0; k < from.size(); ++k) {
    operands.from[k] = reinterpret_cast<const Element*>(from[k]);
    in_packs = in_packs && on_16_bytes(from[k]);
  }
  const std::int64_t packs = in_packs ? n / pack_size<Element> : 0;
  const std::int64_t work = packs > 0 ? packs : n;
  const std::int64_t blocks = std::min(divide_up(work, threads), most_blocks);
  launch("add_up", add_up_kernel<Element>, {dim3(grid_size(blocks)), dim3(threads)}, stream,
         operands, reinterpret_cast<Element*>(to), packs, n, adds);
}

}  // namespace

void add_up(std::span<const std::byte* const> from, std::byte* to, std::int64_t n,
            std::uint64_t width, bool adds, cudaStream_t stream) {
  SPILLWAY_ASSERT(!from.empty() && from.size() <= most_sums &&
                  (width == sizeof(float) || width == sizeof(bf16)));
  if (n == 0) return;
  if (width == sizeof(float))
    add_up_elements<float>(from, to, n, adds, stream);
  else
    add_up_elements<bf16>(from, to, n, adds, stream);
}

}  // namespace spillway::cuda
