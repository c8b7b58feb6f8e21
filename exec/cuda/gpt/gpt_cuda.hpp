// The layers of a GPT-2 on a CUDA GPU, and its norm: the twin of exec/cpu/gpt_cpu.hpp.
#pragma once

#include "exec/cpu/gpt_offsets.hpp"
#include "exec/cuda/model/model_cuda.hpp"

namespace spillway::cuda {

template <class Element>
class GptCuda final : public ModelCuda<Element> {
  using Base = ModelCuda<Element>;
  using typename Base::GradientScratch;
  using typename Base::Tables;
  using typename Base::TensorAddresses;

 public:
  // Throws InputError unless the problem is a GPT of shapes that the kernels compute, MachineError
  // when CUDA's libraries cannot be set up.
  GptCuda(const Problem& problem, const ModelWorkspace& workspace, cudaStream_t stream,
          AttentionKernels attention = AttentionKernels::mma_sync,
          GeluBackward gelu_backward = GeluBackward::kernel);

 private:
  // The activations inside a layer, of one kernel batch.
  struct Activations {
    Element *ln1, *qkv, *attention, *residual, *ln2, *fc, *gelu;
    RowStatistics norm1, norm2;
    float* log_sum_exp;
  };
  static Tables tables(const Problem& problem);
  Activations activations(const TensorAddresses& at) const;

  void compute_activations(const Element* parameters, const Element* input, SavedMask available,
                           const TensorAddresses& at) override;
  void compute_output(const Element* parameters, const TensorAddresses& at,
                      Element* output) override;
  void backward_layer(const Element* parameters, const Element* input, const TensorAddresses& at,
                      bool makes_gelu, Element* activation_gradient, std::byte* gradient,
                      bool overwrites, const GradientScratch& scratch) override;
  void final_norm(const Element* parameters, const Element* hidden, const RowStatistics& statistics,
                  Element* output, std::int64_t rows) override;
  void final_norm_backward(const Element* parameters, const Element* norm_gradient,
                           const RowStatistics& statistics, Element* hidden,
                           std::byte* head_gradient, bool overwrites, std::int64_t rows) override;

  void norm(const Element* input, const Element* weight, const Element* bias, Element* output,
            const RowStatistics& statistics, bool needs_statistics, bool needs_output);
  template <class Gradient>
  void backward_feed_forward(const Element* parameters, const Activations& a, bool makes_gelu,
                             Element* activation_gradient, Gradient* gradient, bool overwrites,
                             const GradientScratch& scratch);
  template <class Gradient>
  void backward_attention(const Element* parameters, const Element* input, const Activations& a,
                          Element* activation_gradient, Gradient* gradient, bool overwrites,
                          const GradientScratch& scratch);

  using Base::attention_sizes, Base::statistics_stride, Base::tensor, Base::with_gradient;
  using Base::matmul_, Base::stream_, Base::workspace_, Base::epsilon_;
  using Base::s_, Base::t_, Base::c_, Base::f_;
  const GeluBackward gelu_backward_;
  const LayerOffsets layer_;
  const EmbeddingOffsets embedding_;
};

}  // namespace spillway::cuda
