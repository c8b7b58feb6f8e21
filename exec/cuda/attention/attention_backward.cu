// Causal attention of bf16 on tensor cores, backward, without atomics and with no memory but
// `dots`.
//
// With p the probabilities (rebuilt from q, k and the saved log-sum-exp) and D = dO . O per query:
//   dV = p^T dO,   dS = p (dO v^T - D),   dK = scale dS^T q,   dQ = scale dS k.
// Three kernels: `dots` finds D; `keys` takes a block of keys, goes through the queries that see
// them and sums up dK and dV (4 products: q k^T, dO v^T, dV, dK); `queries` takes a block of
// queries, goes through their keys and sums up dQ (3 products: q k^T, dO v^T, dQ).
//
// Why 7 products and not the 5 of one pass: one pass over blocks of keys must sum up dQ in fp32
// across blocks. In an order that repeats, that costs a chain of waits between blocks and per tile
// of 128 x 64 an fp32 tile of dQ to and from L2 (64 KB for head size 128, about 2700 clocks of an
// SM's share of L2, where the tile's 5 products take 4100), and memory for it. Two kernels exchange
// nothing, keep every p and dS in registers (both kernels arrange their products so that the sums
// of one are the left operand of the next), and are balanced without waits. The bound for them is
// 5/7 = 71 % of what the tensor cores give.
//
// Counted for one SM of a Hopper per 128 x 64 tile of scores, as in attention_forward.cu (about
// 2500 FLOP/clock for mma.sync, 128 B/clock of shared memory):
//                            keys, 64     keys, 128     queries, 64     queries, 128
//   products                 1680         3360          1260            2520
//   read from shared memory  160 KB 1280  512 KB 4100   96 KB 770       320 KB 2560
//   held                     73 KB        137 KB        72 KB           102 KB
//   warps of 32 / 16 rows    4 of 32      8 of 16       4 of 32         4 of 32
//   blocks per SM            2            1             2               2
// `keys` with head size 128 is limited by reading Q and dO: two sums of 32 x 128 per warp would be
// all the registers there are, so a warp has 16 keys, and each fragment feeds one row of products.
#include "exec/cuda/attention/attention_backward.hpp"
#include "exec/cuda/attention/attention_hopper.hpp"
#include "exec/cuda/attention/attention_tiles.hpp"

namespace spillway::cuda {

namespace {

// dots[sequence][head][token] = dO . O. Each group of `Lanes` (a power of two, at least head size /
// 8) takes one head of one token.
constexpr int dots_threads = 256;
template <int Lanes>
__global__ void __launch_bounds__(dots_threads)
    attention_dots_kernel(const bf16* output, const bf16* output_gradient, float* dots,
                          AttentionNumbers numbers, std::int64_t items) {
  const std::int64_t item =
      static_cast<std::int64_t>(blockIdx.x) * (dots_threads / Lanes) + threadIdx.x / Lanes;
  const int column = static_cast<int>(threadIdx.x % Lanes) * 8;
  float sum = 0.0f;
  if (item < items && column < numbers.head_size) {
    const std::int64_t at = item * numbers.head_size + column;
    const uint4 o = *reinterpret_cast<const uint4*>(output + at);
    const uint4 g = *reinterpret_cast<const uint4*>(output_gradient + at);
    const std::uint32_t o_pairs[4] = {o.x, o.y, o.z, o.w}, g_pairs[4] = {g.x, g.y, g.z, g.w};
    SPILLWAY_UNROLL
    for (int i = 0; i < 4; ++i) {
      const auto low = [](std::uint32_t pair) {
        return to_float(bf16{static_cast<std::uint16_t>(pair & 0xffffu)});
      };
      sum = fmaf(low(o_pairs[i]), low(g_pairs[i]), sum);
      sum = fmaf(low(o_pairs[i] >> 16), low(g_pairs[i] >> 16), sum);
    }
  }
  SPILLWAY_UNROLL
  for (int distance = Lanes / 2; distance > 0; distance /= 2)
    sum += __shfl_xor_sync(0xffffffffu, sum, distance);
  if (item < items && column == 0) {
    const std::int64_t row = item / numbers.heads, head = item % numbers.heads;
    const std::int64_t sequence = row / numbers.tokens, token = row % numbers.tokens;
    dots[(sequence * numbers.heads + head) * numbers.tokens + token] = sum;
  }
}

template <int HeadSize>
void launch_dots(const AttentionSizes& sizes, const BackwardTensors<bf16>& tensors,
                 cudaStream_t stream) {
  constexpr int lanes = HeadSize <= 16 ? 2 : HeadSize <= 32 ? 4 : HeadSize <= 64 ? 8 : 16;
  constexpr int items_per_block = dots_threads / lanes;
  const std::int64_t items = sizes.sequences * sizes.tokens * sizes.heads;
  Launch shape;
  shape.grid = dim3(static_cast<unsigned>((items + items_per_block - 1) / items_per_block));
  shape.block = dim3(dots_threads);
  launch("attention_dots", attention_dots_kernel<lanes>, shape, stream, tensors.output,
         tensors.output_gradient, tensors.dots, attention_numbers(sizes, tensors.input), items);
}

}  // namespace

template <>
void attention_backward<bf16>(const AttentionSizes& sizes, const AttentionInput<bf16>& input,
                              const bf16* output, const float* log_sum_exp,
                              const bf16* output_gradient, bf16* qkv_gradient, float* dots,
                              cudaStream_t stream) {
  require_attention(sizes);
  if (sizes.sequences == 0 || sizes.tokens == 0) return;
  const BackwardTensors<bf16> tensors{input,           output,       log_sum_exp,
                                      output_gradient, qkv_gradient, dots};
  with_padded_head(sizes.head_size, [&](auto padded) {
    launch_dots<decltype(padded)::value>(sizes, tensors, stream);
  });
  const bool hopper = hopper_computes(sizes), hopper_keys = hopper_computes_keys(sizes, input);
  (hopper_keys ? attention_keys_hopper : attention_backward_keys)(sizes, tensors, stream);
  (hopper ? attention_queries_hopper : attention_backward_queries)(sizes, tensors, stream);
}

}  // namespace spillway::cuda
