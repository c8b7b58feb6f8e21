// dQ of causal attention for Hopper: attention_backward.cu says what is computed,
// attention_warpgroup.hpp how a block is fed.
//
// A block takes 128 queries of one head, 64 per warpgroup, and goes through tiles of 128 keys up to
// the diagonal: S = Q K^T, dP = dO V^T, P = exp(S), dS = P (dP - D), dQ += dS K. dP runs while
// exponentials are computed; what else a warpgroup waits for, the other one's products fill.
#include "exec/cuda/attention/attention_hopper.hpp"
#include "exec/cuda/attention/attention_warpgroup.hpp"

namespace spillway::cuda {

namespace {

constexpr int groups = 2;  // of consumers
constexpr int threads = (1 + groups) * warpgroup_size;
constexpr int block_queries = 64 * groups, keys = 128;  // per tile
constexpr int producer_registers = 40, consumer_registers = 232;
static_assert(registers_suffice(groups, producer_registers, consumer_registers));

template <int HeadSize>
struct QueriesShape {
  using Queries = SwizzledTile<HeadSize, block_queries>;
  using Keys = SwizzledTile<HeadSize, keys>;
  static constexpr int works = HeadSize == 64 ? 2 : 1;   // whose queries there is room for
  static constexpr int work_bytes = 2 * Queries::bytes;  // Q, dO
  static constexpr int buffers = works * work_bytes;
  static constexpr int barriers = buffers + 4 * Keys::bytes;
  static constexpr int shared_bytes = alignment_room + barriers + BlockBarriers::bytes;
};

template <int HeadSize, bool General>
__device__ void produce(SharedAddress tiles, const BlockBarriers& barriers,
                        const BackwardTensors<bf16>& tensors, const AttentionNumbers& numbers,
                        const WorkOrder& order) {
  using Shape = QueriesShape<HeadSize>;
  const int warp = uniform_in_warp(static_cast<int>(threadIdx.x) / warp_size);
  const bool values = warp % 2 == 1;
  const SharedAddress buffer = tiles + Shape::buffers + warp * Shape::Keys::bytes;
  const int stride = General ? static_cast<int>(numbers.qk_stride) : 3 * numbers.channels;
  const int key_stride = General && values ? static_cast<int>(numbers.v_stride) : stride;
  int ring = 0, turn = 0;  // ring: tiles since the block began
  for (int index; (index = work_index(order, turn)) < order.size(); ++turn) {
    const Work work = work_at(order, index);
    const HeadPlace place = head_place<General>(numbers, work.head);
    const int first_query = (order.blocks - 1 - work.turn) * block_queries;
    constexpr int share = block_queries / producer_warps;
    const int first_row = first_query + warp * share;
    const int at = turn % Shape::works;
    const SharedAddress queries = tiles + at * Shape::work_bytes;
    const bf16* data = tensors.input.qk + place.q;
    barrier_wait(barriers.work_empty(at), (turn / Shape::works + 1) % 2);
    copy_swizzled<HeadSize, block_queries, share>(
        queries, warp * share, data + first_row * static_cast<std::int64_t>(stride), stride,
        numbers.tokens - first_row);
    copy_swizzled<HeadSize, block_queries, share>(
        queries + Shape::Queries::bytes, warp * share,
        tensors.output_gradient + place.output +
            first_row * static_cast<std::int64_t>(numbers.channels),
        numbers.channels, numbers.tokens - first_row);
    publish_copies(barriers.work_full(at));
    const int end =
        numbers.tokens < first_query + block_queries ? numbers.tokens : first_query + block_queries;
    if constexpr (General) {
      data = values ? tensors.input.v + place.v : tensors.input.qk + place.k;
    } else {
      data += (values ? 2 : 1) * numbers.channels;
    }
    for (int first_key = 0; first_key < end; first_key += keys, ++ring) {
      if (ring % 2 != warp / 2) continue;
      barrier_wait(barriers.empty(warp), (ring / 2 + 1) % 2);
      copy_swizzled<HeadSize, keys, keys>(buffer, 0,
                                          data + first_key * static_cast<std::int64_t>(key_stride),
                                          key_stride, numbers.tokens - first_key);
      publish_copies(barriers.full(warp));
    }
  }
}

// Scores become probabilities; `query` and `key` are those of the lane's first score, `offset` the
// negative log-sum-exp of its two rows, in powers of two.
__device__ inline void probabilities(WarpgroupSums<keys>& scores, const float (&offset)[2],
                                     float scale_log2, bool masked, int query, int key) {
  SPILLWAY_UNROLL
  for (int i = 0; i < keys / 2; ++i) {
    float p = exp2_approximate(fmaf(scores.sum[i], scale_log2, offset[i / 2 % 2]));
    if (masked && key + i / 4 * 8 + i % 2 > query + i / 2 % 2 * 8) p = 0.0f;
    scores.sum[i] = p;
  }
}

// ds = p (gradients - D), rounded.
__device__ inline void score_gradients(const WarpgroupSums<keys>& p,
                                       const WarpgroupSums<keys>& gradients, const float (&dots)[2],
                                       LeftOperands<keys>& ds) {
  SPILLWAY_UNROLL
  for (int pair = 0; pair < keys / 4; ++pair) {
    const int i = 2 * pair;
    ds.step[pair / 4].part[pair % 4] =
        pack_bf16(p.sum[i] * (gradients.sum[i] - dots[pair % 2]),
                  p.sum[i + 1] * (gradients.sum[i + 1] - dots[pair % 2]));
  }
}

template <int HeadSize, bool General>
__device__ void consume(std::byte* memory, SharedAddress tiles, const BlockBarriers& barriers,
                        const BackwardTensors<bf16>& tensors, const AttentionNumbers& numbers,
                        const WorkOrder& order) {
  using Shape = QueriesShape<HeadSize>;
  using Queries = typename Shape::Queries;
  using Keys = typename Shape::Keys;
  const int group = uniform_in_warp(static_cast<int>(threadIdx.x) / warpgroup_size) - 1;
  const int warp = uniform_in_warp(static_cast<int>(threadIdx.x) / warp_size) % 4;
  const int lane = static_cast<int>(threadIdx.x) % warp_size;
  int ring = 0, turn = 0;
  const auto buffer_of = [](int r, int part) { return r % 2 * 2 + part; };
  const auto wait_full = [&](int r, int part) {
    barrier_wait(barriers.full(buffer_of(r, part)), r / 2 % 2);
  };
  const auto release = [&](int r, int part) { release_buffer(barriers.empty(buffer_of(r, part))); };
  const auto tile_at = [&](int r, int part) {
    return tiles + Shape::buffers + buffer_of(r, part) * Keys::bytes;
  };

  for (int index; (index = work_index(order, turn)) < order.size(); ++turn) {
    const Work work = work_at(order, index);
    const HeadPlace place = head_place<General>(numbers, work.head);
    const int first_query = (order.blocks - 1 - work.turn) * block_queries;
    const int group_query = first_query + 64 * group, warp_query = group_query + 16 * warp;
    const auto tiles_to = [&](int query) {
      return ((numbers.tokens < query ? numbers.tokens : query) + keys - 1) / keys;
    };
    const int tiles_here = tiles_to(first_query + block_queries);
    const int tiles_own = group_query < numbers.tokens ? tiles_to(group_query + 64) : 0;
    const int at = turn % Shape::works, query_offset = at * Shape::work_bytes;
    const SharedAddress own_rows = tiles + query_offset + group * 64 * swizzled_row_bytes;
    const std::uint64_t q_rows = Queries::along_head(own_rows);
    const std::uint64_t do_rows = Queries::along_head(own_rows + Queries::bytes);

    // Of the rows this lane has sums of; zero for queries that are none.
    float offset[2], dots[2];
    SPILLWAY_UNROLL
    for (int half = 0; half < 2; ++half) {
      const int query = warp_query + 8 * half + lane / 4;
      const bool valid = query < numbers.tokens;
      offset[half] = valid ? -tensors.log_sum_exp[place.statistics + query] * log2_of_e : 0.0f;
      dots[half] = valid ? tensors.dots[place.dots + query] : 0.0f;
    }
    WarpgroupSums<keys> scores, gradients;
    WarpgroupSums<HeadSize> q_gradient;
    LeftOperands<keys> ds;
    SPILLWAY_UNROLL
    for (int i = 0; i < HeadSize / 2; ++i) q_gradient.sum[i] = 0.0f;
    const auto multiply_rows = [&](WarpgroupSums<keys>& sums, std::uint64_t left, int r, int part) {
      const std::uint64_t right = Keys::along_head(tile_at(r, part));
      SPILLWAY_UNROLL
      for (int step = 0; step < Keys::steps_along_head; ++step) {
        multiply_shared(sums, descriptor_further(left, Queries::head_step(step)),
                        descriptor_further(right, Keys::head_step(step)), step > 0);
      }
      products_commit();
    };

    barrier_wait(barriers.work_full(at), turn / Shape::works % 2);
    for (int tile = 0; tile < tiles_own; ++tile, ++ring) {
      wait_full(ring, 0);
      wait_full(ring, 1);
      keep(scores);
      keep(gradients);
      products_begin();
      multiply_rows(scores, q_rows, ring, 0);
      multiply_rows(gradients, do_rows, ring, 1);
      products_wait<1>();
      keep(scores);
      // Keys beyond the last token are in the future of every query there is.
      probabilities(scores, offset, numbers.scale_log2, tile * keys + keys - 1 > group_query,
                    warp_query + lane / 4, tile * keys + 2 * (lane % 4));
      computed_here(scores.sum[keys / 2 - 1]);
      products_wait<0>();
      keep(gradients);
      release(ring, 1);
      score_gradients(scores, gradients, dots, ds);
      keep(q_gradient);
      products_begin();
      const std::uint64_t k_rows = Keys::along_rows(tile_at(ring, 0));
      SPILLWAY_UNROLL
      for (int step = 0; step < Keys::steps_along_rows; ++step) {
        multiply_registers(q_gradient, ds.step[step],
                           descriptor_further(k_rows, Keys::row_step(step)), true);
      }
      products_commit();
      products_wait<0>();
      keep(q_gradient);
      release(ring, 0);
    }
    for (int tile = tiles_own; tile < tiles_here; ++tile, ++ring) {  // of others
      wait_full(ring, 0);
      wait_full(ring, 1);
      release(ring, 0);
      release(ring, 1);
    }

    if (tiles_own > 0) {
      const float scale[2] = {numbers.scale, numbers.scale};
      warpgroup_barrier(group);  // none of its products reads the queries any more
      write_sums<HeadSize, block_queries>(
          memory + query_offset, 64 * group + 16 * warp, q_gradient, scale,
          tensors.qkv_gradient + place.q_gradient + warp_query * place.gradient_stride,
          place.gradient_stride, numbers.tokens - warp_query);
    }
    release_buffer(barriers.work_empty(at));
  }
}

template <int HeadSize, bool General>
__global__ void __launch_bounds__(threads, 1)
    attention_queries_hopper_kernel(BackwardTensors<bf16> tensors, AttentionNumbers numbers,
                                    WorkOrder order) {
  using Shape = QueriesShape<HeadSize>;
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
void launch_queries(const AttentionSizes& sizes, const BackwardTensors<bf16>& tensors,
                    cudaStream_t stream) {
  const int multiprocessors = multiprocessor_count();
  const WorkOrder order =
      work_order(sizes.sequences * sizes.heads, sizes.tokens, block_queries,
                 sizes.tokens * HeadSize * 2 * std::int64_t{sizeof(bf16)}, multiprocessors);
  with_generality(sizes, tensors.input, [&](auto general, auto) {
    launch("attention_queries_hopper", attention_queries_hopper_kernel<HeadSize, general.value>,
           work_launch(order, multiprocessors, threads, QueriesShape<HeadSize>::shared_bytes),
           stream, tensors, attention_numbers(sizes, tensors.input), order);
  });
}

}  // namespace

void attention_queries_hopper(const AttentionSizes& sizes, const BackwardTensors<bf16>& tensors,
                              cudaStream_t stream) {
  if (sizes.head_size == 64) {
    launch_queries<64>(sizes, tensors, stream);
  } else {
    launch_queries<128>(sizes, tensors, stream);
  }
}

}  // namespace spillway::cuda
