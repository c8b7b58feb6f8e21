// The arithmetic of a model on the CPU, in fp32: embedding, layers, head and loss, and backward.
// What every architecture shares is here; GptCpu and LlamaCpu say what a layer and a norm are.
//
// Where the model is kept in bf16 (ModelCpuBf16), what a layer may save is rounded as soon as it is
// computed: the values that follow from it are then the same whether it is saved or recomputed.
//
// Where tensors lie in the flat parameter, gradient and saved buffers is policies/model/units.hpp
// and saved.hpp. b = micro_batch, T = sequence, C = hidden; activations are (b, T, C).
//
// Every call works sequence by sequence in order, and a gradient accumulator gets one addition per
// sequence (in the head, per chunk of tokens): so results do not depend, to the last bit, on how a
// batch is cut into micro-batches, nor on which activations are saved and which recomputed.
// `first_micro_batch` zeroes the accumulator first, padding included. Accumulators are of what is
// trained of a unit (trained_elements()).
//
// Calls are const, keep no state and allocate nothing (OpenBLAS maps its own packing buffer once
// per thread); different threads may use one object. All buffers are the caller's and do not
// overlap.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "exec/cpu/attention.hpp"
#include "exec/cpu/kernels_cpu.hpp"
#include "exec/cpu/linear_cpu.hpp"
#include "policies/model/saved.hpp"
#include "policies/model/units.hpp"
#include "policies/model/weight_operands.hpp"
#include "policies/workload/problem.hpp"

namespace spillway {

// Keys and values of a layer that the tokens to come of one sequence see: (positions, K) each.
struct KeyValueCache {
  float *keys, *values;
};

// Tokens of several sequences that go on: by row, those of a sequence in a row, ascending.
struct NextRows {
  std::span<const KeyValueCache> caches;
  std::span<const std::int32_t> starts;  // the row's number less its position in its sequence
  float* scores;                         // scratch: attention_chunk_rows x (highest position + 1)
};

// Where the gradients of what a layer's operators make lie, by OutputGradient: a micro-batch of
// each, or the sequence that is computed.
using OutputGradients = std::array<float*, output_gradient_count>;

class ModelCpu {
 public:
  using Element = float;   // of parameters and activations
  using Gradient = float;  // of what is added up
  virtual ~ModelCpu() = default;

  // Everywhere, starts (b, T): the index in its sequence of the first token of each token's
  // document (exec/data/batches.hpp); null: no borders.

  // tokens (b, T) -> output (b, T, C). `parameters`: the embedding unit.
  void embed_forward(const float* parameters, const std::int32_t* tokens, float* output,
                     const std::int32_t* starts = nullptr) const;

  // input (b, T, C) -> output (b, T, C). The tensors of the mask `saves` are written to `saved`,
  // laid out by saved_layout; `saved` may be null if saves is 0.
  // Scratch: forward_scratch_bytes(problem, saves); may be null if that is 0.
  // `dropout`: of the micro-batch's first sequence, the same for forward and backward.
  void layer_forward(const float* parameters, const float* input, float* output, std::byte* saved,
                     SavedMask saves, std::byte* scratch, const DropoutPlace& dropout = {},
                     const std::int32_t* starts = nullptr) const;

  // Of one more token of each of T sequences, or of the next T of one: input (T, C) -> output (T,
  // C), for a problem of one sequence. Their keys and values are added to the caches. Scratch:
  // forward_scratch_bytes(problem, saved_none).
  void layer_next(const float* parameters, const float* input, float* output, const NextRows& rows,
                  std::byte* scratch) const;
  // Positions of sequences that go on may be higher than T: they are to be known before.
  virtual void set_positions(std::int64_t /*positions*/) {}
  // Final norm and logits (rows, V) of hidden (rows, C). Scratch: rows (C + 2) floats.
  void logits(const float* parameters, const float* hidden, std::int64_t rows, float* logits,
              float* scratch) const;

  // Final norm, logits, loss. `parameters` and head_gradient: the head unit, of which head_gradient
  // gets the gradients of the norm and of the head's matrix; null where it is frozen. hidden (b, T,
  // C): in, the last layer's output; out, dL/d(hidden). losses (b): the sum of the token losses of
  // each sequence, not scaled; L = their sum over the step / counted_tokens, its targets that are
  // not no_target; 0: batch T. Scratch: head_scratch_bytes. token_losses: null, or (b, T) to be
  // written. loss_only: no gradient; hidden stays as it is.
  void head(const float* parameters, const std::int32_t* targets, float* hidden,
            float* head_gradient, bool first_micro_batch, double* losses, std::byte* scratch,
            double* token_losses = nullptr, std::int64_t counted_tokens = 0,
            bool loss_only = false) const;

