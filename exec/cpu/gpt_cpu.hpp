// A GPT-2 on the CPU:
//
//   x = wte[token] + wpe[position]
//   layer:  x + proj(attention(qkv(ln1(x)))), then  x + fcproj(gelu(fc(ln2(x))))
//   loss:   mean over the targets of a step that count of cross entropy of lnf(x) wte^T
//
// The head is tied.
#pragma once

#include "exec/cpu/gpt_offsets.hpp"
#include "exec/cpu/model_cpu.hpp"

namespace spillway {

class GptCpu final : public ModelCpu {
 public:
  GptCpu(const Problem& problem, CpuVariant variant, bool rounds);

 private:
  // The activations inside a layer, of one sequence.
  template <class Element>
  struct Activations {
    Element *ln1, *qkv, *attention, *residual, *ln2, *fc, *gelu;
    Element *mean1, *rstd1, *mean2, *rstd2, *log_sum_exp;
  };
  template <class Element, class Byte>
  Activations<Element> activations(const Addresses<Byte>& at) const;

  void compute_activations(const float* parameters, const float* input, SavedMask available,
                           const LayerTensors& tensors, float* scores) const override;
  void compute_feed_forward(const float* parameters, SavedMask available,
                            const LayerTensors& tensors) const;
  // output = residual + fcproj(gelu).
  void compute_output(const float* parameters, const LayerTensors& tensors,
                      float* output) const override;
  void backward_sequence(const float* parameters, const float* input, const LayerTensors& tensors,
                         float* activation_gradient, float* gradient,
                         const GradientScratch& scratch) const override;
  void weight_gradient_sequence(const float* input, const LayerTensors& tensors,
                                const GradientScratch& kept, float* gradient) const override;
  void backward_feed_forward(const float* parameters, const LayerTensors& tensors,
                             float* activation_gradient, float* gradient,
                             const GradientScratch& scratch) const;
  void backward_attention(const float* parameters, const float* input, const LayerTensors& tensors,
                          float* activation_gradient, float* gradient,
                          const GradientScratch& scratch) const;
  void final_norm(const float* parameters, const float* hidden, float* statistics, float* norm,
                  std::int64_t rows) const override;
  void final_norm_backward(const float* parameters, const float* norm_gradient,
                           const float* statistics, float* hidden, float* head_gradient,
                           std::int64_t rows) const override;

  LayerOffsets layer_;
  EmbeddingOffsets embedding_;
  LinearCpu qkv_, projection_, fc_, fc_projection_;
};

}  // namespace spillway
