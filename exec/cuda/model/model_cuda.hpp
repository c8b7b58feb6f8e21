// The arithmetic of a model on a CUDA GPU, in bf16 or fp32: embedding, layers, head and loss, and
// backward. What every architecture shares is here; GptCuda and LlamaCuda say what a layer and a
// norm are. The twin of exec/cpu/model_cpu.hpp, with the same formulas, layouts
// (policies/model/units.hpp, saved.hpp) and calls.
//
// b = micro_batch, T = sequence; activations are (b, T, C). Layers work on kernel batches of
// Workload::sequences_at_once sequences, which are one matrix of that many times T rows; the head
// on chunks of rows of the micro-batch. A gradient accumulator gets one addition per kernel batch
// (in the head, per chunk): the first of the first micro-batch overwrites it, padding and all else
// that nothing contributes to are zeroed. 16-bit accumulators are rounded at every addition, so
// they keep most where a kernel batch is the whole micro-batch.
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
#include <memory>
#include <optional>

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
struct ModelWorkspace {
  std::byte* matmul = nullptr;  // Matmul::workspace_bytes
  Workspace kernels;
  std::byte* bias_sums = nullptr;  // of a GPT: ffn elements, what gelu_backward_by() sums up
  float* rotary = nullptr;         // of a llama: cosines and sines, (T, head width / 2) each
  double* token_losses = nullptr;  // (b, T), of the latest head

  // Carves `memory`: model_workspace_bytes(problem) bytes, 256-byte aligned.
  static ModelWorkspace carve(const Problem& problem, std::byte* memory);
};
std::uint64_t model_workspace_bytes(const Problem& problem);

// The text of a micro-batch.
struct Text {
  const std::int32_t* tokens = nullptr;   // (b, T), for embed_forward and embed_backward
  const std::int32_t* targets = nullptr;  // (b, T), for head
  TokenOrder order;  // of tokens (exec/cuda/model/token_order.hpp), for embed_backward
};

// Element: float for Precision::fp32, bf16 for Precision::bf16. Gradients of parameters are of
// Problem::gradient_bytes() each.
template <class Element>
class ModelCuda {
 public:
  virtual ~ModelCuda() = default;

  // text.tokens -> output (b, T, C). `parameters`: the embedding unit.
  void embed_forward(const Element* parameters, const Text& text, Element* output);

  // input (b, T, C) -> output (b, T, C). The tensors of the mask `saves` are written to `saved`,
  // laid out by saved_layout. Scratch: forward_scratch_bytes(problem, saves). Either may be null if
  // it has no bytes.
  void layer_forward(const Element* parameters, const Element* input, Element* output,
                     std::byte* saved, SavedMask saves, std::byte* scratch);

  // Final norm, logits, loss. `parameters` and head_gradient: the head unit, of which head_gradient
  // gets the gradients of the norm and of the head's matrix. hidden (b, T, C): in, the last layer's
  // output; out, dL/d(hidden). losses (b; device or pinned host memory): the sum of the token
  // losses of each sequence, not scaled. Scratch: head_scratch_bytes.
  void head(const Element* parameters, const Text& text, Element* hidden, std::byte* head_gradient,
            bool first_micro_batch, double* losses, std::byte* scratch);

  // The logits of `rows` rows of hidden (at most head_rows()), as `head` computes them before it
  // turns them into gradients: (rows, logits_stride()), of which V columns count, in scratch.
  // Scratch: head_scratch_bytes.
  Element* logits(const Element* parameters, const Element* hidden, std::int64_t rows,
                  std::byte* scratch);

  // activation_gradient (b, T, C): in, dL/d(output); out, dL/d(input). Tensors of the mask
  // `available` (`saved` holds just these) are read, the others are recomputed from `input`.
  // `recomputes_output` also computes the layer's output again, into scratch: time, and nothing
  // else. Scratch: backward_scratch_bytes(problem, available).
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

 protected:
  // First elements of the tables in the embedding unit and of the head's matrix in the head unit.
  struct Tables {
    std::int64_t tokens = 0;
    std::optional<std::int64_t> positions;
    std::int64_t head = 0;
  };
  // `made_late`: the saved tensor that backward makes itself where nothing else needs it before.
  // Throws InputError unless the problem is of shapes that the kernels compute, MachineError when
  // CUDA's libraries cannot be set up.
  ModelCuda(const Problem& problem, const ModelWorkspace& workspace, cudaStream_t stream,
            AttentionKernels attention, const Tables& tables, SavedMask made_late);

