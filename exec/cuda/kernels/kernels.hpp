// The kernels that memory bounds: text, embedding, norms, rotary embedding, GELU, SwiGLU, dropout,
// sums, cross entropy, AdamW.
//
// Element is float or bf16 (parameters and activations), Gradient is float or bf16 (what gradients
// of parameters are summed up in); arithmetic is fp32, sums of squares and losses are fp64. All are
// deterministic: no atomics on numbers, orders of summation depend on shapes only. All pointers are
// to device memory unless said otherwise; activations are (rows, columns) with rows = sequences x
// tokens; columns are a multiple of 8 and every tensor starts on 16 bytes. Calls enqueue on
// `stream` and return. `Workspace` holds partial results between the kernels of one call, and
// nothing after.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "exec/cpu/dropout.hpp"
#include "exec/cpu/stochastic_rounding.hpp"
#include "exec/cuda/kernels/bf16.hpp"

namespace spillway::cuda {

struct Workspace {
  std::byte* data = nullptr;  // 256-byte aligned
  std::size_t bytes = 0;
};
// Enough for every call below on tensors up to these sizes. `norm_columns`: of rows that are
// normed; `unit_elements`: of the largest unit.
std::size_t workspace_bytes(std::int64_t norm_columns, std::int64_t widest_columns,
                            std::int64_t unit_elements);

// Mean and reciprocal deviation of rows, as they lie in the `statistics` tensor of
// policies/model/units.hpp: those of row (sequence, token) at sequence * stride + token.
struct RowStatistics {
  float* mean = nullptr;  // of layer norms alone
  float* rstd = nullptr;
  std::int64_t tokens = 0;  // T
  std::int64_t stride = 0;  // floats between one sequence's and the next's
};

// to (count; device) = host (count; pinned): tokens, targets and so on, with no copy engine.
// Both start on 16 bytes, and count is a multiple of text_alignment.
constexpr std::int64_t text_alignment = 4;
void fetch_text(const std::int32_t* host, std::int32_t* to, std::int64_t count,
                cudaStream_t stream);
// to (n) = from (n), both in GPU memory, with no copy engine. n is a multiple of 8.
template <class Element>
void copy_activation(const Element* from, Element* to, std::int64_t n, cudaStream_t stream);

// output (rows, columns) = token_table[tokens[row]] [+ position_table[row % T - starts[row]],
// unless null]. starts (rows): of each token's document in its sequence; null: 0.
template <class Element>
void embed_forward(const Element* token_table, const Element* position_table,
                   const std::int32_t* tokens, const std::int32_t* starts, Element* output,
                   std::int64_t rows, std::int64_t t, std::int64_t columns, cudaStream_t stream);

// The tokens of a micro-batch in the order of their numbers, for embed_backward: rows with the same
// token lie together, in ascending order. Arrays in device memory.
struct TokenOrder {
  const std::int32_t* rows = nullptr;    // (rows)
  const std::int32_t* begins = nullptr;  // (rows + 1), run k is [begins[k], begins[k + 1])
  const std::int32_t* runs = nullptr;    // (1), how many runs there are
};

// Adds the gradient (rows, columns) of embed_forward's output to those of the tables, of which
// position_gradient may be null. `tokens` (rows). The sum of a table's row is taken in fp32 and
// added once. Positions are those of sequences; where documents have their own, a second call has
// these for tokens, and the position table's gradient for that of the token table.
template <class Element, class Gradient>
void embed_backward(const std::int32_t* tokens, const TokenOrder& order,
                    const Element* output_gradient, Gradient* token_gradient,
                    Gradient* position_gradient, std::int64_t sequences, std::int64_t t,
                    std::int64_t columns, cudaStream_t stream);

// What of a norm is computed: an output from given statistics has the bits it has with them.
enum class NormParts : std::uint8_t { statistics_and_output, statistics, output };
// At least one of the two.
constexpr NormParts parts_of(bool statistics, bool output) {
  return !output       ? NormParts::statistics
         : !statistics ? NormParts::output
                       : NormParts::statistics_and_output;
}
// Layer norm: output = (input - mean) rstd weight + bias, rstd = 1 / sqrt(variance + epsilon).
template <class Element>
void norm_forward(const Element* input, const Element* weight, const Element* bias, Element* output,
                  const RowStatistics& statistics, NormParts parts, float epsilon,
                  std::int64_t rows, std::int64_t columns, cudaStream_t stream);

// RMS norm: output = input rstd weight, rstd = 1 / sqrt(mean of input^2 + epsilon).
template <class Element>
void rms_norm_forward(const Element* input, const Element* weight, Element* output,
                      const RowStatistics& statistics, NormParts parts, float epsilon,
                      std::int64_t rows, std::int64_t columns, cudaStream_t stream);

// Sums over rows that norm_backward takes, (columns) each: overwritten, or added to. Those of a
// norm that is frozen are null.
template <class Gradient>
struct NormSums {
  Gradient *weight, *bias;  // the norm's own gradients
  bool overwrites;
  // Both or none: of input_gradient, as it was before and as it is after. Where it is a residual's
  // gradient, these are the gradients of the biases of the products that read and made it.
  Gradient *before = nullptr, *after = nullptr;
};
// input_gradient = its gradient from output_gradient, plus what it holds if `adds`; may be the same
// tensor as `input` if not `adds`.
template <class Element, class Gradient>
void norm_backward(const Element* output_gradient, const Element* input, const Element* weight,
                   const RowStatistics& statistics, Element* input_gradient, bool adds,
                   const NormSums<Gradient>& sums, std::int64_t rows, std::int64_t columns,
                   const Workspace& workspace, cudaStream_t stream);

// Of an RMS norm; weight_gradient (columns; null: it is frozen) is overwritten, or added to.
template <class Element, class Gradient>
void rms_norm_backward(const Element* output_gradient, const Element* input, const Element* weight,
                       const RowStatistics& statistics, Element* input_gradient, bool adds,
                       Gradient* weight_gradient, bool overwrites, std::int64_t rows,
                       std::int64_t columns, const Workspace& workspace, cudaStream_t stream);

// Heads that a rotary embedding turns: a row (token) begins with q's heads, then k's, and rows are
// `stride` elements apart. Element j of the first half of a head and element j of its second half
// are turned by the angle of the row's token whose cosine and sine are in place j of the rows of
// `cosines` and `sines` (T, head_size / 2; device memory). The head size is a multiple of 8.
// Where documents have positions of their own: starts (rows), else null.
struct RotaryShape {
  std::int64_t sequences = 0, tokens = 0, q_heads = 0, k_heads = 0, head_size = 0;
  const float *cosines = nullptr, *sines = nullptr;
  const std::int32_t* starts = nullptr;
  std::int64_t rows() const { return sequences * tokens; }
  std::int64_t columns() const { return (q_heads + k_heads) * head_size; }
};
// x (rows, stride), in place: turned forward, or back, which is what the gradient is.
enum class Turn : std::uint8_t { forward, back };
template <class Element>
void rotate_heads(const RotaryShape& shape, Element* x, std::int64_t stride, Turn turn,
                  cudaStream_t stream);

// Each head of q and of k by RMS norm with a weight (head_size) of q's and one of k's, then turned.
// rstd of head h (k's after q's): at sequence * statistics.stride + h * T + token.
template <class Element>
struct HeadNorm {
  const Element *q_weight = nullptr, *k_weight = nullptr;
  RowStatistics statistics;
  float epsilon = 0;
};
// x (rows, stride) -> output (rows, columns()), which is null where parts leave it out.
template <class Element>
void head_norm_forward(const RotaryShape& shape, const HeadNorm<Element>& norm, const Element* x,
                       std::int64_t stride, Element* output, NormParts parts, cudaStream_t stream);
// gradient (rows, stride), in place: of the output, becomes of x (rows, stride). Weight gradients
// (head_size; null: they are frozen) are overwritten, or added to; the heads of q, or of k, share
// theirs.
template <class Element, class Gradient>
void head_norm_backward(const RotaryShape& shape, const HeadNorm<Element>& norm, const Element* x,
                        Element* gradient, std::int64_t stride, Gradient* q_weight_gradient,
                        Gradient* k_weight_gradient, bool overwrites, const Workspace& workspace,
                        cudaStream_t stream);

// sums (columns) = or += the sum of x (rows, columns) over rows: gradients of biases.
template <class Element, class Gradient>
void column_sums(const Element* x, Gradient* sums, bool overwrites, std::int64_t rows,
                 std::int64_t columns, const Workspace& workspace, cudaStream_t stream);

// GELU by its tanh approximation, as in GPT-2. n is a multiple of 8.
template <class Element>
void gelu_forward(const Element* x, Element* y, std::int64_t n, cudaStream_t stream);
// gradient (rows, columns) *= gelu'(x), in place; sums (columns) = or += its sum over rows: the
// gradient of the bias in x, null where it is frozen. y, unless null, = gelu(x), with
// gelu_forward's bits.
template <class Element, class Gradient>
void gelu_backward(const Element* x, Element* gradient, Element* y, Gradient* sums, bool overwrites,
                   std::int64_t rows, std::int64_t columns, const Workspace& workspace,
                   cudaStream_t stream);

// SwiGLU: product (rows, columns) = silu(gate) up with silu(x) = x / (1 + exp(-x)); a row of
// gate_up (rows, 2 columns) holds the gate, then up.
template <class Element>
void swiglu_forward(const Element* gate_up, Element* product, std::int64_t rows,
                    std::int64_t columns, cudaStream_t stream);
// gradient (rows, 2 columns): in, in the second half of each row, that of the product; out, that of
// gate_up. product (rows, columns), unless null, gets swiglu_forward's bits.
template <class Element>
void swiglu_backward(const Element* gate_up, Element* gradient, Element* product, std::int64_t rows,
                     std::int64_t columns, cudaStream_t stream);

// The rows of an input of adapters, for dropout (exec/cpu/dropout.hpp).
struct DropoutRows {
  Dropout dropout;
  const NoiseKey* step;   // in device memory
  int layer, group;       // AdaptedMatrix::group
  std::int64_t sequence;  // that the first row is of, in the step's batch
  std::int64_t tokens;    // rows of a sequence
};
// to (device) = host (pinned host memory).
void fetch_noise(const NoiseKey* host, NoiseKey* to, cudaStream_t stream);
// y (rows, columns) = what remains of x.
template <class Element>
void drop(const DropoutRows& at, const Element* x, Element* y, std::int64_t rows,
          std::int64_t columns, cudaStream_t stream);
// y (rows, columns), its rows y_stride elements apart, += what remains of x (rows, columns).
template <class Element>
void add_remaining(const DropoutRows& at, const Element* x, Element* y, std::int64_t y_stride,
                   std::int64_t rows, std::int64_t columns, cudaStream_t stream);

// Softmax cross entropy of logits (rows, stride), of which `vocabulary` columns count. In place:
// logits become scale (softmax - one-hot of the target), and zero in the columns beyond and in rows
// without a target (no_target). token_losses (rows): -log softmax[target], not scaled, or 0. scale
// (1; device memory).
template <class Element>
void cross_entropy(Element* logits, std::int64_t stride, std::int64_t vocabulary,
                   const std::int32_t* targets, const float* scale, double* token_losses,
                   std::int64_t rows, cudaStream_t stream);
// losses (sequences; pinned host or device memory) = sums of token_losses (sequences, T).
void sum_losses(const double* token_losses, double* losses, std::int64_t sequences, std::int64_t t,
                cudaStream_t stream);

// The sum of squares of gradient [+ second, added in fp32] over n elements, with the bits of
// CpuKernels::sum_of_squares: written to `result` (device or pinned host memory) and `report`
// (pinned host memory; may be null).
template <class Gradient>
void sum_of_squares(const Gradient* gradient, const Gradient* second, std::int64_t n,
                    double* result, double* report, const Workspace& workspace,
                    cudaStream_t stream);

// AdamW's constants (exec/cpu/kernels_cpu.hpp has the same on the host), and what clipping makes of
// the gradient.
struct AdamNumbers {
  float decay_factor, beta1, one_minus_beta1, beta2, one_minus_beta2, inverse_root_correction2,
      epsilon, step_size, gradient_factor;
  NoiseKey noise;     // of the step
  std::int32_t skip;  // not 0: the update is left out, parameters are written from the masters
};
enum class ClipKind : std::int32_t { off, global, layer };
struct ClipRule {
  ClipKind kind = ClipKind::off;
  bool skips_nonfinite = false;
  double limit = 0;
  std::int64_t left_out = -1;  // place among the norms of a unit that is frozen and has none
};
// `to` (device) = `from` (pinned host memory) with gradient_factor and skip as gradient_use() of
// exec/run/clipping.hpp finds them, bit for bit, from `norms` (count; device or pinned host memory;
// null where none are taken): the unit's own is norms[own].
void prepare_update(const AdamNumbers* from, const ClipRule& rule, const double* norms,
                    std::int64_t count, std::int64_t own, AdamNumbers* to, cudaStream_t stream);

// Which elements of a unit are what: outside of all ranges lies padding, written as zero.
struct UnitRanges {
  static constexpr int most = 16;
  struct Range {
    std::int64_t begin, end;
    bool decays;
  } range[most];
  int count = 0;
};
// AdamW on elements [first_element, first_element + elements) of a unit; pointers are to the first
// of these. Bit for bit what adamw_update_unit() of exec/cpu/adam.hpp makes of them (every
// operation rounded on its own). second may be null; Moment is float or bf16. The sum of squares of
// the gradient before the factor, in an order of its own, goes to `squares` (pinned host memory); 0
// when skipped.
template <class Gradient, class Element, class Moment>
void adamw(float* master, Moment* m, Moment* v, const Gradient* gradient, const Gradient* second,
           Element* parameters, std::int32_t unit, std::int64_t first_element,
           std::int64_t elements, const UnitRanges& ranges, const AdamNumbers* numbers,
           double* squares, const Workspace& workspace, cudaStream_t stream);

}  // namespace spillway::cuda
