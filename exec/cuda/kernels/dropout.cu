// Dropout of the input of low-rank adapters, and of its gradient: the values that
// exec/cpu/dropout.hpp lets remain, on the host and here.
//
// Moves the ideal: 4 bytes of an element in bf16, 6 where it adds. A warp has a row, so that the
// row's key is made once; what an element's hash takes beside that are some twenty integer
// operations.
#include "exec/cuda/kernels/device_math.hpp"
#include "exec/cuda/kernels/kernels.hpp"

namespace spillway::cuda {

namespace {

constexpr int block_rows = 8;
constexpr int in_flight = 2;  // loads of a thread

// Blocks (32, block_rows). Row r of y begins at r y_stride.
template <class Element, bool adds>
__global__ void __launch_bounds__(warp_size* block_rows)
    dropout_kernel(DropoutRows at, const Element* __restrict__ x, Element* __restrict__ y,
                   std::int64_t y_stride, std::int64_t rows, std::int64_t columns) {
  constexpr int size = pack_size<Element>, step = warp_size * size;
  const std::int64_t row = block_x() * block_rows + thread_y();
  if (row >= rows) return;
  const std::int64_t sequence = row / at.tokens;
  const NoiseKey key =
      dropout_row(dropout_key(*at.step, at.layer, at.group, at.sequence + sequence),
                  row - sequence * at.tokens);
  x += row * columns;
  y += row * y_stride;
  for (std::int64_t first = thread_x() * size; first < columns; first += in_flight * step) {
    Words words[in_flight], old[adds ? in_flight : 1];
    SPILLWAY_UNROLL
    for (int k = 0; k < in_flight; ++k) {
      if (first + k * step >= columns) continue;
      words[k] = load_words(x + first + k * step);
      if constexpr (adds) old[k] = load_words(y + first + k * step);
    }
    SPILLWAY_UNROLL
    for (int k = 0; k < in_flight; ++k) {
      const std::int64_t column = first + k * step;
      if (column >= columns) continue;
      float value[size], before[size] = {};
      unpack<Element>(words[k], value);
      if constexpr (adds) unpack<Element>(old[k], before);
      SPILLWAY_UNROLL
      for (int i = 0; i < size; ++i) {
        value[i] = remaining(at.dropout, key, column + i, value[i]);
        if constexpr (adds) value[i] = add(before[i], value[i]);
      }
      store_words(y + column, pack<Element>(value));
    }
  }
}

__global__ void fetch_noise_kernel(const NoiseKey* host, NoiseKey* to) { *to = *host; }

template <class Element, bool adds>
void start(const DropoutRows& at, const Element* x, Element* y, std::int64_t y_stride,
           std::int64_t rows, std::int64_t columns, cudaStream_t stream) {
  SPILLWAY_ASSERT(columns % 8 == 0 && y_stride % 8 == 0 && on_16_bytes(x) && on_16_bytes(y));
  SPILLWAY_ASSERT(at.step != nullptr && at.tokens > 0);
  if (rows == 0) return;
  launch("dropout", dropout_kernel<Element, adds>,
         {dim3(grid_size(divide_up(rows, block_rows))), dim3(warp_size, block_rows)}, stream, at, x,
         y, y_stride, rows, columns);
}

}  // namespace

void fetch_noise(const NoiseKey* host, NoiseKey* to, cudaStream_t stream) {
  launch("fetch_noise", fetch_noise_kernel, {dim3(1), dim3(1)}, stream, host, to);
}

template <class Element>
void drop(const DropoutRows& at, const Element* x, Element* y, std::int64_t rows,
          std::int64_t columns, cudaStream_t stream) {
  start<Element, false>(at, x, y, columns, rows, columns, stream);
}

template <class Element>
void add_remaining(const DropoutRows& at, const Element* x, Element* y, std::int64_t y_stride,
                   std::int64_t rows, std::int64_t columns, cudaStream_t stream) {
  start<Element, true>(at, x, y, y_stride, rows, columns, stream);
}

#define SPILLWAY_DROPOUT(Element)                                                              \
  template void drop(const DropoutRows&, const Element*, Element*, std::int64_t, std::int64_t, \
                     cudaStream_t);                                                            \
  template void add_remaining(const DropoutRows&, const Element*, Element*, std::int64_t,      \
                              std::int64_t, std::int64_t, cudaStream_t);
SPILLWAY_DROPOUT(float)
SPILLWAY_DROPOUT(bf16)
#undef SPILLWAY_DROPOUT

}  // namespace spillway::cuda
