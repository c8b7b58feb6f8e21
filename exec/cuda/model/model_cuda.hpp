// The arithmetic of a model on a CUDA GPU, in bf16 or fp32: embedding, layers, head and loss, and
// backward. What every architecture shares is here; GptCuda and LlamaCuda say where a layer's
// tensors are, what its activation function is, and what is done to queries and keys. The twin of
// exec/cpu/model_cpu.hpp, with the same formulas, layouts (policies/model/units.hpp, saved.hpp) and
// calls.
//
// b = micro_batch, T = sequence; activations are (b, T, C). Layers work on kernel batches of
// Workload::sequences_at_once sequences, which are one matrix of that many times T rows; the head
// on chunks of rows of the micro-batch. A gradient accumulator gets one addition per kernel batch
// (in the head, per chunk): the first of the first micro-batch overwrites it, padding and all else
// that nothing contributes to are zeroed. 16-bit accumulators are rounded at every addition, so
// they keep most where a kernel batch is the whole micro-batch. Accumulators are of what is trained
// of a unit (trained_elements()); what is frozen has no gradient.
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
#include <vector>

#include "exec/cuda/attention/attention.hpp"
#include "exec/cuda/device/launch.hpp"
#include "exec/cuda/gpt/gelu_choice.hpp"
#include "exec/cuda/kernels/bf16.hpp"
#include "exec/cuda/kernels/kernels.hpp"
#include "exec/cuda/matmul/matmul.hpp"
#include "exec/cuda/model/layer_products.hpp"
#include "policies/model/saved.hpp"
#include "policies/model/scratch.hpp"
#include "policies/model/weight_operands.hpp"
#include "policies/workload/problem.hpp"

namespace spillway::cuda {

// Device memory that calls need beyond what a schedule plans.
struct ModelWorkspace {
  std::byte* matmul = nullptr;  // Matmul::workspace_bytes
  Workspace kernels;
  std::byte* bias_sums = nullptr;  // of a GPT: ffn elements, what gelu_backward_by() sums up
  float* rotary = nullptr;         // of a llama: cosines and sines, (T, head width / 2) each
  NoiseKey* step_noise = nullptr;  // of dropout, as the latest layer had it
  double* token_losses = nullptr;  // (b, T), of the latest head

  // Carves `memory`: model_workspace_bytes(problem) bytes, 256-byte aligned.
  static ModelWorkspace carve(const Problem& problem, std::byte* memory);
};
std::uint64_t model_workspace_bytes(const Problem& problem);

// The text of a micro-batch.
struct Text {
  const std::int32_t* tokens = nullptr;   // (b, T), for embed_forward and embed_backward
  const std::int32_t* targets = nullptr;  // (b, T), for head
  TokenOrder order;              // of tokens (exec/cuda/model/token_order.hpp), for embed_backward
  const float* scale = nullptr;  // (1), for head: 1 / the targets that count in the step
  // Where there are borders: (b, T), for embed_forward; not null for embed_backward.
  const std::int32_t* starts = nullptr;
};

// Which layer works on which micro-batch: what dropout's values depend on. And the borders of its
// documents, (b, T).
struct StepPlace {
  // The step's key (exec/cpu/dropout.hpp), in pinned host memory; null: nothing is dropped, as in
  // an evaluation.
  const NoiseKey* noise = nullptr;
  int layer = 0;
  std::int64_t sequence = 0;  // the micro-batch's first, counted in the step's batch
  AttentionBorders borders = {};
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
                     std::byte* saved, SavedMask saves, std::byte* scratch,
                     const StepPlace& place = {});

