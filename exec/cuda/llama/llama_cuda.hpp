// What is particular to a llama on a CUDA GPU: the twin of exec/cpu/llama_cpu.hpp.
#pragma once

#include "exec/cpu/llama_offsets.hpp"
#include "exec/cuda/model/model_cuda.hpp"

namespace spillway::cuda {

template <class Element>
class LlamaCuda final : public ModelCuda<Element> {
  using Base = ModelCuda<Element>;
  using typename Base::Activations;
  using typename Base::Backward;
  using typename Base::KernelBatch;
  using typename Base::Layer;

 public:
  // Throws InputError unless the problem is a llama of shapes that the kernels compute,
  // MachineError when CUDA's libraries cannot be set up. Waits for the stream.
  LlamaCuda(const Problem& problem, const ModelWorkspace& workspace, cudaStream_t stream,
            AttentionKernels attention = AttentionKernels::mma_sync);

 private:
  static Layer layer(const ModelSpec& model);
  HeadNorm<Element> head_norm(const KernelBatch& batch) const;
  RotaryShape rotary(const KernelBatch& batch) const;

  void activate(const Activations& a) override;
  void activate_backward(const KernelBatch& batch, const Backward& backward) override;
  // Queries and keys are normed, in some models, and turned.
  void prepare_heads(const KernelBatch& batch, SavedMask available) override;
  void prepare_heads_backward(const KernelBatch& batch, const Backward& backward) override;

  using Base::products_, Base::layer_, Base::problem_, Base::stream_, Base::workspace_;
  using Base::s_, Base::t_, Base::f_;
  const LlamaLayerOffsets offsets_;
  const RotaryShape rotary_;
};

}  // namespace spillway::cuda
