// What the kernels of attention for Hopper share: tiles that wgmma reads, the warps that fill them,
// and the order of work.
//
// A block has one warpgroup that copies (producers) and two or three that compute (consumers), and
// stays on its SM: it takes work, a block of queries or keys of a head, from a list that is known
// beforehand, so that the copies for the next work overlap the end of this one. Producers and
// consumers meet at barriers in shared memory; warpgroups of consumers go their own way.
//
// There are 4 buffers for tiles, one for each warp of the producers: tile t of a block's whole run
// is made of parts 0 and 1 (K and V, say) and lies in the buffers 2 (t % 2) and 2 (t % 2) + 1. A
// warp waits until its buffer is free, copies, waits until its copies have arrived, makes them
// visible to the tensor cores, and says that the buffer is full.
#pragma once

#include "exec/cuda/attention/attention_order.hpp"
#include "exec/cuda/attention/attention_tiles.hpp"
#include "exec/cuda/attention/warpgroup.hpp"

namespace spillway::cuda {

constexpr int producer_warps = 4;
constexpr int swizzled_row_bytes = 128, swizzled_columns = 64, swizzled_bytes = 1024;

// Whether warpgroups can have so many registers per thread: a block starts with the same number for
// all, a multiple of 8 that the compiler takes from __launch_bounds__(threads, 1), and what
// producers give back must cover what consumers ask for, or these would wait forever.
constexpr bool registers_suffice(int consumer_groups, int of_producers, int of_consumers) {
  constexpr int of_multiprocessor = 65536;
  const int at_start = of_multiprocessor / ((1 + consumer_groups) * warpgroup_size) / 8 * 8;
  return of_producers + consumer_groups * of_consumers <= (1 + consumer_groups) * at_start;
}

// `Rows` rows of a head as the tensor cores read them: 64 columns after the other, each a column of
// rows of 128 bytes with 128-byte swizzle. One tile serves as operand with the head's columns as
// inner dimension ("K-major"), and with the rows as inner dimension ("MN-major").
template <int HeadSize, int Rows>
struct SwizzledTile {
  static_assert(HeadSize % swizzled_columns == 0 && Rows % 8 == 0);
  static constexpr int column_bytes = Rows * swizzled_row_bytes;  // of 64 columns
  static constexpr int bytes = HeadSize / swizzled_columns * column_bytes;
  static constexpr int steps_along_head = HeadSize / 16, steps_along_rows = Rows / 16;

  // Rows from `tile` on are rows (left) or columns (right) of the operand; step s takes columns 16
  // s to 16 s + 15.
  __device__ static std::uint64_t along_head(SharedAddress tile) {
    return matrix_descriptor(tile, 16, swizzled_bytes);
  }
  __device__ static constexpr std::uint32_t head_step(int step) {
    return static_cast<std::uint32_t>(step / 4 * column_bytes + step % 4 * 32);
  }
  // Right operand: its rows are the tile's; step s takes rows 16 s to 16 s + 15.
  __device__ static std::uint64_t along_rows(SharedAddress tile) {
    return matrix_descriptor(tile, column_bytes, swizzled_bytes);
  }
  __device__ static constexpr std::uint32_t row_step(int step) {
    return static_cast<std::uint32_t>(step * 16 * swizzled_row_bytes);
  }
};

// Sums of 64 x Columns, rounded: what they are as left operands, 16 columns a step.
template <int Columns>
struct LeftOperands {
  Matrices step[Columns / 16];
};

// A warp starts to copy `Count` rows of a head to rows `first` and on of a tile, 4 rows x 128 bytes
// at a time. `data` is the first of them, `stride` the elements from row to row; of rows from the
// `valid`-th on, zeros are written. The tile begins on 1024 bytes.
template <int HeadSize, int Rows, int Count>
__device__ inline void copy_swizzled(SharedAddress tile, int first, const bf16* data, int stride,
                                     int valid) {
  static_assert(Count % 8 == 0);
  const int lane = static_cast<int>(threadIdx.x) % warp_size;
  const int piece = lane % 8, row = lane / 8;
  // Row r's piece p lies in place p ^ (r % 8): r % 8 is `row`, then row + 4, and so on.
  const int even = row * swizzled_row_bytes + (piece ^ row) * 16;
  const int odd = (row + 4) * swizzled_row_bytes + (piece ^ (row + 4)) * 16;
  data += row * static_cast<std::int64_t>(stride) + piece * 8;
  valid -= row;
  SPILLWAY_UNROLL
  for (int column = 0; column < HeadSize / swizzled_columns; ++column) {
    SharedAddress to = tile + column * SwizzledTile<HeadSize, Rows>::column_bytes +
                       first * swizzled_row_bytes + even;
    const bf16* source = data + column * swizzled_columns;
#ifdef __CUDACC__
#pragma unroll 2
#endif
    for (int i = 0; i < Count; i += 8) {
      copy_async_16(to, source, i < valid);
      source += 4 * static_cast<std::int64_t>(stride);
      copy_async_16(to + (odd - even), source, i + 4 < valid);
      source += 4 * static_cast<std::int64_t>(stride);
      to += swizzled_bytes;
    }
  }
}

// The thread's copies so far have arrived, and whoever waits for `full` next sees them.
__device__ inline void publish_copies(SharedAddress full) {
  copy_commit();
  copy_wait<0>();
  fence_for_products();
  barrier_arrive(full);
}

// The warp has no more use for a buffer.
__device__ inline void release_buffer(SharedAddress empty) {
  __syncwarp();
  if (threadIdx.x % warp_size == 0) barrier_arrive(empty);
}

// Barriers of the 4 buffers and of 2 for what stays through a work (its queries, or its keys).
struct BlockBarriers {
  SharedAddress first;
  static constexpr int bytes = 12 * shared_barrier_bytes;
  __device__ SharedAddress full(int buffer) const { return first + shared_barrier_bytes * buffer; }
  __device__ SharedAddress empty(int buffer) const { return full(4 + buffer); }
  __device__ SharedAddress work_full(int buffer) const { return full(8 + buffer); }
  __device__ SharedAddress work_empty(int buffer) const { return full(10 + buffer); }

