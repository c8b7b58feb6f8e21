// Causal attention of bf16 on tensor cores, forward: FlashAttention-2 (Dao, 2023).
//
// A block of 4 warps takes 128 queries of one head, 32 (two times 16) per warp, and goes through
// tiles of 64 keys up to the diagonal. Scores and probabilities stay in registers: the sums of
// q k^T, rounded, are the left operand of p v. K and V tiles are double-buffered, one barrier per
// tile. Late queries, which have the most keys, start first.
//
// Counted for one SM of a Hopper and one tile (128 x 64), at 2 x 128 x 64 x d FLOPs per product,
// two products, about 2500 FLOP/clock for mma.sync and 128 B/clock of shared memory:
//                       head size 64            head size 128
//   products            840 clocks              1680
//   shared memory       4 warps x 16 KB: 512    4 warps x (8 KB of Q + 32 KB): 1280
//   exponentials        8192 at 16 per clock: 512, beside the other block's products
//   shared memory held  36 KB, 2 blocks per SM  102 KB, 2 blocks per SM
// Where a second block of head size 128 does not fit (an A100; GPUs of 8.6 and 8.9 have room for
// only one in any case), tiles are of 32 keys. With head size 64 and below two blocks fit on every
// GPU, since Q, once in registers, leaves its shared memory to K and V.
// 32 queries per warp, not 16, because every fragment of K and V then feeds two products: with 16,
// reading them would take longer than the products. With head size 64 and below the warp keeps its
// Q in registers; above, there is no room.
#include "exec/cuda/attention/attention_hopper.hpp"
#include "exec/cuda/attention/attention_tiles.hpp"

namespace spillway::cuda {

namespace {

constexpr int warps = 4;
constexpr int threads = warps * warp_size;
constexpr int m_tiles = 2;  // 16 queries each, per warp

template <int HeadSize, int Keys>
struct ForwardShape {
  static constexpr int queries = warps * 16 * m_tiles;
  static constexpr bool q_in_registers = HeadSize <= 64;
  static constexpr int q_bytes = Tile<HeadSize>::bytes(queries);
  static constexpr int k_bytes = Tile<HeadSize>::bytes(Keys);
  // Q that is held in registers lies, until it is there, where the second stage of K and V comes.
  static constexpr int first_stage = q_in_registers ? 0 : q_bytes;
  static constexpr int q_place = q_in_registers ? 2 * k_bytes : 0;
  static constexpr int shared_bytes = first_stage + 2 * 2 * k_bytes;
  static_assert(q_place + q_bytes <= shared_bytes);
};

// The running softmax of a warp's rows; [m][half] is row 16 m + 8 half + lane / 4, and the four
// lanes of a row agree on `maximum`, while each has its own part of `sum`.
struct RunningRows {
  float maximum[m_tiles][2], sum[m_tiles][2];
};

// How far, in powers of two, a row's scores may exceed its running maximum before the sums are
// scaled down to a new one: probabilities up to 2^8 are as exact as any, and scaling becomes rare.
constexpr float maximum_slack = 8.0f;

template <int Keys, bool Borders>
__device__ inline void mask_past(Sums (&scores)[m_tiles][Keys / 8], int query, int key,
                                 const AttentionNumbers& numbers,
                                 const RowLimits<RowsAre::queries>& limits) {
  SPILLWAY_UNROLL
  for (int m = 0; m < m_tiles; ++m) {
    [[maybe_unused]] int first_key[2] = {};
    if constexpr (Borders) limits.of_lane(numbers, m, first_key);
    SPILLWAY_UNROLL
    for (int n = 0; n < Keys / 8; ++n) {
      SPILLWAY_UNROLL
      for (int i = 0; i < 4; ++i) {
        if (Borders ? key + 8 * n + i % 2 < first_key[i / 2]
                    : key + 8 * n + i % 2 + numbers.window <= query + 16 * m + i / 2 * 8)
          scores[m][n].sum[i] = -INFINITY;
      }
    }
  }
}

template <int Keys>
__device__ inline void mask_future(Sums (&scores)[m_tiles][Keys / 8], int query, int key) {
  SPILLWAY_UNROLL
  for (int m = 0; m < m_tiles; ++m) {
    SPILLWAY_UNROLL
    for (int n = 0; n < Keys / 8; ++n) {
      SPILLWAY_UNROLL
      for (int i = 0; i < 4; ++i) {
        if (key + 8 * n + i % 2 > query + 16 * m + i / 2 * 8) scores[m][n].sum[i] = -INFINITY;
      }
    }
  }
}

// Raises the running maxima by the scores of a tile. Returns whether any row of the warp had to be
// scaled, and by what.
template <int Keys>
__device__ inline bool raise_maxima(const Sums (&scores)[m_tiles][Keys / 8], float scale_log2,
                                    RunningRows& rows, float (&factor)[m_tiles][2]) {
  bool raised = false;
  SPILLWAY_UNROLL
  for (int m = 0; m < m_tiles; ++m) {
    SPILLWAY_UNROLL
    for (int half = 0; half < 2; ++half) {
      float most = fmaxf(scores[m][0].sum[2 * half], scores[m][0].sum[2 * half + 1]);
      SPILLWAY_UNROLL
      for (int n = 1; n < Keys / 8; ++n) {
        most = fmaxf(most, fmaxf(scores[m][n].sum[2 * half], scores[m][n].sum[2 * half + 1]));
      }
      most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 1));
      most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 2));
      const float above = (most - rows.maximum[m][half]) * scale_log2;
      factor[m][half] = 1.0f;
      if (above > maximum_slack) {
        raised = true;
        factor[m][half] = exp2_approximate(-above);
        rows.maximum[m][half] = most;
      }
    }
  }
  return any_in_warp(raised);
}

