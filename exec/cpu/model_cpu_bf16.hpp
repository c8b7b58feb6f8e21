// A model on the CPU that is kept in bf16: parameters, activations, what layers save, gradients of
// activations and, where Problem::gradient_bytes() says so, sums of gradients. The arithmetic is
// ModelCpu's, in fp32, on copies in the task's scratch (scratch.hpp counts them): a unit's
// parameters are widened once per call, activations sequence by sequence, and results are rounded
// to nearest even.
//
// Calls are those of ModelCpu, with the same promises: results do not depend on which activations
// are saved; nor, with fp32 sums of gradients, on how a batch is cut into micro-batches. A gradient
// that is kept in bf16 is added up in fp32 and rounded once: there is a single micro-batch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "exec/cpu/bf16.hpp"
#include "exec/cpu/model_cpu.hpp"

namespace spillway {

class ModelCpuBf16 {
 public:
  using Element = bf16;
  using Gradient = std::byte;  // fp32 or bf16

  explicit ModelCpuBf16(const Problem& problem, CpuVariant variant = best_cpu_variant());

  void embed_forward(const bf16* parameters, const std::int32_t* tokens, bf16* output,
                     const std::int32_t* starts = nullptr) const;
  void layer_forward(const bf16* parameters, const bf16* input, bf16* output, std::byte* saved,
                     SavedMask saves, std::byte* scratch, const DropoutPlace& dropout = {},
                     const std::int32_t* starts = nullptr) const;
  void head(const bf16* parameters, const std::int32_t* targets, bf16* hidden,
            std::byte* head_gradient, bool first_micro_batch, double* losses, std::byte* scratch,
            double* token_losses = nullptr, std::int64_t counted_tokens = 0,
            bool loss_only = false) const;
  void layer_backward(const bf16* parameters, const bf16* input, const std::byte* saved,
                      SavedMask available, bool recomputes_output, bf16* activation_gradient,
                      std::byte* gradient, bool first_micro_batch, std::byte* scratch,
                      const DropoutPlace& dropout = {}, const std::int32_t* starts = nullptr) const;
  void layer_input_gradient(const bf16* parameters, const bf16* input, const std::byte* saved,
                            SavedMask available, bool recomputes_output, bf16* activation_gradient,
                            std::byte* operands, std::byte* scratch,
                            const std::int32_t* starts = nullptr) const;
  void layer_weight_gradient(const bf16* input, const std::byte* saved, SavedMask available,
                             std::byte* operands, std::byte* gradient, bool first_micro_batch,
                             std::byte* scratch) const;
  // Scratch: embed_backward_scratch_bytes(problem); may be null if that is 0.
  void embed_backward(const std::int32_t* tokens, const bf16* activation_gradient,
                      std::byte* gradient, bool first_micro_batch, std::byte* scratch,
                      const std::int32_t* starts = nullptr) const;

  const CpuKernels& kernels() const { return model_->kernels(); }

 private:
  // Of what a layer may save, in the order of the mask's bits.
  struct Tensor {
    std::int64_t elements = 0;  // of one sequence
    bool fp32 = false;
  };
  class Parts;

  // A sequence of an activation (b, T, C).
  template <class Value>
  Value* sequence_of(Value* activation, std::int64_t sequence) const {
    return activation + sequence * t_ * c_;
  }
  const std::int32_t* starts_of(const std::int32_t* starts, std::int64_t sequence) const {
    return starts != nullptr ? starts + sequence * t_ : nullptr;
  }
  const float* widened(const bf16* parameters, std::int64_t elements, Parts& parts) const;
  // The fp32 sum of a gradient of so many elements: `gradient` itself or, where that is bf16,
  // memory for a sum that finish_sum() rounds.
  float* begin_sum(std::byte* gradient, bool first_micro_batch, std::int64_t elements,
                   Parts& parts) const;
  void finish_sum(const float* sum, std::byte* gradient, std::int64_t elements) const;
  // Calls move(tensor, its place in a buffer of what is kept of the micro-batch, its place in an
  // fp32 buffer of one sequence) for every tensor that both hold: the first one those of `kept`,
  // the fp32 buffer those of `copies`.
  template <class Move>
  void for_each_kept(SavedMask kept, SavedMask copies, std::int64_t sequence, Move move) const;
  // The tensors of a sequence from a buffer of the micro-batch, which holds `kept`, to an fp32
  // buffer of those of `copies`; and back.
  void widen_kept(const std::byte* buffer, SavedMask kept, SavedMask copies, std::int64_t sequence,
                  std::byte* tensors) const;
  void round_kept(const std::byte* tensors, SavedMask kept, SavedMask copies, std::int64_t sequence,
                  std::byte* buffer) const;
  std::uint64_t copies_bytes(SavedMask copies) const;
  // Where a sequence's gradients lie in a buffer of weight operands.
  OutputGradients output_gradients(std::byte* operands, SavedMask available,
                                   std::int64_t sequence) const;
  void add_embedding_gradients(const std::int32_t* tokens, const bf16* activation_gradient,
                               float* gradient, const std::int32_t* starts) const;
  void write_embedding_gradients(const std::int32_t* tokens, const bf16* activation_gradient,
                                 bf16* gradient, std::byte* scratch,
                                 const std::int32_t* starts) const;

  const Problem problem_;                        // as planned
  const std::unique_ptr<const ModelCpu> model_;  // of one sequence in fp32
  const std::int64_t b_, t_, c_;                 // sequences, tokens, channels
  const std::int64_t layer_elements_, head_elements_;
  // Of accumulators.
  const std::int64_t layer_trained_, embedding_trained_, head_trained_;
  const bool wide_gradient_;  // fp32, not bf16
  const SavedMask saved_all_, weights_need_;
  const std::array<std::int64_t, output_gradient_count> gradient_widths_;
  std::vector<Tensor> tensors_;
};

}  // namespace spillway