  // Final norm, logits, loss. `parameters` and head_gradient: the head unit, of which head_gradient
  // gets the gradients of the norm and of the head's matrix; null where the unit is frozen. hidden
  // (b, T, C): in, the last layer's output; out, dL/d(hidden). losses (b; device or pinned host
  // memory): the sum of the token losses of each sequence, not scaled. Scratch: head_scratch_bytes.
  // loss_only: no gradient; hidden stays as it is.
  void head(const Element* parameters, const Text& text, Element* hidden, std::byte* head_gradient,
            bool first_micro_batch, double* losses, std::byte* scratch, bool loss_only = false);

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
                      std::byte* gradient, bool first_micro_batch, std::byte* scratch,
                      const StepPlace& place = {});

  // layer_backward in two passes, of a model without adapters, with the same bits
  // (policies/model/weight_operands.hpp). The first makes dL/d(input) in activation_gradient, and
  // `operands`, weight_operand_bytes(problem, available); scratch: input_gradient_scratch_bytes.
  // The second reads `saved` and `operands`, and needs no scratch.
  void layer_input_gradient(const Element* parameters, const Element* input, const std::byte* saved,
                            SavedMask available, bool recomputes_output,
                            Element* activation_gradient, std::byte* operands, std::byte* scratch,
                            const StepPlace& place = {});
  void layer_weight_gradient(const std::byte* saved, SavedMask available, std::byte* operands,
                             std::byte* gradient, bool first_micro_batch);

  // activation_gradient (b, T, C): dL/d(embed_forward's output). gradient: an embedding unit.
  void embed_backward(const Text& text, const Element* activation_gradient, std::byte* gradient,
                      bool first_micro_batch);
  // The rest of it where there are borders and a table of positions: `positions` has the tokens'
  // positions in their documents for tokens, and their order.
  void embed_backward_positions(const Text& positions, const Element* activation_gradient,
                                std::byte* gradient);
  bool has_position_table() const { return tables_.positions.has_value(); }

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
  // First elements in its unit; without a bias it is an RMS norm.
  struct Norm {
    std::int64_t weight = 0;
    std::optional<std::int64_t> bias;
  };
  // r = x + projection(attention(qkv(norm1(x)))), y = r + down(activation(up(norm2(r)))).
  struct Layer {
    Norm norm1, norm2;
    LayerProduct qkv, projection, up, down;
  };
  // Throws InputError unless the problem is of shapes that the kernels compute, MachineError when
  // CUDA's libraries cannot be set up.
  ModelCuda(const Problem& problem, const ModelWorkspace& workspace, cudaStream_t stream,
            AttentionKernels attention, const Tables& tables, const Layer& layer,
            const Norm& final_norm);

  // The last of a layer's tensors, which backward makes itself where nothing else needs it before.
  static constexpr SavedMask saved_activated = llama_saved::product;
  // The tensors inside a layer, of one kernel batch. query_key: queries and keys as attention reads
  // them.
  struct Activations {
    Element *norm1, *qkv, *query_key, *attention, *residual, *norm2, *up, *activated;
    RowStatistics statistics1, statistics2, head_statistics;
    float* log_sum_exp;
  };
  // A kernel batch in a layer.
  struct KernelBatch {
    const Element *parameters, *input;
    Activations at;
    AdapterBatch<Element> adapters;
    AttentionBorders borders;
  };
  // Where a layer's backward writes the gradients of a kernel batch of S sequences.
  struct BatchGradients {
    Element *up, *qkv;  // (S T, fc width), (S T, qkv width); they may share memory
    Element* narrow;    // (S T, max(C, A))
    float* dots;        // (S, NH, T)
    // (S T, C) each: copies of activation_gradient as dL/d(output) and as dL/d(r), for the
    // gradients of the weights that a later pass makes; null in layer_backward.
    Element *output = nullptr, *residual = nullptr;
  };
  // A kernel batch's way back through a layer.
  struct Backward {
    Element* activation_gradient;  // (S T, C): in, dL/d(output); out, dL/d(input)
    std::byte* gradient;           // of the layer's unit: overwritten, or added to
    // Null, or in the first of two passes: the gradients of biases and norms overwrite these
    // vector_elements(), those of matrices are not made, and `gradient` is not used.
    float* sums;
    bool overwrites;
    bool makes_activated;  // Activations::activated is not there yet
    BatchGradients to;
  };
  // activated = the activation function of up, of a kernel batch.
  virtual void activate(const Activations& a) = 0;
  // backward.to.up = the gradient of up's output, from activation_gradient; and `activated` where
  // backward makes it.
  virtual void activate_backward(const KernelBatch& batch, const Backward& backward) = 0;
  // What is done to queries and keys before attention, given the tensors of `available`; and
  // backward, to the gradient of qkv in backward.to.qkv.
  virtual void prepare_heads(const KernelBatch&, SavedMask /*available*/) {}
  virtual void prepare_heads_backward(const KernelBatch&, const Backward&) {}

  // Calls `call` with the gradient as what it holds.
  template <class Call>
  void with_gradient(std::byte* gradient, const Call& call) const {
    if constexpr (sizeof(Element) == sizeof(bf16)) {
      if (problem_.gradient_bytes() == sizeof(bf16)) return call(reinterpret_cast<bf16*>(gradient));
    }
    call(reinterpret_cast<float*>(gradient));
  }
  // Calls `call` with the layer's gradient as what it holds, or with backward.sums.
  template <class Call>
  void with_gradient(const Backward& backward, const Call& call) const {
    if (backward.sums != nullptr) return call(backward.sums);
    with_gradient(backward.gradient, call);
  }
  // Where the gradient of a tensor that is no adapter's goes; null where it is frozen, or none.
  template <class Gradient>
  Gradient* sum_at(Gradient* gradient, std::optional<std::int64_t> offset) const {
    const bool frozen = gradient == nullptr || problem_.model.has_adapters();
    return frozen || !offset ? nullptr : gradient + *offset;
  }
  // Where the gradient of a bias or a norm of the layer goes; `gradient`: from with_gradient().
  template <class Gradient>
  Gradient* sum_at(const Backward& backward, Gradient* gradient,
                   std::optional<std::int64_t> offset) const {
    if (backward.sums != nullptr && offset) offset = place_among_vectors(*offset);
    return sum_at(gradient, offset);
  }

  const Problem problem_;
  const ModelWorkspace workspace_;
  const cudaStream_t stream_;
  Matmul matmul_;
  LayerProducts<Element> products_;
  const Layer layer_;
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
  static constexpr std::size_t mask_bits = 8 * sizeof(SavedMask);
  // The saved tensors of a kernel batch, by bit number.
  using TensorAddresses = std::array<std::byte*, mask_bits>;
  struct BackwardScratch {
    BatchGradients gradients;
    TensorAddresses recomputed;  // the tensors that are not available
    AdapterBatch<Element> adapters;
  };
  // Elements of the layer's unit that are biases or norms, and follow each other there.
  struct Vectors {
    std::int64_t begin = 0, count = 0;
  };
  // The parts of the buffer between a backward's two passes (weight_operands.hpp).
  struct WeightOperands {
    std::byte* activations = nullptr;
    std::array<Element*, output_gradient_count> gradients{};  // of a micro-batch
    float* sums = nullptr;                                    // (kernel batches, vector_elements())
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
  BackwardScratch carve_backward(std::byte* scratch, SavedMask available,
                                 const StepPlace& place) const;
  AdapterBatch<Element> carve_adapters(std::byte* scratch, const StepPlace& place) const;
  WeightOperands carve_operands(std::byte* operands, SavedMask available) const;
  // What is kept of a kernel batch whose first sequence is `first`.
  BatchGradients kept_gradients(const WeightOperands& operands, std::int64_t first) const;
  float* kept_sums(const WeightOperands& operands, std::int64_t first) const;
  // Of an element of the unit that is a bias's or a norm's, among vector_elements().
  std::int64_t place_among_vectors(std::int64_t offset) const;
  Activations activations(const TensorAddresses& at) const;
  // Brings the step's key to the GPU where there is dropout.
  void begin_layer(const StepPlace& place);

  // Writes the tensors that are not in `available`, in order.
  void compute_activations(const KernelBatch& batch, SavedMask available);
  // output (S T, C), from the layer's last tensors.
  void compute_output(const KernelBatch& batch, Element* output);
  // Through all kernel batches of a micro-batch: layer_backward, or the first of its two passes
  // where operands.sums is not null.
  void backward_micro_batch(const Element* parameters, const Element* input, const std::byte* saved,
                            SavedMask available, bool recomputes_output,
                            Element* activation_gradient, std::byte* gradient, bool overwrites,
                            const WeightOperands& operands, std::byte* scratch,
                            const StepPlace& place);
  void backward_layer(const KernelBatch& batch, const Backward& backward);
  template <class Gradient>
  void weight_gradient(const LayerProduct& product, const KernelBatch& batch,
                       const Backward& backward, const Element* y_gradient, const Element* x,
                       Gradient* gradient);
  template <class Gradient>
  void backward_feed_forward(const KernelBatch& batch, const Backward& backward,
                             Gradient* gradient);
  template <class Gradient>
  void backward_attention(const KernelBatch& batch, const Backward& backward, Gradient* gradient);
  // to (S T, C) = gradient, unless null.
  void keep(const Element* gradient, Element* to) const;
  // The second pass for a kernel batch, from what the first kept of it; `unit`, the layer's
  // gradient, is overwritten, or added to.
  template <class Gradient>
  void weight_gradients(const Activations& a, const BatchGradients& gradients, const float* sums,
                        Gradient* unit, bool overwrites);
  AttentionBorders borders_from(const AttentionBorders& borders, std::int64_t sequence) const;
  AttentionSizes attention_sizes(const KernelBatch& batch) const;
  AttentionInput<Element> attention_input(const Activations& a) const;

  void norm_forward(const Norm& norm, const Element* parameters, const Element* input,
                    const RowStatistics& statistics, Element* output, NormParts parts,
                    std::int64_t rows);
  // input_gradient = the gradient of `input`, or += . An RMS norm has no sums but the weight's.
  template <class Gradient>
  void norm_backward(const Norm& norm, const Element* parameters, const Element* output_gradient,
                     const Element* input, const RowStatistics& statistics, Element* input_gradient,
                     bool adds, const NormSums<Gradient>& sums, std::int64_t rows);
  HeadChunk carve_head(std::byte* scratch, std::int64_t rows) const;
  template <class Gradient>
  void head_chunk(const Element* parameters, const std::int32_t* targets, const float* scale,
                  Element* hidden, Gradient* head_gradient, bool overwrites, std::int64_t rows,
                  double* token_losses, bool loss_only, std::byte* scratch);

  // Bytes that they take; of null, nothing is done.
  std::uint64_t rehearse_layer(std::byte* memory, bool adds);
  std::uint64_t rehearse_head(std::byte* memory, std::int64_t rows, bool adds);

  const AttentionKernels attention_;
  const Tables tables_;
  const Norm final_norm_;
  const AdapterWidths adapter_widths_;
  const std::int64_t layer_end_, layer_elements_;  // of what is trained of a layer, padded
  std::vector<Vectors> vectors_;                   // of a layer, in order
  const std::int64_t v_;                           // vocabulary
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