// Scores become probabilities times the row's sum, which they are added to.
template <int Keys, bool General>
__device__ inline void exponentiate(Sums (&scores)[m_tiles][Keys / 8], float scale_log2,
                                    RunningRows& rows) {
  SPILLWAY_UNROLL
  for (int m = 0; m < m_tiles; ++m) {
    SPILLWAY_UNROLL
    for (int half = 0; half < 2; ++half) {
      float offset = -rows.maximum[m][half] * scale_log2;
      // A row that has seen no key yet: infinities have no difference.
      if (General && rows.maximum[m][half] == -INFINITY) offset = 0.0f;
      SPILLWAY_UNROLL
      for (int n = 0; n < Keys / 8; ++n) {
        SPILLWAY_UNROLL
        for (int i = 2 * half; i < 2 * half + 2; ++i) {
          const float p = exp2_approximate(fmaf(scores[m][n].sum[i], scale_log2, offset));
          scores[m][n].sum[i] = p;
          rows.sum[m][half] += p;
        }
      }
    }
  }
}

struct ForwardTensors {
  AttentionInput<bf16> input;
  bf16* output;
  float* log_sum_exp;
};

template <int HeadSize, int Keys, bool HasOutput, bool General, bool Borders>
__global__ void __launch_bounds__(threads, 2)
    attention_forward_kernel(ForwardTensors tensors, AttentionNumbers numbers) {
  using Shape = ForwardShape<HeadSize, Keys>;
  constexpr int row_bytes = Tile<HeadSize>::row_bytes, k_steps = HeadSize / 16;
  const int warp = static_cast<int>(threadIdx.x) / warp_size;
  const int lane = static_cast<int>(threadIdx.x) % warp_size;
  const HeadPlace place = head_place<General>(numbers);
  const int first_query = static_cast<int>(gridDim.y - 1 - blockIdx.y) * Shape::queries;
  const int warp_query = first_query + warp * 16 * m_tiles;
  const bf16* q = tensors.input.qk + place.q;
  const bf16* k = General ? tensors.input.qk + place.k : q + numbers.channels;

  bf16* const q_shared = reinterpret_cast<bf16*>(dynamic_shared() + Shape::q_place);
  const SharedAddress q_tile = shared_address(q_shared);
  const SharedAddress stages = shared_address(dynamic_shared()) + Shape::first_stage;
  const int first_tile =
      first_key_seen<General, Borders>(numbers, place.sequence, first_query) / Keys;
  const auto copy_keys = [&](int tile) {
    const SharedAddress stage = stages + (tile - first_tile) % 2 * 2 * Shape::k_bytes;
    const int first = tile * Keys;
    HeadRows from{k + first * place.stride, place.stride, numbers.tokens - first,
                  numbers.head_size};
    copy_tile<HeadSize, Keys, threads>(stage, from);
    if constexpr (HasOutput) {
      if constexpr (General) {
        from.data = tensors.input.v + place.v + first * place.v_stride;
        from.stride = place.v_stride;
      } else {
        from.data += numbers.channels;
      }
      copy_tile<HeadSize, Keys, threads>(stage + Shape::k_bytes, from);
    }
    copy_commit();
  };
  copy_tile<HeadSize, Shape::queries, threads>(
      q_tile, {q + first_query * place.stride, place.stride, numbers.tokens - first_query,
               numbers.head_size});
  copy_keys(first_tile);

  const LaneOffsets lanes = lane_offsets<HeadSize>(lane);
  const SharedAddress q_rows = q_tile + warp * 16 * m_tiles * row_bytes + lanes.left;
  [[maybe_unused]] Matrices q_kept[Shape::q_in_registers ? m_tiles : 1]
                                  [Shape::q_in_registers ? k_steps : 1];
  Sums outputs[m_tiles][HeadSize / 8];
  RunningRows rows;
  SPILLWAY_UNROLL
  for (int m = 0; m < m_tiles; ++m) {
    rows.maximum[m][0] = rows.maximum[m][1] = -INFINITY;
    rows.sum[m][0] = rows.sum[m][1] = 0.0f;
    SPILLWAY_UNROLL
    for (int n = 0; n < HeadSize / 8; ++n) outputs[m][n] = {};
  }
  [[maybe_unused]] RowLimits<RowsAre::queries> limits;
  if constexpr (Borders) limits.set(numbers, place.sequence, warp_query, 16 * m_tiles);
  const float scale_log2 = numbers.scale * log2_of_e;
  const int last =
      numbers.tokens < first_query + Shape::queries ? numbers.tokens : first_query + Shape::queries;
  const int tiles = (last + Keys - 1) / Keys;

  for (int tile = first_tile; tile < tiles; ++tile) {
    copy_wait<0>();
    __syncthreads();  // this tile is there, and nobody reads the one before any more
    if constexpr (Shape::q_in_registers) {
      if (tile == first_tile) {
        SPILLWAY_UNROLL
        for (int m = 0; m < m_tiles; ++m) {
          SPILLWAY_UNROLL
          for (int step = 0; step < k_steps; ++step)
            q_kept[m][step] = load_matrices(q_rows + 16 * m * row_bytes + 32 * step);
        }
        __syncthreads();  // before the next tile takes the place of Q
      }
    }
    if (tile + 1 < tiles) copy_keys(tile + 1);
    const int first_key = tile * Keys;
    if (first_key > warp_query + 16 * m_tiles - 1) continue;  // beyond all of the warp's queries
    if (Borders ? first_key + Keys - 1 < limits.first
                : General && first_key + Keys - 1 + numbers.window <= warp_query)
      continue;  // before them

    const int stage = (tile - first_tile) % 2 * 2;
    const SharedAddress k_tile = stages + stage * Shape::k_bytes + lanes.right;
    Sums scores[m_tiles][Keys / 8] = {};
    SPILLWAY_UNROLL
    for (int step = 0; step < k_steps; ++step) {
      Matrices left[m_tiles];
      SPILLWAY_UNROLL
      for (int m = 0; m < m_tiles; ++m) {
        if constexpr (Shape::q_in_registers) {
          left[m] = q_kept[m][step];
        } else {
          left[m] = load_matrices(q_rows + 16 * m * row_bytes + 32 * step);
        }
      }
      SPILLWAY_UNROLL
      for (int n = 0; n < Keys / 16; ++n) {
        const Matrices right = load_matrices(k_tile + 16 * n * row_bytes + 32 * step);
        SPILLWAY_UNROLL
        for (int m = 0; m < m_tiles; ++m) {
          multiply_add(scores[m][2 * n], left[m], right.part[0], right.part[1]);
          multiply_add(scores[m][2 * n + 1], left[m], right.part[2], right.part[3]);
        }
      }
    }
    // Keys beyond the last token are in the future of every query there is.
    if (first_key + Keys - 1 > warp_query)
      mask_future<Keys>(scores, warp_query + lane / 4, first_key + 2 * (lane % 4));
    if (Borders ? first_key < limits.last
                : General && first_key + numbers.window <= warp_query + 16 * m_tiles - 1)
      mask_past<Keys, Borders>(scores, warp_query + lane / 4, first_key + 2 * (lane % 4), numbers,
                               limits);

    float factor[m_tiles][2];
    if (raise_maxima<Keys>(scores, scale_log2, rows, factor)) {
      SPILLWAY_UNROLL
      for (int m = 0; m < m_tiles; ++m) {
        SPILLWAY_UNROLL
        for (int half = 0; half < 2; ++half) {
          rows.sum[m][half] *= factor[m][half];
          SPILLWAY_UNROLL
          for (int n = 0; n < HeadSize / 8; ++n) {
            outputs[m][n].sum[2 * half] *= factor[m][half];
            outputs[m][n].sum[2 * half + 1] *= factor[m][half];
          }
        }
      }
    }
    exponentiate<Keys, General>(scores, scale_log2, rows);

    if constexpr (HasOutput) {
      const SharedAddress v_tile = stages + (stage + 1) * Shape::k_bytes + lanes.left;
      SPILLWAY_UNROLL
      for (int step = 0; step < Keys / 16; ++step) {
        Matrices left[m_tiles];
        SPILLWAY_UNROLL
        for (int m = 0; m < m_tiles; ++m)
          left[m] = left_operand(scores[m][2 * step], scores[m][2 * step + 1]);
        SPILLWAY_UNROLL
        for (int n = 0; n < HeadSize / 16; ++n) {
          const Matrices right = load_matrices_transposed(v_tile + 16 * step * row_bytes + 32 * n);
          SPILLWAY_UNROLL
          for (int m = 0; m < m_tiles; ++m) {
            multiply_add(outputs[m][2 * n], left[m], right.part[0], right.part[1]);
            multiply_add(outputs[m][2 * n + 1], left[m], right.part[2], right.part[3]);
          }
        }
      }
    }
  }

  float reciprocal[m_tiles][2];
  SPILLWAY_UNROLL
  for (int m = 0; m < m_tiles; ++m) {
    SPILLWAY_UNROLL
    for (int half = 0; half < 2; ++half) {
      float sum = rows.sum[m][half];
      sum += __shfl_xor_sync(0xffffffffu, sum, 1);
      sum += __shfl_xor_sync(0xffffffffu, sum, 2);
      reciprocal[m][half] = 1.0f / sum;
      const int query = warp_query + 16 * m + 8 * half + lane / 4;
      if (tensors.log_sum_exp != nullptr && lane % 4 == 0 && query < numbers.tokens) {
        tensors.log_sum_exp[place.statistics + query] =
            fmaf(rows.maximum[m][half], scale_log2, log2f(sum)) * ln_of_2;
      }
    }
  }
  if constexpr (HasOutput) {
    // Only the warp itself ever read its rows of the Q tile; but for what came to lie there.
    if constexpr (Shape::q_in_registers) __syncthreads();
    write_rows<HeadSize, m_tiles>(
        q_shared + warp * 16 * m_tiles * Tile<HeadSize>::row_elements, outputs, reciprocal,
        tensors.output + place.output + static_cast<std::int64_t>(warp_query) * numbers.channels,
        numbers.channels, numbers.tokens - warp_query, numbers.head_size);
  }
}

