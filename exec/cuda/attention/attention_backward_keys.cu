// dK and dV of causal attention on tensor cores: attention_backward.cu says how.
#include "exec/cuda/attention/attention_backward.hpp"
#include "exec/cuda/attention/attention_tiles.hpp"

namespace spillway::cuda {

namespace {

// Overlay: K and V, which are read once, lie where the tiles of queries come later. It costs a wait
// at the start, and halves the shared memory.
template <int HeadSize, bool Overlay = false>
struct KeysShape {
  static constexpr int m_tiles = HeadSize <= 64 ? 2 : 1;
  static constexpr int warps = HeadSize <= 64 ? 4 : 8;
  static constexpr int threads = warps * warp_size;
  static constexpr int blocks = HeadSize <= 64 ? 2 : 1;  // per SM
  static constexpr int keys = 128;                       // per block
  static constexpr int queries = 64;                     // per tile
  // K and V of a warp stay in its registers where there is one row of fragments of them.
  static constexpr bool in_registers = m_tiles == 1;
  static constexpr int k_bytes = Tile<HeadSize>::bytes(keys);
  static constexpr int q_bytes = Tile<HeadSize>::bytes(queries);
  static constexpr int stage_bytes = 2 * q_bytes + 2 * 4 * queries;  // q, dO, log-sum-exp, D
  static constexpr int first_stage = Overlay ? 0 : 2 * k_bytes;
  static constexpr int shared_bytes =
      first_stage + 2 * stage_bytes > 2 * k_bytes ? first_stage + 2 * stage_bytes : 2 * k_bytes;
};

// Scores of 16 queries and their gradients, transposed (keys are rows), become the left operands of
// dV and dK. `log_sum_exp` is followed, `Queries` further, by D.
template <int MTiles, int Queries, bool General, bool Borders>
__device__ inline void key_operands(Sums (&scores)[MTiles][2], Sums (&gradients)[MTiles][2],
                                    const float* log_sum_exp, float scale_log2, bool masked,
                                    bool past, const AttentionNumbers& numbers,
                                    const RowLimits<RowsAre::keys>& limits, int query, int key,
                                    Matrices (&p)[MTiles], Matrices (&ds)[MTiles]) {
  const int lane = static_cast<int>(threadIdx.x) % warp_size;
  SPILLWAY_UNROLL
  for (int n = 0; n < 2; ++n) {
    const int column = 8 * n + 2 * (lane % 4);
    const float2 lse = *reinterpret_cast<const float2*>(log_sum_exp + column);
    const float2 dots = *reinterpret_cast<const float2*>(log_sum_exp + Queries + column);
    SPILLWAY_UNROLL
    for (int m = 0; m < MTiles; ++m) {
      [[maybe_unused]] int unseen_from[2] = {};
      if (Borders && past) limits.of_lane(numbers, m, unseen_from);
      SPILLWAY_UNROLL
      for (int i = 0; i < 4; ++i) {
        const float offset = -(i % 2 == 0 ? lse.x : lse.y) * log2_of_e;
        float probability = exp2_approximate(fmaf(scores[m][n].sum[i], scale_log2, offset));
        if (masked && key + 16 * m + i / 2 * 8 + lane / 4 > query + column + i % 2)
          probability = 0.0f;
        if (General && past &&
            (Borders
                 ? unseen_from[i / 2] <= query + column + i % 2
                 : key + numbers.window + 16 * m + i / 2 * 8 + lane / 4 <= query + column + i % 2))
          probability = 0.0f;
        scores[m][n].sum[i] = probability;
        gradients[m][n].sum[i] =
            probability * (gradients[m][n].sum[i] - (i % 2 == 0 ? dots.x : dots.y));
      }
    }
  }
  SPILLWAY_UNROLL
  for (int m = 0; m < MTiles; ++m) {
    p[m] = left_operand(scores[m][0], scores[m][1]);
    ds[m] = left_operand(gradients[m][0], gradients[m][1]);
  }
}

template <int HeadSize, bool Overlay, bool General, bool Borders>
__global__ void __launch_bounds__(KeysShape<HeadSize, Overlay>::threads,
                                  KeysShape<HeadSize, Overlay>::blocks)
    attention_keys_kernel(BackwardTensors<bf16> tensors, AttentionNumbers numbers) {
  using Shape = KeysShape<HeadSize, Overlay>;
  static_assert(!Overlay || Shape::in_registers);
  constexpr int row_bytes = Tile<HeadSize>::row_bytes, k_steps = HeadSize / 16;
  constexpr int m_tiles = Shape::m_tiles, warp_keys = 16 * m_tiles;
  const int warp = static_cast<int>(threadIdx.x) / warp_size;
  const int lane = static_cast<int>(threadIdx.x) % warp_size;
  // General: of the first of the group of heads that share the block's head of keys.
  const HeadPlace place =
      head_place<General>(numbers, static_cast<int>(blockIdx.x) * (General ? numbers.group : 1));
  const int first_key = static_cast<int>(blockIdx.y) * Shape::keys;  // early keys first
  const int warp_key = first_key + warp * warp_keys;

  bf16* const shared = reinterpret_cast<bf16*>(dynamic_shared());
  const SharedAddress k_tile = shared_address(shared), v_tile = k_tile + Shape::k_bytes;
  const SharedAddress stages = k_tile + Shape::first_stage;
  // Tiles of queries from `first_tile` on, one head of the group after the other.
  const int first_tile = first_key / Shape::queries;
  const int head_tiles = end_of_queries<General, Borders>(numbers, place.sequence, first_key,
                                                          Shape::keys, Shape::queries) -
                         first_tile;
  const int end_turn = first_tile + (General ? numbers.group : 1) * head_tiles;
  const auto tile_of = [&](int turn) {
    return General ? first_tile + (turn - first_tile) % head_tiles : turn;
  };
  const auto copy_queries = [&](int turn) {
    const SharedAddress stage = stages + turn % 2 * Shape::stage_bytes;
    const int first = tile_of(turn) * Shape::queries, rows = numbers.tokens - first;
    const int head = General ? (turn - first_tile) / head_tiles : 0;  // of the group
    const int column = head * numbers.head_size;
    copy_tile<HeadSize, Shape::queries, Shape::threads>(
        stage, {tensors.input.qk + place.q + column + first * place.stride, place.stride, rows,
                numbers.head_size});
    copy_tile<HeadSize, Shape::queries, Shape::threads>(
        stage + Shape::q_bytes, {tensors.output_gradient + place.output + column +
                                     static_cast<std::int64_t>(first) * numbers.channels,
                                 numbers.channels, rows, numbers.head_size});
    // Zero for queries that are none: p is then 1, and multiplies a dO and q of zero.
    const int thread = static_cast<int>(threadIdx.x), query = thread % Shape::queries;
    if (thread < 2 * Shape::queries) {
      const float* from = thread < Shape::queries ? tensors.log_sum_exp + place.statistics
                                                  : tensors.dots + place.dots;
      if constexpr (General) from += static_cast<std::int64_t>(head) * numbers.tokens;
      copy_async_4(stage + 2 * Shape::q_bytes + 4 * thread, from + first + query, query < rows);
    }
    copy_commit();
  };
  HeadRows keys{tensors.input.qk + place.k + first_key * place.stride, place.stride,
                numbers.tokens - first_key, numbers.head_size};
  copy_tile<HeadSize, Shape::keys, Shape::threads>(k_tile, keys);
  if constexpr (General) {
    keys.data = tensors.input.v + place.v + first_key * place.v_stride;
    keys.stride = place.v_stride;
  } else {
    keys.data += numbers.channels;
  }
  copy_tile<HeadSize, Shape::keys, Shape::threads>(v_tile, keys);
  copy_commit();
  if constexpr (!Overlay) copy_queries(first_tile);

  const LaneOffsets lanes = lane_offsets<HeadSize>(lane);
  const int warp_offset = warp * warp_keys * row_bytes + lanes.left;
  [[maybe_unused]] Matrices k_kept[Shape::in_registers ? k_steps : 1];
  [[maybe_unused]] Matrices v_kept[Shape::in_registers ? k_steps : 1];
  if constexpr (Shape::in_registers) {
    copy_wait<0>();
    __syncthreads();
    SPILLWAY_UNROLL
    for (int step = 0; step < k_steps; ++step) {
      k_kept[step] = load_matrices(k_tile + warp_offset + 32 * step);
      v_kept[step] = load_matrices(v_tile + warp_offset + 32 * step);
    }
  }
  if constexpr (Overlay) {
    __syncthreads();  // before the tiles of queries take the place of K and V
    copy_queries(first_tile);
  }

  Sums k_gradient[m_tiles][HeadSize / 8], v_gradient[m_tiles][HeadSize / 8];
  SPILLWAY_UNROLL
  for (int m = 0; m < m_tiles; ++m) {
    SPILLWAY_UNROLL
    for (int n = 0; n < HeadSize / 8; ++n) k_gradient[m][n] = v_gradient[m][n] = {};
  }
  [[maybe_unused]] RowLimits<RowsAre::keys> limits;
  if constexpr (Borders) limits.set(numbers, place.sequence, warp_key, warp_keys);
  const float scale_log2 = numbers.scale * log2_of_e;

  for (int turn = first_tile; turn < end_turn; ++turn) {
    copy_wait<0>();
    __syncthreads();  // this tile is there, and nobody reads the one before any more
    if (turn + 1 < end_turn) copy_queries(turn + 1);
    const int first_query = tile_of(turn) * Shape::queries;
    const bool masked = first_query < warp_key + warp_keys - 1;
    const SharedAddress q_tile = stages + turn % 2 * Shape::stage_bytes;
    const float* statistics = reinterpret_cast<const float*>(
        dynamic_shared() + Shape::first_stage + turn % 2 * Shape::stage_bytes + 2 * Shape::q_bytes);
#ifdef __CUDACC__
#pragma unroll 1
#endif
    for (int part = 0; part < Shape::queries / 16; ++part) {
      // They see none of the warp's keys.
      if (first_query + 16 * part + 15 < warp_key) continue;
      if (Borders ? limits.last <= first_query + 16 * part
                  : General && warp_key + warp_keys - 1 + numbers.window <= first_query + 16 * part)
        continue;
      const bool past = Borders
                            ? limits.first <= first_query + 16 * part + 15
                            : General && warp_key + numbers.window <= first_query + 16 * part + 15;
      const SharedAddress q_rows = q_tile + 16 * part * row_bytes;
      const SharedAddress do_rows = q_rows + Shape::q_bytes;
      Sums scores[m_tiles][2] = {}, gradients[m_tiles][2] = {};
      SPILLWAY_UNROLL
      for (int step = 0; step < k_steps; ++step) {
        const Matrices q = load_matrices(q_rows + lanes.right + 32 * step);
        const Matrices d_o = load_matrices(do_rows + lanes.right + 32 * step);
        SPILLWAY_UNROLL
        for (int m = 0; m < m_tiles; ++m) {
          Matrices k, v;
          if constexpr (Shape::in_registers) {
            k = k_kept[step];
            v = v_kept[step];
          } else {
            k = load_matrices(k_tile + warp_offset + 16 * m * row_bytes + 32 * step);
            v = load_matrices(v_tile + warp_offset + 16 * m * row_bytes + 32 * step);
          }
          multiply_add(scores[m][0], k, q.part[0], q.part[1]);
          multiply_add(scores[m][1], k, q.part[2], q.part[3]);
          multiply_add(gradients[m][0], v, d_o.part[0], d_o.part[1]);
          multiply_add(gradients[m][1], v, d_o.part[2], d_o.part[3]);
        }
      }
      Matrices p[m_tiles], ds[m_tiles];
      key_operands<m_tiles, Shape::queries, General, Borders>(
          scores, gradients, statistics + 16 * part, scale_log2, masked, past, numbers, limits,
          first_query + 16 * part, warp_key, p, ds);
      SPILLWAY_UNROLL
      for (int n = 0; n < HeadSize / 16; ++n) {
        const Matrices d_o = load_matrices_transposed(do_rows + lanes.left + 32 * n);
        const Matrices q = load_matrices_transposed(q_rows + lanes.left + 32 * n);
        SPILLWAY_UNROLL
        for (int m = 0; m < m_tiles; ++m) {
          multiply_add(v_gradient[m][2 * n], p[m], d_o.part[0], d_o.part[1]);
          multiply_add(v_gradient[m][2 * n + 1], p[m], d_o.part[2], d_o.part[3]);
          multiply_add(k_gradient[m][2 * n], ds[m], q.part[0], q.part[1]);
          multiply_add(k_gradient[m][2 * n + 1], ds[m], q.part[2], q.part[3]);
        }
      }
    }
  }

  __syncthreads();  // the tiles make room for the results
  float scale[m_tiles][2], one[m_tiles][2];
  SPILLWAY_UNROLL
  for (int m = 0; m < m_tiles; ++m) {
    scale[m][0] = scale[m][1] = numbers.scale;
    one[m][0] = one[m][1] = 1.0f;
  }
  bf16* const rows = shared + warp * warp_keys * Tile<HeadSize>::row_elements;
  bf16* const to = tensors.qkv_gradient + place.k_gradient + warp_key * place.gradient_stride;
  const int valid = numbers.tokens - warp_key;
  write_rows<HeadSize, m_tiles>(rows, k_gradient, scale, to, place.gradient_stride, valid,
                                numbers.head_size);
  write_rows<HeadSize, m_tiles>(rows, v_gradient, one,
                                to + (General ? numbers.kv_channels : numbers.channels),
                                place.gradient_stride, valid, numbers.head_size);
}

template <int HeadSize, bool Overlay>
void launch_keys(const AttentionSizes& sizes, const BackwardTensors<bf16>& tensors,
                 cudaStream_t stream) {
  using Shape = KeysShape<HeadSize, Overlay>;
  with_generality(sizes, tensors.input, [&](auto general, auto borders) {
    launch("attention_keys", attention_keys_kernel<HeadSize, Overlay, general.value, borders.value>,
           attention_grid(sizes, sizes.kv_heads, Shape::keys, Shape::threads, Shape::shared_bytes),
           stream, tensors, attention_numbers(sizes, tensors.input));
  });
}

}  // namespace

void attention_backward_keys(const AttentionSizes& sizes, const BackwardTensors<bf16>& tensors,
                             cudaStream_t stream) {
  with_padded_head(sizes.head_size, [&](auto padded) {
    constexpr int head_size = decltype(padded)::value;
    if constexpr (KeysShape<head_size>::in_registers) {
      if (blocks_that_fit(KeysShape<head_size>::shared_bytes) == 0)
        return launch_keys<head_size, true>(sizes, tensors, stream);
    }
    launch_keys<head_size, false>(sizes, tensors, stream);
  });
}

}  // namespace spillway::cuda
