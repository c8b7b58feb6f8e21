// Causal attention of bf16 for Hopper, forward: FlashAttention-3 (Shah et al., 2024) with wgmma.
//
// A block takes 128 or 192 queries of one head (64 per warpgroup) and goes through tiles of 128
// keys up to the diagonal; attention_warpgroup.hpp says how it is fed. Scores are computed one tile
// ahead: while the tensor cores multiply a tile's probabilities with V, the warpgroup computes the
// exponentials of the next. Probabilities stay in registers, as the left operand.
//
// Counted for one SM (4096 FLOP and 16 exponentials per clock, 128 B/clock of shared memory) and 64
// queries x 128 keys, of which 3 (heads of 64) or 2 (128) are under way:
//                       heads of 64    heads of 128
//   products            512 clocks     1024
//   exponentials        512            512, and some 300 of other arithmetic
//   shared memory       40 KB 320      80 KB 640, and copies of K and V
//   held                114 KB         193 KB; 1 block per SM
#include "exec/cuda/attention/attention_hopper.hpp"
#include "exec/cuda/attention/attention_warpgroup.hpp"

namespace spillway::cuda {

namespace {

constexpr int keys = 128;  // per tile

template <int HeadSize>
struct ForwardShape {
  static constexpr int groups = HeadSize == 64 ? 3 : 2;  // of consumers
  static constexpr int threads = (1 + groups) * warpgroup_size;
  static constexpr int queries = groups * 64;
  // Of the 64 K registers of a multiprocessor.
  static constexpr int producer_registers = groups == 3 ? 32 : 56;
  static constexpr int consumer_registers = groups == 3 ? 160 : 224;
  static_assert(registers_suffice(groups, producer_registers, consumer_registers));
  using Queries = SwizzledTile<HeadSize, queries>;
  using Keys = SwizzledTile<HeadSize, keys>;
  static constexpr int buffers = 2 * Queries::bytes;  // where those of keys and values begin
  static constexpr int barriers = buffers + 4 * Keys::bytes;
  static constexpr int shared_bytes = alignment_room + barriers + BlockBarriers::bytes;
};

struct ForwardTensors {
  AttentionInput<bf16> input;
  bf16* output;
  float* log_sum_exp;
};

// The running softmax of the rows lane / 4 and lane / 4 + 8 of a warp; the four lanes of a row
// agree on `maximum`, while each has its own part of `sum`.
struct RunningRows {
  float maximum[2], sum[2];
};

// As in attention_forward.cu: how far, in powers of two, scores may exceed the running maximum
// before the sums are scaled down to a new one.
constexpr float maximum_slack = 8.0f;

// `query` and `key` are those of the lane's first score.
__device__ inline void mask_future(WarpgroupSums<keys>& scores, int query, int key) {
  SPILLWAY_UNROLL
  for (int i = 0; i < keys / 2; ++i) {
    if (key + i / 4 * 8 + i % 2 > query + i / 2 % 2 * 8) scores.sum[i] = -INFINITY;
  }
}

// Scores become probabilities times the row's sum, to which they are added. Returns whether any row
// of the warp must be scaled to a new maximum, and by what.
__device__ inline bool online_softmax(WarpgroupSums<keys>& scores, float scale_log2,
                                      RunningRows& rows, float (&factor)[2]) {
  bool raised = false;
  SPILLWAY_UNROLL
  for (int half = 0; half < 2; ++half) {
    float most = fmaxf(scores.sum[2 * half], scores.sum[2 * half + 1]);
    SPILLWAY_UNROLL
    for (int j = 1; j < keys / 8; ++j) {
      most = fmaxf(most, fmaxf(scores.sum[4 * j + 2 * half], scores.sum[4 * j + 2 * half + 1]));
    }
    most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 1));
    most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 2));
    const float above = (most - rows.maximum[half]) * scale_log2;
    factor[half] = 1.0f;
    if (above > maximum_slack) {
      raised = true;
      factor[half] = exp2_approximate(-above);
      rows.maximum[half] = most;
      rows.sum[half] *= factor[half];
    }
    const float offset = -rows.maximum[half] * scale_log2;
    SPILLWAY_UNROLL
    for (int j = 0; j < keys / 8; ++j) {
      SPILLWAY_UNROLL
      for (int i = 4 * j + 2 * half; i < 4 * j + 2 * half + 2; ++i) {
        scores.sum[i] = exp2_approximate(fmaf(scores.sum[i], scale_log2, offset));
        rows.sum[half] += scores.sum[i];
      }
    }
  }
  return any_in_warp(raised);
}