  // activation_gradient (b, T, C): in, dL/d(output); out, dL/d(input). Tensors of the mask
  // `available` (`saved` holds just these) are read, the others are recomputed from `input` one
  // sequence at a time, with the same bits; `saved` may be null if available is 0.
  // `recomputes_output` also computes the layer's output again, into scratch: time that frameworks
  // which re-run the whole layer spend, and nothing else. Scratch: backward_scratch_bytes(problem,
  // available).
  void layer_backward(const float* parameters, const float* input, const std::byte* saved,
                      SavedMask available, bool recomputes_output, float* activation_gradient,
                      float* gradient, bool first_micro_batch, std::byte* scratch,
                      const DropoutPlace& dropout = {}, const std::int32_t* starts = nullptr) const;

  // layer_backward in two passes, of a model without adapters, with the same bits
  // (policies/model/weight_operands.hpp). The first makes dL/d(input) in activation_gradient, and
  // `operands`, weight_operand_bytes(problem, available); scratch: input_gradient_scratch_bytes.
  // The second adds to `gradient`.
  void layer_input_gradient(const float* parameters, const float* input, const std::byte* saved,
                            SavedMask available, bool recomputes_output, float* activation_gradient,
                            std::byte* operands, std::byte* scratch,
                            const std::int32_t* starts = nullptr) const;
  void layer_weight_gradient(const float* input, const std::byte* saved, SavedMask available,
                             std::byte* operands, float* gradient, bool first_micro_batch,
                             std::byte* scratch = nullptr) const;
  // The same with both parts of the operands apart: `kept` is laid out by saved_layout.
  void layer_input_gradient(const float* parameters, const float* input, const std::byte* saved,
                            SavedMask available, bool recomputes_output, float* activation_gradient,
                            std::byte* kept, const OutputGradients& gradients, std::byte* scratch,
                            const std::int32_t* starts) const;
  void layer_weight_gradient(const float* input, const std::byte* saved, SavedMask available,
                             const std::byte* kept, const OutputGradients& gradients,
                             float* gradient, bool first_micro_batch) const;

  // activation_gradient (b, T, C): dL/d(embed_forward's output). gradient: an embedding unit.
  // Needs no scratch.
  void embed_backward(const std::int32_t* tokens, const float* activation_gradient, float* gradient,
                      bool first_micro_batch, std::byte* scratch = nullptr,
                      const std::int32_t* starts = nullptr) const;

  const CpuKernels& kernels() const { return kernels_; }
  // First elements of the tables in the embedding unit and of the head's matrix in the head unit.
  struct Tables {
    std::int64_t tokens = 0;
    std::optional<std::int64_t> positions;
    std::int64_t head = 0;
  };
  const Tables& tables() const { return tables_; }
  // `token`, which must be one of the vocabulary.
  std::int32_t checked(std::int32_t token) const;
  // Of a token in its document.
  std::int64_t position_of(const std::int32_t* starts, std::int64_t row) const {
    return row % t_ - (starts != nullptr ? starts[row] : 0);
  }

 protected:
  // `score_space`: the saved tensor that a layer's forward writes after attention and where, until
  // then, attention's scores lie.
  ModelCpu(const Problem& problem, CpuVariant variant, bool rounds, const Tables& tables,
           SavedMask score_space);

  static constexpr std::size_t mask_bits = 8 * sizeof(SavedMask);
  // The saved tensors of one sequence, by bit number.
  template <class Byte>
  using Addresses = std::array<Byte*, mask_bits>;
  // All of them are read; those that are not available are written first. And what adapters need,
  // and the sequence's borders.
  struct LayerTensors {
    Addresses<const std::byte> read{};
    Addresses<std::byte> write{};
    AdapterSpace adapters;
    const std::int32_t* starts = nullptr;
    const NextRows* next = nullptr;  // of sequences that go on
  };
  // Attention of one sequence, or of those that go on.
  void attend(const LayerTensors& tensors, const QueryKeyValue<const float>& in, float* output,
              float* log_sum_exp, float* scores) const;
  AttentionShape attention_of(const LayerTensors& tensors) const {
    AttentionShape shape = attention_;
    shape.starts = tensors.starts;
    return shape;
  }
  template <class Element, class Byte>
  static Element* tensor(const Addresses<Byte>& at, SavedMask bit) {
    return reinterpret_cast<Element*>(at[bit_of(bit)]);
  }
  // For the gradients of one sequence. In a whole backward those of operators share memory, and
  // what lies in activation_gradient, or is overwritten in place, is not kept (null).
  struct GradientScratch {
    float *wide, *narrow, *attention;  // (T, max(fc width, A + 2 K)), (T, max(C, A)), 2 (R, T)
    OutputGradients of;
    float* operator[](OutputGradient which) const { return of[static_cast<std::size_t>(which)]; }
    // Copies (T, width), which changes next, to where it is kept.
    void keep(OutputGradient which, const float* from, std::int64_t elements) const {
      if (float* const to = (*this)[which]; to != nullptr) std::copy_n(from, elements, to);
    }
  };

