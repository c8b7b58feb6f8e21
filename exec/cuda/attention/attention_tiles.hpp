// What the tensor-core kernels of attention share: tiles in shared memory, and which lane of a warp
// reads what of them.
//
// A tile is `rows` rows of HeadSize bf16 (head size rounded up, filled with zeros), each followed
// by 16 bytes of padding: a row is then an odd number of 16-byte pieces, so that the 8 rows of a
// matrix of ldmatrix lie in 8 different sets of 4 banks (no conflicts, whatever HeadSize), and all
// addresses are one register plus a constant (a swizzle would need an XOR for each).
#pragma once

#include <cstdint>
#include <type_traits>

#include "exec/cuda/attention/attention_place.hpp"
#include "exec/cuda/attention/tensor_core.hpp"

namespace spillway::cuda {

constexpr float log2_of_e = 1.44269504088896341f;
constexpr float ln_of_2 = 0.693147180559945309f;

template <int HeadSize>
struct Tile {
  static_assert(HeadSize % 16 == 0);
  static constexpr int row_elements = HeadSize + 8;
  static constexpr int row_bytes = 2 * row_elements;
  static constexpr int chunks = HeadSize / 8;  // of 16 bytes
  static constexpr int bytes(int rows) { return rows * row_bytes; }
};

// Where a lane points to with load_matrices(), in bytes from the first row and column of a tile.
struct LaneOffsets {
  int left;   // 16 rows x 16 columns as a left operand; also, transposed, 16 rows (the inner
              // dimension) x 16 columns as two right operands
  int right;  // 16 rows (the columns of the right operand) x 16 columns as two right operands
};

template <int HeadSize>
__device__ inline LaneOffsets lane_offsets(int lane) {
  return {(lane % 16) * Tile<HeadSize>::row_bytes + (lane / 16) * 16,
          (lane % 8 + lane / 16 * 8) * Tile<HeadSize>::row_bytes + (lane / 8 % 2) * 16};
}

// One head of a matrix of tokens in global memory.
struct HeadRows {
  const bf16* data;     // of the first row
  std::int64_t stride;  // elements from row to row
  int rows;             // how many there are from `data` on; those beyond count as zero
  int head_size;        // columns; those beyond count as zero
};

// The block starts to copy the first `Rows` rows to `tile`: each thread one column of 16 bytes.
template <int HeadSize, int Rows, int Threads>
__device__ inline void copy_tile(SharedAddress tile, const HeadRows& from) {
  constexpr int chunks = Tile<HeadSize>::chunks;
  constexpr int threads_per_row = chunks == 12 ? 16 : chunks;  // a power of two
  constexpr int rows_at_once = Threads / threads_per_row;
  const int thread = static_cast<int>(threadIdx.x);
  const int column = thread % threads_per_row * 8;
  int row = thread / threads_per_row;
  if (column >= HeadSize || (Rows < rows_at_once && row >= Rows)) return;
  const bf16* source = from.data + row * from.stride + column;
  const int rows = column < from.head_size ? from.rows : 0;
  tile += row * Tile<HeadSize>::row_bytes + column * 2;
  SPILLWAY_UNROLL
  for (int first = 0; first < Rows; first += rows_at_once) {
    copy_async_16(tile + first * Tile<HeadSize>::row_bytes, source, row < rows);
    row += rows_at_once;
    source += rows_at_once * from.stride;
  }
}

// A warp writes `Rows` rows (its own; sums times `factor`, rounded) through `tile`, which none but
// its threads use, to `to`; rows and columns as in HeadRows. sums[m][n] is rows 16 m, columns 8 n.
template <int HeadSize, int MTiles>
__device__ inline void write_rows(bf16* tile, const Sums (&sums)[MTiles][HeadSize / 8],
                                  const float (&factor)[MTiles][2], bf16* to, std::int64_t stride,
                                  int rows, int head_size) {
  constexpr int row_elements = Tile<HeadSize>::row_elements, chunks = Tile<HeadSize>::chunks;
  const int lane = static_cast<int>(threadIdx.x) % warp_size;
  __syncwarp();
  SPILLWAY_UNROLL
  for (int m = 0; m < MTiles; ++m) {
    SPILLWAY_UNROLL
    for (int n = 0; n < HeadSize / 8; ++n) {
      SPILLWAY_UNROLL
      for (int half = 0; half < 2; ++half) {
        const int row = 16 * m + 8 * half + lane / 4;
        const float scale = factor[m][half];
        *reinterpret_cast<std::uint32_t*>(tile + row * row_elements + 8 * n + 2 * (lane % 4)) =
            pack_bf16(sums[m][n].sum[2 * half] * scale, sums[m][n].sum[2 * half + 1] * scale);
      }
    }
  }
  __syncwarp();
  for (int piece = lane; piece < 16 * MTiles * chunks; piece += warp_size) {
    const int row = piece / chunks, column = piece % chunks * 8;
    if (row < rows && column < head_size) {
      *reinterpret_cast<uint4*>(to + row * stride + column) =
          *reinterpret_cast<const uint4*>(tile + row * row_elements + column);
    }
  }
}

// Calls body(std::integral_constant) with the head size rounded up to one there are kernels for.
template <class Body>
void with_padded_head(std::int64_t head_size, Body body) {
  if (head_size <= 16) return body(std::integral_constant<int, 16>{});
  if (head_size <= 32) return body(std::integral_constant<int, 32>{});
  if (head_size <= 64) return body(std::integral_constant<int, 64>{});
  if (head_size <= 96) return body(std::integral_constant<int, 96>{});
  return body(std::integral_constant<int, 128>{});
}

}  // namespace spillway::cuda