__device__ inline void round_probabilities(const WarpgroupSums<keys>& scores,
                                           LeftOperands<keys>& rounded) {
  SPILLWAY_UNROLL
  for (int step = 0; step < keys / 16; ++step) {
    const float* s = scores.sum + 8 * step;
    rounded.step[step] = {{pack_bf16(s[0], s[1]), pack_bf16(s[2], s[3]), pack_bf16(s[4], s[5]),
                           pack_bf16(s[6], s[7])}};
  }
}

template <int HeadSize, bool HasOutput, bool General>
__device__ void produce(SharedAddress tiles, const BlockBarriers& barriers,
                        const ForwardTensors& tensors, const AttentionNumbers& numbers,
                        const WorkOrder& order) {
  using Shape = ForwardShape<HeadSize>;
  const int warp = uniform_in_warp(static_cast<int>(threadIdx.x) / warp_size);
  const bool values = warp % 2 == 1;
  const SharedAddress buffer = tiles + Shape::buffers + warp * Shape::Keys::bytes;
  const int stride = General ? static_cast<int>(numbers.qk_stride) : 3 * numbers.channels;
  const int key_stride = General && values ? static_cast<int>(numbers.v_stride) : stride;
  int tile = 0, turn = 0;  // tile: since the block began
  for (int index; (index = work_index(order, turn)) < order.size(); ++turn) {
    const Work work = work_at(order, index);
    const int first_query = (order.blocks - 1 - work.turn) * Shape::queries;
    const HeadPlace place = head_place<General>(numbers, work.head);
    const bf16* data = tensors.input.qk + place.q;
    barrier_wait(barriers.work_empty(turn % 2), (turn / 2 + 1) % 2);
    constexpr int share = Shape::queries / producer_warps;
    copy_swizzled<HeadSize, Shape::queries, share>(
        tiles + turn % 2 * Shape::Queries::bytes, warp * share,
        data + (first_query + warp * share) * static_cast<std::int64_t>(stride), stride,
        numbers.tokens - first_query - warp * share);
    publish_copies(barriers.work_full(turn % 2));
    const int end = numbers.tokens < first_query + Shape::queries ? numbers.tokens
                                                                  : first_query + Shape::queries;
    if constexpr (General) {
      data = values ? tensors.input.v + place.v : tensors.input.qk + place.k;
    } else {
      data += (values ? 2 : 1) * numbers.channels;
    }
    for (int first_key = 0; first_key < end; first_key += keys, ++tile) {
      if (tile % 2 != warp / 2 || (values && !HasOutput)) continue;
      barrier_wait(barriers.empty(warp), (tile / 2 + 1) % 2);
      copy_swizzled<HeadSize, keys, keys>(buffer, 0,
                                          data + first_key * static_cast<std::int64_t>(key_stride),
                                          key_stride, numbers.tokens - first_key);
      publish_copies(barriers.full(warp));
    }
  }
}

