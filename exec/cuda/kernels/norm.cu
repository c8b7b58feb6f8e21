// Layer norm and RMS norm, forward. A row lies in the registers of its team of threads (one warp,
// up to 1024 columns of bf16) between the mean, the deviation and the output, so that it is read
// once.
//
// Every operation is rounded on its own, so an output from given statistics has the bits of one
// with them. Moves the ideal: one read and one write of an element (4 bytes in bf16; weight and
// bias stay in the caches), or one read where only statistics are asked for.
#include <algorithm>

#include "exec/cuda/kernels/device_math.hpp"
#include "exec/cuda/kernels/kernels.hpp"
#include "exec/cuda/kernels/row_statistics.hpp"

namespace spillway::cuda {

namespace {

constexpr int most_threads = 512;
constexpr int most_warps = most_threads / warp_size;

template <class Element>
struct Norm {
  const Element *input, *weight, *bias;
  Element* output;
  RowStatistics statistics;
  NormParts parts;
  float epsilon;
  std::int64_t rows, columns;
};

// A thread's packs of a row: number threadIdx.x, + blockDim.x, .. Held in registers if there are at
// most `held` of them, read again every time if held = 0.
template <class Element, int held>
class RowPart {
 public:
  __device__ RowPart(const Element* row, int packs) : row_(row), packs_(packs) {
    SPILLWAY_UNROLL
    for (int k = 0; k < held; ++k) {
      const int at = thread_x() + k * threads_x();
      if (at < packs) words_[k] = load_words(row + at * pack_size<Element>);
    }
  }
  // body(pack number, its elements)
  template <class Body>
  __device__ void each(Body body) const {
    float x[pack_size<Element>];
    if constexpr (held > 0) {
      SPILLWAY_UNROLL
      for (int k = 0; k < held; ++k) {
        const int at = thread_x() + k * threads_x();
        if (at >= packs_) continue;
        unpack<Element>(words_[k], x);
        body(at, x);
      }
    } else {
      for (int at = thread_x(); at < packs_; at += threads_x()) {
        unpack<Element>(load_words(row_ + at * pack_size<Element>), x);
        body(at, x);
      }
    }
  }