  // By all threads of the block.
  __device__ void init(int consumer_groups) const {
    if (threadIdx.x == 0) {
      for (int buffer = 0; buffer < 4; ++buffer) {
        barrier_init(full(buffer), warp_size);
        barrier_init(empty(buffer), 4 * consumer_groups);
      }
      for (int buffer = 0; buffer < 2; ++buffer) {
        barrier_init(work_full(buffer), warpgroup_size);
        barrier_init(work_empty(buffer), 4 * consumer_groups);
      }
    }
    __syncthreads();
  }
};

// The first address on 1024 bytes in dynamic shared memory, which has room for that.
constexpr int alignment_room = swizzled_bytes;
__device__ inline int offset_of_tiles() {
  const std::uint32_t begin = shared_window(shared_address(dynamic_shared()));
  return static_cast<int>((swizzled_bytes - begin % swizzled_bytes) % swizzled_bytes);
}

// What this block does in a round.
__device__ inline int work_index(const WorkOrder& order, int round) {
  return work_index(order, round, static_cast<int>(blockIdx.x), static_cast<int>(gridDim.x));
}

// One block for each multiprocessor, or fewer where there is less work.
inline Launch work_launch(const WorkOrder& order, int multiprocessors, int threads,
                          int shared_bytes) {
  Launch shape;
  shape.grid =
      dim3(static_cast<unsigned>(order.size() < multiprocessors ? order.size() : multiprocessors));
  shape.block = dim3(static_cast<unsigned>(threads));
  shape.shared_bytes = static_cast<std::size_t>(shared_bytes);
  return shape;
}

// A warp writes its 16 rows of a warpgroup's sums, times `factor` and rounded, to global memory,
// through its own 16 rows of a tile (`row` is the first; `tile` a pointer), which nobody else uses.
template <int HeadSize, int Rows>
__device__ inline void write_sums(std::byte* tile, int row, const WarpgroupSums<HeadSize>& sums,
                                  const float (&factor)[2], bf16* to, std::int64_t stride,
                                  int rows) {
  const int lane = lane_anew();
  std::byte* const own = tile + row * swizzled_row_bytes;
  SPILLWAY_UNROLL
  for (int half = 0; half < 2; ++half) {
    const int r = lane / 4 + 8 * half;
    SPILLWAY_UNROLL
    for (int j = 0; j < HeadSize / 8; ++j) {
      const int at = j / 8 * SwizzledTile<HeadSize, Rows>::column_bytes + r * swizzled_row_bytes +
                     (j % 8 ^ lane / 4) * 16 + lane % 4 * 4;
      *reinterpret_cast<std::uint32_t*>(own + at) = pack_bf16(
          sums.sum[4 * j + 2 * half] * factor[half], sums.sum[4 * j + 2 * half + 1] * factor[half]);
    }
  }
  __syncwarp();
  SPILLWAY_UNROLL
  for (int part = 0; part < HeadSize / 16; ++part) {
    const int r = lane / 8 + 4 * (part % 4), column = part / 4;
    if (r < rows) {
      const int at = column * SwizzledTile<HeadSize, Rows>::column_bytes + r * swizzled_row_bytes +
                     (lane % 8 ^ r % 8) * 16;
      *reinterpret_cast<uint4*>(to + r * stride + column * swizzled_columns + lane % 8 * 8) =
          *reinterpret_cast<const uint4*>(own + at);
    }
  }
}

}  // namespace spillway::cuda