template <int HeadSize, bool HasOutput>
__device__ void consume(std::byte* memory, SharedAddress tiles, const BlockBarriers& barriers,
                        const ForwardTensors& tensors, const AttentionNumbers& numbers,
                        const WorkOrder& order) {
  using Shape = ForwardShape<HeadSize>;
  using Queries = typename Shape::Queries;
  using Keys = typename Shape::Keys;
  const int group = uniform_in_warp(static_cast<int>(threadIdx.x) / warpgroup_size) - 1;
  const int warp = uniform_in_warp(static_cast<int>(threadIdx.x) / warp_size) % 4;
  const int lane = static_cast<int>(threadIdx.x) % warp_size;
  int tile = 0, turn = 0;  // tile: since the block began
  const auto k_buffer = [&](int t) { return t % 2 * 2; };
  const auto wait_full = [&](int t, int part) {
    barrier_wait(barriers.full(k_buffer(t) + part), t / 2 % 2);
  };
  const auto release = [&](int t, int part) { release_buffer(barriers.empty(k_buffer(t) + part)); };

  for (int index; (index = work_index(order, turn)) < order.size(); ++turn) {
    const Work work = work_at(order, index);
    const int first_query = (order.blocks - 1 - work.turn) * Shape::queries;
    const int group_query = first_query + 64 * group;
    const auto tiles_to = [&](int query) {
      return ((numbers.tokens < query ? numbers.tokens : query) + keys - 1) / keys;
    };
    const int tiles_here = tiles_to(first_query + Shape::queries);
    const int tiles_own = group_query < numbers.tokens ? tiles_to(group_query + 64) : 0;
    barrier_wait(barriers.work_full(turn % 2), turn / 2 % 2);
    const int q_offset = turn % 2 * Queries::bytes;
    const std::uint64_t q_rows =
        Queries::along_head(tiles + q_offset + group * 64 * swizzled_row_bytes);

    if (tiles_own > 0) {
      WarpgroupSums<keys> scores;
      WarpgroupSums<HeadSize> outputs;
      LeftOperands<keys> probabilities;
      RunningRows rows{{-INFINITY, -INFINITY}, {0.0f, 0.0f}};
      float factor[2];
      const auto multiply_scores = [&](int t) {
        const std::uint64_t k_rows =
            Keys::along_head(tiles + Shape::buffers + k_buffer(t) * Keys::bytes);
        SPILLWAY_UNROLL
        for (int step = 0; step < Keys::steps_along_head; ++step) {
          multiply_shared(scores, descriptor_further(q_rows, Queries::head_step(step)),
                          descriptor_further(k_rows, Keys::head_step(step)), step > 0);
        }
        products_commit();
      };
      const auto multiply_values = [&](int t, bool first) {
        const std::uint64_t v_rows =
            Keys::along_rows(tiles + Shape::buffers + (k_buffer(t) + 1) * Keys::bytes);
        SPILLWAY_UNROLL
        for (int step = 0; step < Keys::steps_along_rows; ++step) {
          multiply_registers(outputs, probabilities.step[step],
                             descriptor_further(v_rows, Keys::row_step(step)), step > 0 || !first);
        }
        products_commit();
      };
      const auto mask = [&](int t) {  // of this work; keys beyond the last are in the future of all
        if (t * keys + keys - 1 > group_query)
          mask_future(scores, group_query + 16 * warp + lane / 4, t * keys + 2 * (lane % 4));
      };

      wait_full(tile, 0);
      keep(scores);
      products_begin();
      multiply_scores(tile);
      products_wait<0>();
      keep(scores);
      release(tile, 0);
      mask(0);
      online_softmax(scores, numbers.scale_log2, rows, factor);
      round_probabilities(scores, probabilities);
      for (int t = 1; t < tiles_own; ++t) {
        wait_full(tile + t, 0);
        if constexpr (HasOutput) wait_full(tile + t - 1, 1);
        keep(scores);
        keep(outputs);
        products_begin();
        multiply_scores(tile + t);
        if constexpr (HasOutput) {
          multiply_values(tile + t - 1, t == 1);
          products_wait<1>();
        } else {
          products_wait<0>();
        }
        keep(scores);
        release(tile + t, 0);
        mask(t);
        const bool raised = online_softmax(scores, numbers.scale_log2, rows, factor);
        if constexpr (HasOutput) {
          computed_here(rows.sum[0]);
          computed_here(rows.sum[1]);
          products_wait<0>();
          keep(outputs);
          release(tile + t - 1, 1);
          if (raised) {
            SPILLWAY_UNROLL
            for (int i = 0; i < HeadSize / 2; ++i) outputs.sum[i] *= factor[i / 2 % 2];
          }
          round_probabilities(scores, probabilities);
        }
      }
      if constexpr (HasOutput) {
        wait_full(tile + tiles_own - 1, 1);
        keep(outputs);
        products_begin();
        multiply_values(tile + tiles_own - 1, tiles_own == 1);
        products_wait<0>();
        keep(outputs);
        release(tile + tiles_own - 1, 1);
      }

      const HeadPlace place = head_place<false>(numbers, work.head);
      const int warp_query = group_query + 16 * warp;
      float reciprocal[2];
      SPILLWAY_UNROLL
      for (int half = 0; half < 2; ++half) {
        float sum = rows.sum[half];
        sum += __shfl_xor_sync(0xffffffffu, sum, 1);
        sum += __shfl_xor_sync(0xffffffffu, sum, 2);
        reciprocal[half] = 1.0f / sum;
        const int query = warp_query + 8 * half + lane / 4;
        if (tensors.log_sum_exp != nullptr && lane % 4 == 0 && query < numbers.tokens) {
          tensors.log_sum_exp[place.statistics + query] =
              fmaf(rows.maximum[half], numbers.scale_log2, log2f(sum)) * ln_of_2;
        }
      }
      if constexpr (HasOutput) {
        warpgroup_barrier(group);  // none of its products reads the queries any more
        write_sums<HeadSize, Shape::queries>(
            memory + q_offset, 64 * group + 16 * warp, outputs, reciprocal,
            tensors.output + place.output +
                static_cast<std::int64_t>(warp_query) * numbers.channels,
            numbers.channels, numbers.tokens - warp_query);
      }
    }
    for (int t = tiles_own; t < tiles_here; ++t) {  // which other warpgroups need
      wait_full(tile + t, 0);
      release(tile + t, 0);
      if constexpr (HasOutput) {
        wait_full(tile + t, 1);
        release(tile + t, 1);
      }
    }
    tile += tiles_here;
    release_buffer(barriers.work_empty(turn % 2));
  }
}