  // Writes the tensors of one sequence that are not in `available`, in order. scores: (R, T).
  virtual void compute_activations(const float* parameters, const float* input, SavedMask available,
                                   const LayerTensors& tensors, float* scores) const = 0;
  // output (T, C), from the layer's last tensors.
  virtual void compute_output(const float* parameters, const LayerTensors& tensors,
                              float* output) const = 0;
  // activation_gradient (T, C): in, dL/d(output); out, dL/d(input). Adds to `gradient`.
  virtual void backward_sequence(const float* parameters, const float* input,
                                 const LayerTensors& tensors, float* activation_gradient,
                                 float* gradient, const GradientScratch& scratch) const = 0;
  // What it adds to `gradient`, of the gradients that it kept; they stay as they are.
  virtual void weight_gradient_sequence(const float* input, const LayerTensors& tensors,
                                        const GradientScratch& kept, float* gradient) const = 0;
  // To be called for every tensor of a layer that may be saved, but the statistics, as soon as it
  // has been computed for one sequence.
  void finish(float* tensor, std::int64_t width) const {
    if (rounds_) kernels_.round_in_place(tensor, t_ * width);
  }
  // Where the gradient of a tensor at `offset` goes that is no adapter's; null: it is not trained.
  float* base_gradient(float* gradient, std::int64_t offset) const {
    return gradient == nullptr || problem_.model.has_adapters() ? nullptr : gradient + offset;
  }
  // The norm of the head unit: norm (rows, C) of hidden, and two statistics per row for backward,
  // which turns norm_gradient into the gradient of `hidden`, in place of it.
  virtual void final_norm(const float* parameters, const float* hidden, float* statistics,
                          float* norm, std::int64_t rows) const = 0;
  virtual void final_norm_backward(const float* parameters, const float* norm_gradient,
                                   const float* statistics, float* hidden, float* head_gradient,
                                   std::int64_t rows) const = 0;

  const Problem problem_;
  const CpuKernels& kernels_;
  const bool rounds_;
  const std::int64_t b_, t_, c_, f_;  // sequences, tokens, channels, feed-forward width
  const AttentionShape attention_;
  const float epsilon_;  // of all norms

 private:
  // One sequence of the tensors of `mask` in a buffer of `sequences` sequences laid out by
  // saved_layout; leaves the other addresses alone. Returns the bytes of the buffer.
  template <class Byte>
  std::uint64_t place(Addresses<Byte>& at, Byte* buffer, SavedMask mask, std::int64_t sequences,
                      std::int64_t sequence) const;
  GradientScratch carve_gradients(float*& scratch) const;
  // A micro-batch of each, one after the other from `at` on; sequence `sequence` of each.
  OutputGradients output_gradients(std::byte* at) const;
  OutputGradients of_sequence(const OutputGradients& all, std::int64_t sequence) const;
  // Bytes of a buffer of a micro-batch of the tensors of `mask`.
  std::uint64_t buffer_bytes(SavedMask mask) const;
  AdapterSpace carve_adapters(float*& scratch, bool backward, const DropoutPlace& dropout) const;
  double head_chunk(const float* parameters, const std::int32_t* targets, float* hidden,
                    float* head_gradient, std::int64_t rows, double* token_losses,
                    std::byte* scratch, float scale, bool loss_only) const;
  SavedMask others(SavedMask mask) const { return static_cast<SavedMask>(saved_all_ & ~mask); }

  const Tables tables_;
  const LinearCpu head_;
  const AdapterWidths adapter_widths_;
  const SavedMask score_space_, saved_all_, weights_need_;
  const std::array<std::int64_t, output_gradient_count> gradient_widths_;
  std::int64_t layer_elements_, embedding_elements_, head_elements_;  // of accumulators
  std::array<std::uint64_t, mask_bits> tensor_bytes_{};               // of one sequence, by bit
  std::vector<std::uint64_t> scratch_bytes_;  // of a backward pass, by what is available
};

// The arithmetic of the problem's model; the problem is in fp32. `rounds`: what layers may save is
// rounded to bf16. Throws MachineError if this CPU lacks `variant`. Sets OpenBLAS to one thread.
std::unique_ptr<ModelCpu> make_model_cpu(const Problem& problem,
                                         CpuVariant variant = best_cpu_variant(),
                                         bool rounds = false);

}  // namespace spillway