  static constexpr std::size_t mask_bits = 8 * sizeof(SavedMask);
  // The saved tensors of a kernel batch, by bit number.
  using TensorAddresses = std::array<std::byte*, mask_bits>;
  template <class T = Element>
  static T* tensor(const TensorAddresses& at, SavedMask bit) {
    return reinterpret_cast<T*>(at[bit_of(bit)]);
  }
  // Where layer_backward keeps the gradients of a kernel batch of S sequences.
  struct GradientScratch {
    Element *wide, *narrow;  // (S T, max(fc width, qkv width)), (S T, max(C, A))
    float* dots;             // (S, NH, T)
  };
  // What a llama's and a GPT's layer do with the tensors of a kernel batch. Writes those that are
  // not in `available`, in order.
  virtual void compute_activations(const Element* parameters, const Element* input,
                                   SavedMask available, const TensorAddresses& at) = 0;
  // output (S T, C), from the layer's last tensors.
  virtual void compute_output(const Element* parameters, const TensorAddresses& at,
                              Element* output) = 0;
  // activation_gradient (S T, C): in, dL/d(output); out, dL/d(input). makes_late: what `made_late`
  // names is not there yet. The gradient is overwritten, or added to.
  virtual void backward_layer(const Element* parameters, const Element* input,
                              const TensorAddresses& at, bool makes_late,
                              Element* activation_gradient, std::byte* gradient, bool overwrites,
                              const GradientScratch& scratch) = 0;
  // The norm of the head unit: output (rows, C) of hidden; backward turns hidden into its gradient,
  // in place.
  virtual void final_norm(const Element* parameters, const Element* hidden,
                          const RowStatistics& statistics, Element* output, std::int64_t rows) = 0;
  virtual void final_norm_backward(const Element* parameters, const Element* norm_gradient,
                                   const RowStatistics& statistics, Element* hidden,
                                   std::byte* head_gradient, bool overwrites,
                                   std::int64_t rows) = 0;

  // Calls `call` with the gradient as what it holds.
  template <class Call>
  void with_gradient(std::byte* gradient, const Call& call) const {
    if constexpr (sizeof(Element) == sizeof(bf16)) {
      if (problem_.gradient_bytes() == sizeof(bf16)) return call(reinterpret_cast<bf16*>(gradient));
    }
    call(reinterpret_cast<float*>(gradient));
  }
  // Of a kernel batch.
  AttentionSizes attention_sizes() const;
  // Floats of a sequence in the tensor of statistics.
  std::int64_t statistics_stride() const { return statistics_width_ * t_; }

  const Problem problem_;
  const ModelWorkspace workspace_;
  const cudaStream_t stream_;
  Matmul matmul_;
  // Micro-batch, sequences at once, tokens, channels, feed-forward width.
  const std::int64_t b_, s_, t_, c_, f_;
  const float epsilon_;  // of all norms

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
  struct BackwardScratch {
    GradientScratch gradients;
    TensorAddresses recomputed;  // the tensors that are not available
  };

  static HeadShape head_shape(const Problem& problem, std::int64_t head_table);
  // Zeroes elements [begin, end).
  template <class Gradient>
  void zero(Gradient* gradient, std::int64_t begin, std::int64_t end) const {
    if (begin == end) return;
    SPILLWAY_CUDA(cudaMemsetAsync(
        gradient + begin, 0, static_cast<std::size_t>(end - begin) * sizeof(Gradient), stream_));
  }
  // Sets the addresses of the tensors of `mask`, from sequence `first` on, in a buffer of
  // `sequences` sequences laid out by saved_layout; leaves the others alone. Returns its bytes.
  std::uint64_t place(TensorAddresses& at, std::byte* buffer, SavedMask mask,
                      std::int64_t sequences, std::int64_t first) const;
  BackwardScratch carve_backward(std::byte* scratch, SavedMask available) const;
  HeadChunk carve_head(std::byte* scratch, std::int64_t rows) const;
  template <class Gradient>
  void head_chunk(const Element* parameters, const std::int32_t* targets, Element* hidden,
                  Gradient* head_gradient, bool overwrites, std::int64_t rows, double* token_losses,
                  std::byte* scratch);

  // Bytes that they take; of null, nothing is done.
  std::uint64_t rehearse_layer(std::byte* memory, bool adds);
  std::uint64_t rehearse_head(std::byte* memory, std::int64_t rows, bool adds);

  const AttentionKernels attention_;
  const Tables tables_;
  const SavedMask made_late_;
  const std::int64_t v_;  // vocabulary
  const HeadShape head_;
  std::int64_t statistics_width_ = 0;                    // floats per token
  std::array<std::uint64_t, mask_bits> tensor_bytes_{};  // of one sequence, by bit number
};

// The arithmetic of the problem's model. Throws as the constructors do.
template <class Element>
std::unique_ptr<ModelCuda<Element>> make_model_cuda(
    const Problem& problem, const ModelWorkspace& workspace, cudaStream_t stream,
    AttentionKernels attention = AttentionKernels::mma_sync,
    GeluBackward gelu_backward = GeluBackward::kernel);

}  // namespace spillway::cuda