template <int HeadSize, bool HasOutput, bool General>
__global__ void __launch_bounds__(ForwardShape<HeadSize>::threads, 1)
    attention_forward_hopper_kernel(ForwardTensors tensors, AttentionNumbers numbers,
                                    WorkOrder order) {
  using Shape = ForwardShape<HeadSize>;
  std::byte* const memory = dynamic_shared() + offset_of_tiles();
  const SharedAddress tiles = shared_address(memory);
  const BlockBarriers barriers{tiles + Shape::barriers};
  barriers.init(Shape::groups);
  if (threadIdx.x < warpgroup_size) {
    fewer_registers<Shape::producer_registers>();
    produce<HeadSize, HasOutput, General>(tiles, barriers, tensors, numbers, order);
  } else {
    more_registers<Shape::consumer_registers>();
    consume<HeadSize, HasOutput>(memory, tiles, barriers, tensors, numbers, order);
  }
}

template <int HeadSize>
void launch_forward(const AttentionSizes& sizes, const ForwardTensors& tensors,
                    cudaStream_t stream) {
  using Shape = ForwardShape<HeadSize>;
  const int multiprocessors = multiprocessor_count();
  const WorkOrder order =
      work_order(sizes.sequences * sizes.heads, sizes.tokens, Shape::queries,
                 sizes.tokens * HeadSize * 2 * std::int64_t{sizeof(bf16)}, multiprocessors);
  const Launch shape = work_launch(order, multiprocessors, Shape::threads, Shape::shared_bytes);
  with_generality(sizes, tensors.input, [&](auto general, auto) {
    launch("attention_forward_hopper",
           tensors.output != nullptr
               ? attention_forward_hopper_kernel<HeadSize, true, general.value>
               : attention_forward_hopper_kernel<HeadSize, false, general.value>,
           shape, stream, tensors, attention_numbers(sizes, tensors.input), order);
  });
}

}  // namespace

void attention_forward_hopper(const AttentionSizes& sizes, const AttentionInput<bf16>& input,
                              bf16* output, float* log_sum_exp, cudaStream_t stream) {
  const ForwardTensors tensors{input, output, log_sum_exp};
  if (sizes.head_size == 64) {
    launch_forward<64>(sizes, tensors, stream);
  } else {
    launch_forward<128>(sizes, tensors, stream);
  }
}

}  // namespace spillway::cuda
