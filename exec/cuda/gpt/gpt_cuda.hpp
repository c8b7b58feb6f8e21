// The arithmetic of a GPT-2 on a CUDA GPU, in bf16 or fp32: forward, head and loss, backward. The
// twin of exec/cpu/gpt_cpu.hpp, with the same formulas, layouts (policies/model/units.hpp) and
// calls.
//
// b = micro_batch, T = sequence; activations are (b, T, C). Layers work on groups of
// Workload::sequences_at_once sequences, which are one matrix of that many times T rows; the head
// on chunks of rows of the micro-batch. A gradient accumulator gets one addition per group (in the
// head, per chunk): the first of the first micro-batch overwrites it, padding and all else that
// nothing contributes to are zeroed. 16-bit accumulators are rounded at every addition, so they
// keep most where a group is the whole micro-batch.
//
// Which activations are saved and which recomputed changes no bit: each tensor is computed in one
// way only, from stored tensors, by the same algorithm wherever it lies. rehearse() settles these
// algorithms before the first step.
//
// Pointers are to device memory unless said otherwise, buffers are the caller's, start on 256
// bytes, hold what the schedule planned, and do not overlap. Calls enqueue on the stream and
// return; after each call has been made once they allocate nothing and can be captured into a CUDA
// graph.
#pragma once

#include <cuda_runtime.h>

#include <array>
#include <cstddef>
#include <cstdint>

#include "exec/cpu/gpt_offsets.hpp"
#include "exec/cuda/attention/attention.hpp"
#include "exec/cuda/device/launch.hpp"
#include "exec/cuda/gpt/gelu_choice.hpp"
#include "exec/cuda/kernels/bf16.hpp"
#include "exec/cuda/kernels/kernels.hpp"
#include "exec/cuda/matmul/matmul.hpp"
#include "policies/model/saved.hpp"
#include "policies/model/scratch.hpp"
#include "policies/workload/problem.hpp"

namespace spillway::cuda {

// Device memory that calls need beyond what a schedule plans.
struct GptWorkspace {
  std::byte* matmul = nullptr;  // Matmul::workspace_bytes
  Workspace kernels;
  std::byte* bias_sums = nullptr;  // ffn elements: what gelu_backward_by() sums up
  double* token_losses = nullptr;  // (b, T), of the latest head

  // Carves `memory`: gpt_workspace_bytes(problem) bytes, 256-byte aligned.
  static GptWorkspace carve(const Problem& problem, std::byte* memory);
};
std::uint64_t gpt_workspace_bytes(const Problem& problem);

// The text of a micro-batch.
struct Text {
  const std::int32_t* tokens = nullptr;   // (b, T), for embed_forward and embed_backward
  const std::int32_t* targets = nullptr;  // (b, T), for head
  TokenOrder order;  // of tokens (exec/cuda/gpt/token_order.hpp), for embed_backward
};

// Element: float for Precision::fp32, bf16 for Precision::bf16. Gradients of parameters are of
// Problem::gradient_bytes() each.
template <class Element>
class GptCuda {
 public:
  // Throws InputError unless the problem is a GPT of shapes that the kernels compute, MachineError
  // when CUDA's libraries cannot be set up.
  GptCuda(const Problem& problem, const GptWorkspace& workspace, cudaStream_t stream,
          AttentionKernels attention = AttentionKernels::mma_sync,
          GeluBackward gelu_backward = GeluBackward::kernel);

  // text.tokens -> output (b, T, C). `parameters`: the embedding unit.
  void embed_forward(const Element* parameters, const Text& text, Element* output);

  // input (b, T, C) -> output (b, T, C). The tensors named in `saves` (a mask of gpt_saved) are
  // written to `saved`, laid out by saved_layout. Scratch: forward_scratch_bytes(problem, saves).
  // Either may be null if it has no bytes.
  void layer_forward(const Element* parameters, const Element* input, Element* output,
                     std::byte* saved, SavedMask saves, std::byte* scratch);

  // Final norm, logits, loss. hidden (b, T, C): in, the last layer's output; out, dL/d(hidden).
  // losses (b; device or pinned host memory): the sum of the token losses of each sequence, not
  // scaled. head_gradient, an embedding unit, gets the gradients of wte (as head) and of the norm.
  // Scratch: head_scratch_bytes.
  void head(const Element* parameters, const Text& text, Element* hidden, std::byte* head_gradient,
            bool first_micro_batch, double* losses, std::byte* scratch);

  // The logits of `rows` rows of hidden (at most head_rows()), as `head` computes them before it
  // turns them into gradients: (rows, logits_stride()), of which V columns count, in scratch.
  // Scratch: head_scratch_bytes.
  Element* logits(const Element* parameters, const Element* hidden, std::int64_t rows,
                  std::byte* scratch);

  // activation_gradient (b, T, C): in, dL/d(output); out, dL/d(input). Tensors named in `available`
  // (a mask of gpt_saved; `saved` holds just these) are read, the others are recomputed from
  // `input`. `recomputes_output` also computes the layer's output again, into scratch: time, and
  // nothing else. Scratch: backward_scratch_bytes(problem, available).
  void layer_backward(const Element* parameters, const Element* input, const std::byte* saved,
                      SavedMask available, bool recomputes_output, Element* activation_gradient,
                      std::byte* gradient, bool first_micro_batch, std::byte* scratch);

