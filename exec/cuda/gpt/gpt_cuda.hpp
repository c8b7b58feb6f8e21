// What is particular to a GPT-2 on a CUDA GPU: the twin of exec/cpu/gpt_cpu.hpp.
#pragma once

#include "exec/cuda/model/model_cuda.hpp"

namespace spillway::cuda {

template <class Element>
class GptCuda final : public ModelCuda<Element> {
  using Base = ModelCuda<Element>;
  using typename Base::Activations;
  using typename Base::Backward;
  using typename Base::KernelBatch;
  using typename Base::Layer;

 public:
  // Throws InputError unless the problem is a GPT of shapes that the kernels compute, MachineError
  // when CUDA's libraries cannot be set up.
  GptCuda(const Problem& problem, const ModelWorkspace& workspace, cudaStream_t stream,
          AttentionKernels attention = AttentionKernels::mma_sync,
          GeluBackward gelu_backward = GeluBackward::kernel);

 private:
  static Layer layer(const ModelSpec& model);

  void activate(const Activations& a) override;
  void activate_backward(const KernelBatch& batch, const Backward& backward) override;

  using Base::matmul_, Base::products_, Base::layer_, Base::stream_, Base::workspace_;
  using Base::s_, Base::t_, Base::c_, Base::f_;
  const GeluBackward gelu_backward_;
};

}  // namespace spillway::cuda