 private:
  const Element* row_;
  int packs_;
  Words words_[held > 0 ? held : 1];
};

// The sum over a team (the threads with one threadIdx.y), in all its threads.
__device__ inline float team_sum(float value, float (&warp_sums)[most_warps]) {
  value = warp_sum(value);
  if (threads_x() == warp_size) return value;
  const int warps = threads_x() / warp_size, first = thread_y() * warps;
  if (thread_x() % warp_size == 0) warp_sums[first + thread_x() / warp_size] = value;
  __syncthreads();
  float sum = warp_sums[first];
  for (int warp = 1; warp < warps; ++warp) sum = add(sum, warp_sums[first + warp]);
  return sum;
}

// Blocks (team size, teams), a row for each team.
// centered: a layer norm; an RMS norm has neither mean nor bias.
template <class Element, int held, bool centered>
__global__ void __launch_bounds__(most_threads, 2) forward_kernel(Norm<Element> norm) {
  constexpr int size = pack_size<Element>;
  __shared__ float sums[most_warps], squares_sums[most_warps];
  const std::int64_t row = block_x() * static_cast<int>(blockDim.y) + thread_y();
  const bool active = row < norm.rows;  // the others meet them at the barriers
  const int packs = active ? static_cast<int>(norm.columns / size) : 0;
  const RowPart<Element, held> part(norm.input + (active ? row * norm.columns : 0), packs);

  const std::int64_t at = active ? place_of_row(norm.statistics, row) : 0;
  float mean = 0, rstd;
  if (norm.parts == NormParts::output) {
    if constexpr (centered) mean = norm.statistics.mean[at];
    rstd = norm.statistics.rstd[at];
  } else {
    const float count = static_cast<float>(norm.columns);
    if constexpr (centered) {
      float sum = 0;
      part.each([&](int, const float(&x)[size]) {
        SPILLWAY_UNROLL
        for (int i = 0; i < size; ++i) sum = add(sum, x[i]);
      });
      mean = divide(team_sum(sum, sums), count);
    }
    float squares = 0;
    part.each([&](int, const float(&x)[size]) {
      SPILLWAY_UNROLL
      for (int i = 0; i < size; ++i) {
        const float difference = centered ? subtract(x[i], mean) : x[i];
        squares = multiply_add(difference, difference, squares);
      }
    });
    squares = team_sum(squares, squares_sums);
    rstd = divide(1.0f, square_root(add(divide(squares, count), norm.epsilon)));
    if (active && thread_x() == 0) {
      if constexpr (centered) norm.statistics.mean[at] = mean;
      norm.statistics.rstd[at] = rstd;
    }
  }
  if (norm.parts == NormParts::statistics) return;
  part.each([&](int pack_at, const float(&x)[size]) {
    float weight[size], y[size];
    unpack<Element>(load_words(norm.weight + pack_at * size), weight);
    if constexpr (centered) {
      float bias[size];
      unpack<Element>(load_words(norm.bias + pack_at * size), bias);
      SPILLWAY_UNROLL
      for (int i = 0; i < size; ++i)
        y[i] = multiply_add(multiply(subtract(x[i], mean), rstd), weight[i], bias[i]);
    } else {
      SPILLWAY_UNROLL
      for (int i = 0; i < size; ++i) y[i] = multiply(multiply(x[i], rstd), weight[i]);
    }
    store_words(norm.output + row * norm.columns + pack_at * size, pack<Element>(y));
  });
}

template <int held, bool centered, class Element>
void start(const Norm<Element>& norm, std::int64_t team, cudaStream_t stream) {
  const std::int64_t teams = std::max<std::int64_t>(1, 256 / team);
  const Launch shape{dim3(grid_size(divide_up(norm.rows, teams))),
                     dim3(static_cast<unsigned>(team), static_cast<unsigned>(teams))};
  launch("norm_forward", forward_kernel<Element, held, centered>, shape, stream, norm);
}

template <bool centered, class Element>
void forward(const Norm<Element>& norm, cudaStream_t stream) {
  require_rows(norm.statistics, norm.rows);
  SPILLWAY_ASSERT(norm.columns % 8 == 0 && norm.columns > 0 && norm.columns < (1 << 30));
  if (norm.rows == 0) return;
  const std::int64_t packs = norm.columns / pack_size<Element>;
  const auto team = [&](std::int64_t held) {
    return divide_up(divide_up(packs, held), warp_size) * warp_size;
  };
  if (packs <= warp_size) {
    start<1, centered>(norm, warp_size, stream);
  } else if (packs <= 2 * warp_size) {
    start<2, centered>(norm, warp_size, stream);
  } else if (packs <= 3 * warp_size) {
    start<3, centered>(norm, warp_size, stream);
  } else if (packs <= 4 * warp_size) {
    start<4, centered>(norm, warp_size, stream);
  } else if (packs <= 2 * most_threads) {
    start<2, centered>(norm, team(2), stream);
  } else if (packs <= 4 * most_threads) {
    start<4, centered>(norm, team(4), stream);
  } else {
    start<0, centered>(norm, most_threads, stream);
  }
}

}  // namespace

template <class Element>
void norm_forward(const Element* input, const Element* weight, const Element* bias, Element* output,
                  const RowStatistics& statistics, NormParts parts, float epsilon,
                  std::int64_t rows, std::int64_t columns, cudaStream_t stream) {
  forward<true, Element>({input, weight, bias, output, statistics, parts, epsilon, rows, columns},
                         stream);
}

template <class Element>
void rms_norm_forward(const Element* input, const Element* weight, Element* output,
                      const RowStatistics& statistics, NormParts parts, float epsilon,
                      std::int64_t rows, std::int64_t columns, cudaStream_t stream) {
  forward<false, Element>(
      {input, weight, nullptr, output, statistics, parts, epsilon, rows, columns}, stream);
}

template void rms_norm_forward(const float*, const float*, float*, const RowStatistics&, NormParts,
                               float, std::int64_t, std::int64_t, cudaStream_t);
template void rms_norm_forward(const bf16*, const bf16*, bf16*, const RowStatistics&, NormParts,
                               float, std::int64_t, std::int64_t, cudaStream_t);
template void norm_forward(const float*, const float*, const float*, float*, const RowStatistics&,
                           NormParts, float, std::int64_t, std::int64_t, cudaStream_t);
template void norm_forward(const bf16*, const bf16*, const bf16*, bf16*, const RowStatistics&,
                           NormParts, float, std::int64_t, std::int64_t, cudaStream_t);

}  // namespace spillway::cuda