  // activation_gradient (b, T, C): dL/d(embed_forward's output). gradient: an embedding unit.
  void embed_backward(const Text& text, const Element* activation_gradient, std::byte* gradient,
                      bool first_micro_batch);

  // Rows of the head's chunks, and elements between rows of their logits.
  std::int64_t head_rows() const { return head_.rows; }
  std::int64_t logits_stride() const { return head_.stride; }
  // How many shapes of matrix products have been met (Matmul::shapes).
  std::size_t shapes() const { return matmul_.shapes(); }

  // Makes every matrix product that training makes once, so that none is met for the first time
  // later, in rehearsal_bytes() of memory of any contents, on 256 bytes. Waits for the stream. To
  // be used with matmul().use() or .tune().
  std::uint64_t rehearsal_bytes();
  void rehearse(std::byte* memory);
  Matmul& matmul() { return matmul_; }

 private:
  // How the head cuts a micro-batch.
  struct HeadShape {
    std::int64_t rows = 0;     // of a chunk
    std::int64_t stride = 0;   // elements of a row of logits, at least the vocabulary
    std::int64_t columns = 0;  // of these, how many the products compute
  };
  // Where the head keeps a chunk of rows.
  struct HeadChunk {
    Element *norm_output, *norm_gradient, *logits;  // (rows, C), (rows, C), (rows, stride)
    RowStatistics statistics;
  };
  // The activations inside a layer, of one group of sequences.
  struct Activations {
    Element *ln1, *qkv, *attention, *residual, *ln2, *fc, *gelu;
    RowStatistics norm1, norm2;
    float* log_sum_exp;
  };
  // Addresses of the tensors of a group, by bit number of gpt_saved.
  using TensorAddresses = std::array<std::byte*, gpt_saved::count>;
  // Where layer_backward keeps the gradients of a group of S sequences.
  struct BackwardScratch {
    Element *wide, *narrow;      // (S T, max(F, 3C)), (S T, C)
    float* dots;                 // (S, NH, T)
    TensorAddresses recomputed;  // the tensors that are not available
  };

  static HeadShape head_shape(const Problem& problem);
  // Calls `call` with the gradient as what it holds.
  template <class Call>
  void with_gradient(std::byte* gradient, const Call& call) const {
    if constexpr (sizeof(Element) == sizeof(bf16)) {
      if (problem_.gradient_bytes() == sizeof(bf16)) return call(reinterpret_cast<bf16*>(gradient));
    }
    call(reinterpret_cast<float*>(gradient));
  }
  // Zeroes elements [begin, end).
  template <class Gradient>
  void zero(Gradient* gradient, std::int64_t begin, std::int64_t end) const {
    if (begin == end) return;
    SPILLWAY_CUDA(cudaMemsetAsync(
        gradient + begin, 0, static_cast<std::size_t>(end - begin) * sizeof(Gradient), stream_));
  }
  Activations activations(const TensorAddresses& at) const;
  // Sets the addresses of the tensors of `mask`, from sequence `first` on, in a buffer of
  // `sequences` sequences laid out by saved_layout; leaves the others alone. Returns its bytes.
  std::uint64_t place(TensorAddresses& at, std::byte* buffer, SavedMask mask,
                      std::int64_t sequences, std::int64_t first) const;
  BackwardScratch carve_backward(std::byte* scratch, SavedMask available) const;
  AttentionSizes attention_sizes() const;
  // Computes those of a group's activations that are not in `available`, in order.
  void compute_activations(const Element* parameters, const Element* input, SavedMask available,
                           const Activations& a);
  void norm(const Element* input, const Element* weight, const Element* bias, Element* output,
            const RowStatistics& statistics, bool needs_statistics, bool needs_output);
  // output (S T, C) = residual + fcproj(gelu).
  void compute_output(const Element* parameters, const Activations& a, Element* output);
  template <class Gradient>
  void backward_feed_forward(const Element* parameters, const Activations& a, bool needs_gelu,
                             Element* activation_gradient, Gradient* gradient, bool overwrites,
                             const BackwardScratch& scratch);
  template <class Gradient>
  void backward_attention(const Element* parameters, const Element* input, const Activations& a,
                          Element* activation_gradient, Gradient* gradient, bool overwrites,
                          const BackwardScratch& scratch);
  HeadChunk carve_head(std::byte* scratch, std::int64_t rows) const;
  template <class Gradient>
  void head_chunk(const Element* parameters, const std::int32_t* targets, Element* hidden,
                  Gradient* head_gradient, bool overwrites, std::int64_t rows, double* token_losses,
                  std::byte* scratch);

  // Bytes that they take; of null, nothing is done.
  std::uint64_t rehearse_layer(std::byte* memory, bool adds);
  std::uint64_t rehearse_head(std::byte* memory, std::int64_t rows, bool adds);

  Problem problem_;
  GptWorkspace workspace_;
  cudaStream_t stream_;
  AttentionKernels attention_;
  GeluBackward gelu_backward_;
  Matmul matmul_;
  std::int64_t b_, s_, t_, c_, f_, v_, heads_;  // micro-batch, sequences at once, tokens, channels,
                                                // feed-forward width, vocabulary, heads
  LayerOffsets layer_;
  EmbeddingOffsets embedding_;
  HeadShape head_;
  std::array<std::uint64_t, gpt_saved::count>
      tensor_bytes_;  // of one sequence, by bit number of gpt_saved
};

}  // namespace spillway::cuda
