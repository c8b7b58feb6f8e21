// The arithmetic of a GPT-2 on the CPU, in fp32: forward, head and loss, backward.
//
//   x = wte[token] + wpe[position]
//   layer:  x + proj(attention(qkv(ln1(x)))), then  x + fcproj(gelu(fc(ln2(x))))
//   loss:   mean over the batch x T tokens of a step of cross entropy of lnf(x) wte^T   (tied head)
//
// Where tensors lie in the flat parameter, gradient and saved buffers is
// policies/model/gpt_layout.hpp. b = micro_batch, T = sequence; activations are (b, T, C).
//
// Every call works sequence by sequence in order, and a gradient accumulator gets one addition per
// sequence (in the head, per chunk of tokens): so results do not depend, to the last bit, on how a
// batch is cut into micro-batches, nor on which activations are saved and which recomputed.
// `first_micro_batch` zeroes the accumulator first, padding included.
//
// Calls are const, keep no state and allocate nothing (OpenBLAS maps its own packing buffer once
// per thread); different threads may use one object. All buffers are the caller's and do not
// overlap.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "exec/cpu/attention.hpp"
#include "exec/cpu/gpt_offsets.hpp"
#include "exec/cpu/kernels_cpu.hpp"
#include "policies/model/gpt_layout.hpp"
#include "policies/workload/problem.hpp"

namespace spillway {

class GptCpu {
 public:
  // Throws InputError unless the problem is a GPT in fp32; MachineError if this CPU lacks
  // `variant`. Sets OpenBLAS to one thread.
  explicit GptCpu(const Problem& problem, CpuVariant variant = best_cpu_variant());

  // tokens (b, T) -> output (b, T, C). `parameters`: the embedding unit.
  void embed_forward(const float* parameters, const std::int32_t* tokens, float* output) const;

  // input (b, T, C) -> output (b, T, C). The tensors named in `saves` (a mask of SavedTensor) are
  // written to `saved`, laid out by saved_layout; `saved` may be null if saves is 0.
  // Scratch: forward_scratch_bytes(problem, saves); may be null if that is 0.
  void layer_forward(const float* parameters, const float* input, float* output, std::byte* saved,
                     std::uint8_t saves, std::byte* scratch) const;

  // Final norm, logits, loss. hidden (b, T, C): in, the last layer's output; out, dL/d(hidden).
  // losses (b): the sum of the token losses of each sequence, not scaled; L = their sum over the
  // step / (batch T). head_gradient, an embedding unit, gets the gradients of wte (as head) and of
  // the norm. Scratch: head_scratch_bytes. token_losses: null, or (b, T) to be written.
  void head(const float* parameters, const std::int32_t* targets, float* hidden,
            float* head_gradient, bool first_micro_batch, double* losses, std::byte* scratch,
            double* token_losses = nullptr) const;

  // activation_gradient (b, T, C): in, dL/d(output); out, dL/d(input). Tensors named in `available`
  // (a mask of SavedTensor; `saved` holds just these) are read, the others are recomputed from
  // `input` one sequence at a time, with the same bits; `saved` may be null if available is 0.
  // `recomputes_output` also computes the layer's output again, into scratch: time that frameworks
  // which re-run the whole layer spend, and nothing else. Scratch: backward_scratch_bytes(problem,
  // available).
  void layer_backward(const float* parameters, const float* input, const std::byte* saved,
                      std::uint8_t available, bool recomputes_output, float* activation_gradient,
                      float* gradient, bool first_micro_batch, std::byte* scratch) const;

  // activation_gradient (b, T, C): dL/d(embed_forward's output). gradient: an embedding unit.
  void embed_backward(const std::int32_t* tokens, const float* activation_gradient, float* gradient,
                      bool first_micro_batch) const;

  const CpuKernels& kernels() const { return kernels_; }

 private:
  // The activations inside a layer, of one sequence.
  template <class Element>
  struct Activations {
    Element *ln1, *qkv, *attention, *residual, *ln2, *fc, *gelu;
    Element *mean1, *rstd1, *mean2, *rstd2, *log_sum_exp;
  };
  // Addresses of the saved tensors, by bit number of SavedTensor.
  template <class Byte>
  using TensorAddresses = std::array<Byte*, saved_tensor_count>;
  // Where layer_backward keeps the gradients of one sequence.
  struct BackwardScratch {
    float *wide, *narrow, *attention;       // (T, max(F, 3C)), (T, C), 2 (R, T)
    TensorAddresses<std::byte> recomputed;  // the tensors that are not available
  };

  template <class Element, class Byte>
  Activations<Element> activations(const TensorAddresses<Byte>& at) const;
  // One sequence of the tensors of `mask` in a buffer of `sequences` sequences laid out by
  // saved_layout; leaves the other addresses alone. Returns the bytes of the buffer.
  template <class Byte>
  std::uint64_t place(TensorAddresses<Byte>& at, Byte* buffer, std::uint8_t mask,
                      std::int64_t sequences, std::int64_t sequence) const;
  // Writes the activations not in `available`, in order, reading what came before from `read`.
  void compute_activations(const float* parameters, const float* input, std::uint8_t available,
                           const Activations<const float>& read, const Activations<float>& write,
                           float* scores) const;
  // output (T, C) = residual + fcproj(gelu).
  void compute_output(const float* parameters, const Activations<const float>& read,
                      float* output) const;
  BackwardScratch carve_backward(std::byte* scratch, std::uint8_t available) const;
  void backward_feed_forward(const float* parameters, const Activations<const float>& a,
                             float* activation_gradient, float* gradient,
                             const BackwardScratch& scratch) const;
  void backward_attention(const float* parameters, const float* input,
                          const Activations<const float>& a, float* activation_gradient,
                          float* gradient, const BackwardScratch& scratch) const;
  double head_chunk(const float* parameters, const std::int32_t* targets, float* hidden,
                    float* head_gradient, std::int64_t rows, double* token_losses,
                    std::byte* scratch) const;
  std::int32_t checked(std::int32_t token) const;

  Problem problem_;
  const CpuKernels& kernels_;
  std::int64_t b_, t_, c_, f_, v_;  // sequences, tokens, channels, feed-forward width, vocabulary
  AttentionShape attention_;
  LayerOffsets layer_;
  EmbeddingOffsets embedding_;
  std::int64_t layer_elements_, embedding_elements_;  // padded
  std::array<std::uint64_t, saved_tensor_count>
      tensor_bytes_;  // of one sequence, by bit number of SavedTensor
  std::array<std::uint64_t, saved_all + 1>
      scratch_bytes_{};  // of a backward pass, by what is saved
};

}  // namespace spillway
