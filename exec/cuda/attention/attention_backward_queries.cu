// dQ of causal attention on tensor cores: attention_backward.cu says how.
#include "exec/cuda/attention/attention_backward.hpp"
#include "exec/cuda/attention/attention_tiles.hpp"

namespace spillway::cuda {

namespace {

template <int HeadSize, int MTiles>
struct QueriesShape {
  static constexpr int warps = 4;
  static constexpr int threads = warps * warp_size;
  static constexpr int queries = warps * 16 * MTiles;
  static constexpr int keys = HeadSize <= 64 ? 64 : 32;                // per tile
  static constexpr bool in_registers = HeadSize <= 64 || MTiles == 1;  // q and dO
  static constexpr int q_bytes = Tile<HeadSize>::bytes(queries);
  static constexpr int k_bytes = Tile<HeadSize>::bytes(keys);
  static constexpr int shared_bytes = 2 * q_bytes + 2 * 2 * k_bytes;
};

// Keys at a time: their scores and gradients of scores are held in registers.
constexpr int part_keys = 32;

template <int HeadSize, int MTiles, bool General, bool Borders>
__global__ void __launch_bounds__(128, 2)
    attention_queries_kernel(BackwardTensors<bf16> tensors, AttentionNumbers numbers) {
  using Shape = QueriesShape<HeadSize, MTiles>;
  constexpr int row_bytes = Tile<HeadSize>::row_bytes, k_steps = HeadSize / 16;
  constexpr int warp_queries = 16 * MTiles;
  const int warp = static_cast<int>(threadIdx.x) / warp_size;
  const int lane = static_cast<int>(threadIdx.x) % warp_size;
  const HeadPlace place = head_place<General>(numbers);
  const int first_query = static_cast<int>(gridDim.y - 1 - blockIdx.y) * Shape::queries;
  const int warp_query = first_query + warp * warp_queries;

  bf16* const shared = reinterpret_cast<bf16*>(dynamic_shared());
  const SharedAddress q_tile = shared_address(shared), do_tile = q_tile + Shape::q_bytes;
  const SharedAddress stages = do_tile + Shape::q_bytes;
  const auto copy_keys = [&](int tile) {
    const SharedAddress stage = stages + tile % 2 * 2 * Shape::k_bytes;
    const int first = tile * Shape::keys;
    HeadRows from{tensors.input.qk + place.k + first * place.stride, place.stride,
                  numbers.tokens - first, numbers.head_size};
    copy_tile<HeadSize, Shape::keys, Shape::threads>(stage, from);
    if constexpr (General) {
      from.data = tensors.input.v + place.v + first * place.v_stride;
      from.stride = place.v_stride;
    } else {
      from.data += numbers.channels;
    }
    copy_tile<HeadSize, Shape::keys, Shape::threads>(stage + Shape::k_bytes, from);
    copy_commit();
  };
  const int rows = numbers.tokens - first_query;
  copy_tile<HeadSize, Shape::queries, Shape::threads>(
      q_tile, {tensors.input.qk + place.q + first_query * place.stride, place.stride, rows,
               numbers.head_size});
  copy_tile<HeadSize, Shape::queries, Shape::threads>(
      do_tile, {tensors.output_gradient + place.output +
                    static_cast<std::int64_t>(first_query) * numbers.channels,
                numbers.channels, rows, numbers.head_size});
  const int first_tile =
      first_key_seen<General, Borders>(numbers, place.sequence, first_query) / Shape::keys;
  copy_keys(first_tile);

  // Of the rows this lane has sums of; zero for queries that are none.
  float offset[MTiles][2], dots[MTiles][2], scale[MTiles][2];
  SPILLWAY_UNROLL
  for (int m = 0; m < MTiles; ++m) {
    SPILLWAY_UNROLL
    for (int half = 0; half < 2; ++half) {
      const int query = warp_query + 16 * m + 8 * half + lane / 4;
      const bool valid = query < numbers.tokens;
      offset[m][half] = valid ? -tensors.log_sum_exp[place.statistics + query] * log2_of_e : 0.0f;
      dots[m][half] = valid ? tensors.dots[place.dots + query] : 0.0f;
      scale[m][half] = numbers.scale;
    }
  }
  const LaneOffsets lanes = lane_offsets<HeadSize>(lane);
  const int warp_offset = warp * warp_queries * row_bytes + lanes.left;
  [[maybe_unused]] Matrices q_kept[MTiles][Shape::in_registers ? k_steps : 1];
  [[maybe_unused]] Matrices do_kept[MTiles][Shape::in_registers ? k_steps : 1];
  Sums q_gradient[MTiles][HeadSize / 8];
  SPILLWAY_UNROLL
  for (int m = 0; m < MTiles; ++m) {
    SPILLWAY_UNROLL
    for (int n = 0; n < HeadSize / 8; ++n) q_gradient[m][n] = {};
  }
  [[maybe_unused]] RowLimits<RowsAre::queries> limits;
  if constexpr (Borders) limits.set(numbers, place.sequence, warp_query, warp_queries);
  const float scale_log2 = numbers.scale * log2_of_e;
  const int last =
      numbers.tokens < first_query + Shape::queries ? numbers.tokens : first_query + Shape::queries;
  const int tiles = (last + Shape::keys - 1) / Shape::keys;

  for (int tile = first_tile; tile < tiles; ++tile) {
    copy_wait<0>();
    __syncthreads();  // this tile is there, and nobody reads the one before any more
    if constexpr (Shape::in_registers) {
      if (tile == first_tile) {
        SPILLWAY_UNROLL
        for (int m = 0; m < MTiles; ++m) {
          SPILLWAY_UNROLL
          for (int step = 0; step < k_steps; ++step) {
            const int at = warp_offset + 16 * m * row_bytes + 32 * step;
            q_kept[m][step] = load_matrices(q_tile + at);
            do_kept[m][step] = load_matrices(do_tile + at);
          }
        }
      }
    }
    if (tile + 1 < tiles) copy_keys(tile + 1);
#ifdef __CUDACC__
#pragma unroll 1
#endif
    for (int part = 0; part < Shape::keys / part_keys; ++part) {
      const int first_key = tile * Shape::keys + part * part_keys;
      if (first_key > warp_query + warp_queries - 1) continue;  // beyond all of its queries
      if (Borders ? first_key + part_keys - 1 < limits.first
                  : General && first_key + part_keys - 1 + numbers.window <= warp_query)
        continue;  // before
      const SharedAddress k_rows =
          stages + tile % 2 * 2 * Shape::k_bytes + part * part_keys * row_bytes;
      const SharedAddress v_rows = k_rows + Shape::k_bytes;
      Sums scores[MTiles][part_keys / 8] = {}, gradients[MTiles][part_keys / 8] = {};
      SPILLWAY_UNROLL
      for (int step = 0; step < k_steps; ++step) {
        Matrices q[MTiles], d_o[MTiles];
        SPILLWAY_UNROLL
        for (int m = 0; m < MTiles; ++m) {
          if constexpr (Shape::in_registers) {
            q[m] = q_kept[m][step];
            d_o[m] = do_kept[m][step];
          } else {
            const int at = warp_offset + 16 * m * row_bytes + 32 * step;
            q[m] = load_matrices(q_tile + at);
            d_o[m] = load_matrices(do_tile + at);
          }
        }
        SPILLWAY_UNROLL
        for (int n = 0; n < part_keys / 16; ++n) {
          const int at = lanes.right + 16 * n * row_bytes + 32 * step;
          const Matrices k = load_matrices(k_rows + at), v = load_matrices(v_rows + at);
          SPILLWAY_UNROLL
          for (int m = 0; m < MTiles; ++m) {
            multiply_add(scores[m][2 * n], q[m], k.part[0], k.part[1]);
            multiply_add(scores[m][2 * n + 1], q[m], k.part[2], k.part[3]);
            multiply_add(gradients[m][2 * n], d_o[m], v.part[0], v.part[1]);
            multiply_add(gradients[m][2 * n + 1], d_o[m], v.part[2], v.part[3]);
          }
        }
      }
      // Keys beyond the last token are in the future of every query there is.
      const bool masked = first_key + part_keys - 1 > warp_query;
      const bool past =
          Borders ? first_key < limits.last
                  : General && first_key + numbers.window <= warp_query + warp_queries - 1;
      SPILLWAY_UNROLL
      for (int m = 0; m < MTiles; ++m) {
        [[maybe_unused]] int first_seen[2] = {};
        if (Borders && past) limits.of_lane(numbers, m, first_seen);
        SPILLWAY_UNROLL
        for (int n = 0; n < part_keys / 8; ++n) {
          SPILLWAY_UNROLL
          for (int i = 0; i < 4; ++i) {
            float probability =
                exp2_approximate(fmaf(scores[m][n].sum[i], scale_log2, offset[m][i / 2]));
            if (masked && first_key + 8 * n + 2 * (lane % 4) + i % 2 >
                              warp_query + 16 * m + i / 2 * 8 + lane / 4)
              probability = 0.0f;
            if (General && past &&
                (Borders ? first_key + 8 * n + 2 * (lane % 4) + i % 2 < first_seen[i / 2]
                         : first_key + numbers.window + 8 * n + 2 * (lane % 4) + i % 2 <=
                               warp_query + 16 * m + i / 2 * 8 + lane / 4))
              probability = 0.0f;
            gradients[m][n].sum[i] = probability * (gradients[m][n].sum[i] - dots[m][i / 2]);
          }
        }
      }
      SPILLWAY_UNROLL
      for (int step = 0; step < part_keys / 16; ++step) {
        Matrices ds[MTiles];
        SPILLWAY_UNROLL
        for (int m = 0; m < MTiles; ++m)
          ds[m] = left_operand(gradients[m][2 * step], gradients[m][2 * step + 1]);
        SPILLWAY_UNROLL
        for (int n = 0; n < HeadSize / 16; ++n) {
          const Matrices k =
              load_matrices_transposed(k_rows + lanes.left + 16 * step * row_bytes + 32 * n);
          SPILLWAY_UNROLL
          for (int m = 0; m < MTiles; ++m) {
            multiply_add(q_gradient[m][2 * n], ds[m], k.part[0], k.part[1]);
            multiply_add(q_gradient[m][2 * n + 1], ds[m], k.part[2], k.part[3]);
          }
        }
      }
    }
  }
  // Only the warp itself ever read its rows of the Q tile.
  write_rows<HeadSize, MTiles>(
      shared + warp * warp_queries * Tile<HeadSize>::row_elements, q_gradient, scale,
      tensors.qkv_gradient + place.q_gradient + warp_query * place.gradient_stride,
      place.gradient_stride, numbers.tokens - warp_query, numbers.head_size);
}

template <int HeadSize, int MTiles>
void launch_queries(const AttentionSizes& sizes, const BackwardTensors<bf16>& tensors,
                    cudaStream_t stream) {
  using Shape = QueriesShape<HeadSize, MTiles>;
  with_generality(sizes, tensors.input, [&](auto general, auto borders) {
    if constexpr (HeadSize > 96 && MTiles > 1 && borders.value) {
      launch_queries<HeadSize, 1>(sizes, tensors, stream);  // more would not fit into registers
    } else {
      launch(
          "attention_queries",
          attention_queries_kernel<HeadSize, MTiles, general.value, borders.value>,
          attention_grid(sizes, sizes.heads, Shape::queries, Shape::threads, Shape::shared_bytes),
          stream, tensors, attention_numbers(sizes, tensors.input));
    }
  });
}

}  // namespace

void attention_backward_queries(const AttentionSizes& sizes, const BackwardTensors<bf16>& tensors,
                                cudaStream_t stream) {
  with_padded_head(sizes.head_size, [&](auto padded) {
    constexpr int head_size = decltype(padded)::value;
    if constexpr (head_size > 96) {
      // On an A100, and where there is room for one block only: half of the queries (and within
      // documents, above).
      if (blocks_that_fit(QueriesShape<head_size, 2>::shared_bytes) < 2)
        return launch_queries<head_size, 1>(sizes, tensors, stream);
    }
    launch_queries<head_size, 2>(sizes, tensors, stream);
  });
}

}  // namespace spillway::cuda