template <int HeadSize, int Keys>
void launch_forward(const AttentionSizes& sizes, const ForwardTensors& tensors,
                    cudaStream_t stream) {
  using Shape = ForwardShape<HeadSize, Keys>;
  const Launch shape =
      attention_grid(sizes, sizes.heads, Shape::queries, threads, Shape::shared_bytes);
  with_generality(sizes, tensors.input, [&](auto general, auto borders) {
    launch("attention_forward",
           tensors.output != nullptr
               ? attention_forward_kernel<HeadSize, Keys, true, general.value, borders.value>
               : attention_forward_kernel<HeadSize, Keys, false, general.value, borders.value>,
           shape, stream, tensors, attention_numbers(sizes, tensors.input));
  });
}

}  // namespace

template <>
void attention_forward<bf16>(const AttentionSizes& sizes, const AttentionInput<bf16>& input,
                             bf16* output, float* log_sum_exp, cudaStream_t stream) {
  require_attention(sizes);
  if (sizes.sequences == 0 || sizes.tokens == 0) return;
  if (output == nullptr && log_sum_exp == nullptr) return;
  if (hopper_computes(sizes))
    return attention_forward_hopper(sizes, input, output, log_sum_exp, stream);
  const ForwardTensors tensors{input, output, log_sum_exp};
  with_padded_head(sizes.head_size, [&](auto padded) {
    constexpr int head_size = decltype(padded)::value;
    if constexpr (head_size > 96) {
      if (blocks_that_fit(ForwardShape<head_size, 64>::shared_bytes) < 2)
        return launch_forward<head_size, 32>(sizes, tensors, stream);
    }
    launch_forward<head_size, 64>(sizes, tensors, stream);
  });
}

}  // namespace spillway::cuda
