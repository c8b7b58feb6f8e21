// dK and dV of causal attention for Hopper: attention_backward.cu says what is computed,
// attention_warpgroup.hpp how a block is fed.
//
// A block takes 128 keys of one head, 64 per warpgroup, and goes through the tiles of queries from
// the diagonal on. Scores are transposed (keys are rows), so that probabilities and gradients of
// scores become left operands in registers:
//   S = K Q^T,  dP = V dO^T,  P = exp(S),  dS = P (dP - D),  dV += P dO,  dK += dS Q.
// dP runs while exponentials are computed; dV and dK have to be done before the next scores.
#include "exec/cuda/attention/attention_hopper.hpp"
#include "exec/cuda/attention/attention_warpgroup.hpp"

namespace spillway::cuda {

namespace {

constexpr int groups = 2;  // of consumers
constexpr int threads = (1 + groups) * warpgroup_size;
constexpr int block_keys = 64 * groups;
constexpr int producer_registers = 40, consumer_registers = 232;
static_assert(registers_suffice(groups, producer_registers, consumer_registers));

template <int HeadSize>
struct KeysShape {
  static constexpr int queries = HeadSize == 64 ? 128 : 64;  // per tile
  using Keys = SwizzledTile<HeadSize, block_keys>;
  using Queries = SwizzledTile<HeadSize, queries>;
  // A buffer: a tile of Q (or dO), then the log-sum-exp (or D) of its queries.
  static constexpr int buffer_bytes = Queries::bytes + swizzled_bytes;
  static_assert(queries * 4 <= swizzled_bytes);
  static constexpr int work_bytes = 2 * Keys::bytes;  // K, V
  static constexpr int buffers = 2 * work_bytes;
  static constexpr int barriers = buffers + 4 * buffer_bytes;
  static constexpr int shared_bytes = alignment_room + barriers + BlockBarriers::bytes;
};

template <int HeadSize, bool General>
__device__ void produce(SharedAddress tiles, const BlockBarriers& barriers,
                        const BackwardTensors<bf16>& tensors, const AttentionNumbers& numbers,
                        const WorkOrder& order) {
  using Shape = KeysShape<HeadSize>;
  const int warp = uniform_in_warp(static_cast<int>(threadIdx.x) / warp_size);
  const int lane = static_cast<int>(threadIdx.x) % warp_size;
  const bool of_output = warp % 2 == 1;
  const SharedAddress buffer = tiles + Shape::buffers + warp * Shape::buffer_bytes;
  const int stride = General ? static_cast<int>(numbers.qk_stride) : 3 * numbers.channels;
  const int group = General ? numbers.group : 1;
  const int end = (numbers.tokens + Shape::queries - 1) / Shape::queries;
  int ring = 0, turn = 0;  // ring: tiles since the block began
  for (int index; (index = work_index(order, turn)) < order.size(); ++turn) {
    const Work work = work_at(order, index);
    const HeadPlace place = head_place<General>(numbers, work.head * group);
    const int first_key = work.turn * block_keys;  // early keys are seen by most queries
    constexpr int share = block_keys / producer_warps;
    const SharedAddress keys = tiles + turn % 2 * Shape::work_bytes;
    const bf16* data =
        tensors.input.qk + place.k + (first_key + warp * share) * static_cast<std::int64_t>(stride);
    const std::int64_t v_stride = General ? numbers.v_stride : stride;
    const bf16* const v_data =
        General ? tensors.input.v + place.v + (first_key + warp * share) * v_stride
                : data + numbers.channels;
    const int valid = numbers.tokens - first_key - warp * share;
    barrier_wait(barriers.work_empty(turn % 2), (turn / 2 + 1) % 2);
    copy_swizzled<HeadSize, block_keys, share>(keys, warp * share, data, stride, valid);
    copy_swizzled<HeadSize, block_keys, share>(keys + Shape::Keys::bytes, warp * share, v_data,
                                               static_cast<int>(v_stride), valid);
    publish_copies(barriers.work_full(turn % 2));
    const bf16* rows =
        of_output ? tensors.output_gradient + place.output : tensors.input.qk + place.q;
    const int row_stride = of_output ? numbers.channels : stride;
    const float* statistics =
        of_output ? tensors.dots + place.dots : tensors.log_sum_exp + place.statistics;
    for (int head = 0; head < group; ++head) {  // of those that share the keys
      for (int tile = first_key / Shape::queries; tile < end; ++tile, ++ring) {
        if (ring % 2 != warp / 2) continue;
        const int first = tile * Shape::queries;
        barrier_wait(barriers.empty(warp), (ring / 2 + 1) % 2);
        copy_swizzled<HeadSize, Shape::queries, Shape::queries>(
            buffer, 0, rows + first * static_cast<std::int64_t>(row_stride), row_stride,
            numbers.tokens - first);
        // Zero for queries that are none: p is then 1, and multiplies a dO and q of zero.
        for (int query = lane; query < Shape::queries; query += warp_size)
          copy_async_4(buffer + Shape::Queries::bytes + 4 * query, statistics + first + query,
                       first + query < numbers.tokens);
        publish_copies(barriers.full(warp));
      }
      rows += HeadSize;
      statistics += numbers.tokens;
    }
  }
}

// Scores become probabilities; `log_sum_exp` is that of the tile's queries, `key` and `query` are
// those of the lane's first score.
template <int Queries>
__device__ inline void probabilities(WarpgroupSums<Queries>& scores, const float* log_sum_exp,
                                     float scale_log2, bool masked, int key, int query) {
  const int lane = static_cast<int>(threadIdx.x) % warp_size;
  SPILLWAY_UNROLL
  for (int j = 0; j < Queries / 8; ++j) {
    const float2 lse = *reinterpret_cast<const float2*>(log_sum_exp + 8 * j + 2 * (lane % 4));
    SPILLWAY_UNROLL
    for (int i = 0; i < 4; ++i) {
      const float offset = -(i % 2 == 0 ? lse.x : lse.y) * log2_of_e;
      float p = exp2_approximate(fmaf(scores.sum[4 * j + i], scale_log2, offset));
      if (masked && key + i / 2 * 8 > query + 8 * j + i % 2) p = 0.0f;
      scores.sum[4 * j + i] = p;
    }
  }
}

// ds = scores (gradients - D) and p = scores, rounded.
template <int Queries>
__device__ inline void score_gradients(const WarpgroupSums<Queries>& scores,
                                       const WarpgroupSums<Queries>& gradients, const float* dots,
                                       LeftOperands<Queries>& p, LeftOperands<Queries>& ds) {
  const int lane = static_cast<int>(threadIdx.x) % warp_size;
  SPILLWAY_UNROLL
  for (int j = 0; j < Queries / 8; ++j) {
    const float2 d = *reinterpret_cast<const float2*>(dots + 8 * j + 2 * (lane % 4));
    SPILLWAY_UNROLL
    for (int half = 0; half < 2; ++half) {
      const int i = 4 * j + 2 * half, part = j % 2 * 2 + half;
      p.step[j / 2].part[part] = pack_bf16(scores.sum[i], scores.sum[i + 1]);
      ds.step[j / 2].part[part] = pack_bf16(scores.sum[i] * (gradients.sum[i] - d.x),
                                            scores.sum[i + 1] * (gradients.sum[i + 1] - d.y));
    }
  }
}

template <int HeadSize, bool General>
__device__ void consume(std::byte* memory, SharedAddress tiles, const BlockBarriers& barriers,
                        const BackwardTensors<bf16>& tensors, const AttentionNumbers& numbers,
                        const WorkOrder& order) {
  using Shape = KeysShape<HeadSize>;
  using Keys = typename Shape::Keys;
  using Queries = typename Shape::Queries;
  constexpr int queries = Shape::queries;
  const int group = uniform_in_warp(static_cast<int>(threadIdx.x) / warpgroup_size) - 1;
  const int warp = uniform_in_warp(static_cast<int>(threadIdx.x) / warp_size) % 4;
  const int lane = static_cast<int>(threadIdx.x) % warp_size;
  const int end = (numbers.tokens + queries - 1) / queries;
  const int heads = General ? numbers.group : 1;  // that share the keys
  int ring = 0, turn = 0;
  const auto buffer_of = [](int r, int part) { return r % 2 * 2 + part; };
  const auto offset_of = [&](int r, int part) {
    return Shape::buffers + buffer_of(r, part) * Shape::buffer_bytes;
  };
  const auto wait_full = [&](int r, int part) {
    barrier_wait(barriers.full(buffer_of(r, part)), r / 2 % 2);
  };
  const auto release = [&](int r) {
    release_buffer(barriers.empty(buffer_of(r, 0)));
    release_buffer(barriers.empty(buffer_of(r, 1)));
  };

  for (int index; (index = work_index(order, turn)) < order.size(); ++turn) {
    const Work work = work_at(order, index);
    const int first_key = work.turn * block_keys, group_key = first_key + 64 * group;
    const int first_tile = first_key / queries;
    const int own_tile = group_key < numbers.tokens ? group_key / queries : end;
    const int key_offset = turn % 2 * Shape::work_bytes;
    const SharedAddress own_rows = tiles + key_offset + group * 64 * swizzled_row_bytes;
    const std::uint64_t k_rows = Keys::along_head(own_rows);
    const std::uint64_t v_rows = Keys::along_head(own_rows + Keys::bytes);
    barrier_wait(barriers.work_full(turn % 2), turn / 2 % 2);
    WarpgroupSums<queries> scores, gradients;
    WarpgroupSums<HeadSize> k_gradient, v_gradient;
    LeftOperands<queries> p, ds;
    SPILLWAY_UNROLL
    for (int i = 0; i < HeadSize / 2; ++i) k_gradient.sum[i] = v_gradient.sum[i] = 0.0f;
    // A product with rows of K or V as left operand, and a tile's part.
    const auto multiply_rows = [&](WarpgroupSums<queries>& sums, std::uint64_t left, int r,
                                   int part) {
      const std::uint64_t right = Queries::along_head(tiles + offset_of(r, part));
      SPILLWAY_UNROLL
      for (int step = 0; step < Keys::steps_along_head; ++step) {
        multiply_shared(sums, descriptor_further(left, Keys::head_step(step)),
                        descriptor_further(right, Queries::head_step(step)), step > 0);
      }
      products_commit();
    };
    const auto add_product = [&](WarpgroupSums<HeadSize>& sums, const LeftOperands<queries>& left,
                                 int r, int part) {
      const std::uint64_t right = Queries::along_rows(tiles + offset_of(r, part));
      SPILLWAY_UNROLL
      for (int step = 0; step < Queries::steps_along_rows; ++step) {
        multiply_registers(sums, left.step[step],
                           descriptor_further(right, Queries::row_step(step)), true);
      }
    };

    for (int head = 0; head < heads; ++head) {
      for (int tile = first_tile; tile < own_tile; ++tile, ++ring) {  // of others
        wait_full(ring, 0);
        wait_full(ring, 1);
        release(ring);
      }
      for (int tile = own_tile; tile < end; ++tile, ++ring) {
        wait_full(ring, 0);
        wait_full(ring, 1);
        keep(scores);
        keep(gradients);
        products_begin();
        multiply_rows(scores, k_rows, ring, 0);
        multiply_rows(gradients, v_rows, ring, 1);
        products_wait<1>();
        keep(scores);
        const int first_query = tile * queries;
        const auto statistics = [&](int part) {
          return reinterpret_cast<const float*>(memory + offset_of(ring, part) + Queries::bytes);
        };
        probabilities(scores, statistics(0), numbers.scale_log2, first_query < group_key + 63,
                      group_key + 16 * warp + lane / 4, first_query + 2 * (lane % 4));
        // With heads of 64, registers do not suffice; half of the exponentials come before anyway.
        if constexpr (HeadSize == 128) computed_here(scores.sum[queries / 2 - 1]);
        products_wait<0>();
        keep(gradients);
        score_gradients(scores, gradients, statistics(1), p, ds);
        keep(v_gradient);
        keep(k_gradient);
        products_begin();
        add_product(v_gradient, p, ring, 1);
        add_product(k_gradient, ds, ring, 0);
        products_commit();
        products_wait<0>();
        keep(v_gradient);
        keep(k_gradient);
        release(ring);
      }
    }

    if (own_tile < end) {
      const HeadPlace place = head_place<General>(numbers, work.head * heads);
      const int warp_key = group_key + 16 * warp, row = 64 * group + 16 * warp;
      bf16* const to = tensors.qkv_gradient + place.k_gradient + warp_key * place.gradient_stride;
      const float scale[2] = {numbers.scale, numbers.scale}, one[2] = {1.0f, 1.0f};
      warpgroup_barrier(group);  // none of its products reads K and V any more
      write_sums<HeadSize, block_keys>(memory + key_offset, row, k_gradient, scale, to,
                                       place.gradient_stride, numbers.tokens - warp_key);
      write_sums<HeadSize, block_keys>(memory + key_offset + Keys::bytes, row, v_gradient, one,
                                       to + (General ? numbers.kv_channels : numbers.channels),
                                       place.gradient_stride, numbers.tokens - warp_key);
    }
    release_buffer(barriers.work_empty(turn % 2));
  }
}

template <int HeadSize, bool General>
__global__ void __launch_bounds__(threads, 1)
    attention_keys_hopper_kernel(BackwardTensors<bf16> tensors, AttentionNumbers numbers,
                                 WorkOrder order) {
  using Shape = KeysShape<HeadSize>;
  std::byte* const memory = dynamic_shared() + offset_of_tiles();
  const SharedAddress tiles = shared_address(memory);
  const BlockBarriers barriers{tiles + Shape::barriers};
  barriers.init(groups);
  if (threadIdx.x < warpgroup_size) {
    fewer_registers<producer_registers>();
    produce<HeadSize, General>(tiles, barriers, tensors, numbers, order);
  } else {
    more_registers<consumer_registers>();
    consume<HeadSize, General>(memory, tiles, barriers, tensors, numbers, order);
  }
}

template <int HeadSize>
void launch_keys(const AttentionSizes& sizes, const BackwardTensors<bf16>& tensors,
                 cudaStream_t stream) {
  const int multiprocessors = multiprocessor_count();
  const WorkOrder order = work_order(
      sizes.sequences * sizes.kv_heads, sizes.tokens, block_keys,
      sizes.heads / sizes.kv_heads * sizes.tokens * (HeadSize * 2 * std::int64_t{sizeof(bf16)} + 8),
      multiprocessors);
  const auto start = [&](auto general, auto) {
    launch("attention_keys_hopper", attention_keys_hopper_kernel<HeadSize, general.value>,
           work_launch(order, multiprocessors, threads, KeysShape<HeadSize>::shared_bytes), stream,
           tensors, attention_numbers(sizes, tensors.input), order);
  };
  if constexpr (HeadSize == 64) {
    with_generality(sizes, tensors.input, start);
  } else {
    start(std::false_type{}, std::false_type{});  // hopper_computes_keys()
  }
}

}  // namespace

void attention_keys_hopper(const AttentionSizes& sizes, const BackwardTensors<bf16>& tensors,
                           cudaStream_t stream) {
  if (sizes.head_size == 64) {
    launch_keys<64>(sizes, tensors, stream);
  } else {
    launch_keys<128>(sizes, tensors, stream);
  }
}

}  // namespace spillway::cuda
