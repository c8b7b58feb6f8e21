// The layers of a llama on a CUDA GPU, and its norm: the twin of exec/cpu/llama_cpu.hpp.
#pragma once

#include "exec/cpu/llama_offsets.hpp"
#include "exec/cuda/model/model_cuda.hpp"

namespace spillway::cuda {

template <class Element>
class LlamaCuda final : public ModelCuda<Element> {
  using Base = ModelCuda<Element>;
  using typename Base::GradientScratch;
  using typename Base::Tables;
  using typename Base::TensorAddresses;

 public:
  // Throws InputError unless the problem is a llama of shapes that the kernels compute,
  // MachineError when CUDA's libraries cannot be set up. Waits for the stream.
  LlamaCuda(const Problem& problem, const ModelWorkspace& workspace, cudaStream_t stream,
            AttentionKernels attention = AttentionKernels::mma_sync);

 private:
  // The activations inside a layer, of one kernel batch. query_key: queries and keys as attention
  // reads them, in rows of query_key_stride_.
  struct Activations {
    Element *norm1, *qkv, *query_key, *attention, *residual, *norm2, *gate_up, *product;
    RowStatistics statistics1, statistics2, head_statistics;
    float* log_sum_exp;
  };
  static Tables tables(const Problem& problem);
  Activations activations(const TensorAddresses& at) const;
  AttentionInput<Element> attention_input(const Activations& a) const;
  HeadNorm<Element> head_norm(const Element* parameters, const Activations& a) const;

  void compute_activations(const Element* parameters, const Element* input, SavedMask available,
                           const TensorAddresses& at) override;
  void compute_output(const Element* parameters, const TensorAddresses& at,
                      Element* output) override;
  void backward_layer(const Element* parameters, const Element* input, const TensorAddresses& at,
                      bool makes_product, Element* activation_gradient, std::byte* gradient,
                      bool overwrites, const GradientScratch& scratch) override;
  void final_norm(const Element* parameters, const Element* hidden, const RowStatistics& statistics,
                  Element* output, std::int64_t rows) override;
  void final_norm_backward(const Element* parameters, const Element* norm_gradient,
                           const RowStatistics& statistics, Element* hidden,
                           std::byte* head_gradient, bool overwrites, std::int64_t rows) override;

  void norm(const Element* input, const Element* weight, Element* output,
            const RowStatistics& statistics, bool needs_statistics, bool needs_output);
  // qkv from norm1, and queries and keys normed and rotated.
  void compute_qkv(const Element* parameters, SavedMask available, const Activations& a);
  template <class Gradient>
  void backward_feed_forward(const Element* parameters, const Activations& a, bool makes_product,
                             Element* activation_gradient, Gradient* gradient, bool overwrites,
                             const GradientScratch& scratch);
  template <class Gradient>
  void backward_attention(const Element* parameters, const Element* input, const Activations& a,
                          Element* activation_gradient, Gradient* gradient, bool overwrites,
                          const GradientScratch& scratch);

  using Base::attention_sizes, Base::statistics_stride, Base::tensor, Base::with_gradient;
  using Base::matmul_, Base::problem_, Base::stream_, Base::workspace_, Base::epsilon_;
  using Base::s_, Base::t_, Base::c_, Base::f_;
  const LlamaLayerOffsets layer_;
  const std::int64_t final_norm_;  // first element in the head unit
  const bool qk_norm_;
  const std::int64_t attention_width_, qkv_width_, query_key_stride_;
  const RotaryShape rotary_;
};

}  // namespace spillway::cuda
