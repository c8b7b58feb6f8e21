#include "exec/cuda/gpt/gpt_cuda.hpp"

#include "exec/cpu/gpt_offsets.hpp"

namespace spillway::cuda {

template <class Element>
typename GptCuda<Element>::Layer GptCuda<Element>::layer(const ModelSpec& model) {
  const LayerOffsets offsets = layer_offsets(model);
  return {{offsets.norm1_weight, offsets.norm1_bias}, {offsets.norm2_weight, offsets.norm2_bias},
          layer_product(model, {"attn.c_attn"}),      layer_product(model, {"attn.c_proj"}),
          layer_product(model, {"mlp.c_fc"}),         layer_product(model, {"mlp.c_proj"})};
}

template <class Element>
GptCuda<Element>::GptCuda(const Problem& problem, const ModelWorkspace& workspace,
                          cudaStream_t stream, AttentionKernels attention,
                          GeluBackward gelu_backward)
    : Base(problem, workspace, stream, attention,
           {embedding_offsets(problem.model).token_table,
            embedding_offsets(problem.model).position_table,
            embedding_offsets(problem.model).token_table},
           layer(problem.model),
           {embedding_offsets(problem.model).norm_weight,
            embedding_offsets(problem.model).norm_bias}),
      gelu_backward_(gelu_backward) {}

template <class Element>
void GptCuda<Element>::activate(const Activations& a) {
  gelu_forward<Element>(a.up, a.activated, s_ * t_ * f_, stream_);
}

template <class Element>
void GptCuda<Element>::activate_backward(const KernelBatch& batch, const Backward& backward) {
  const Element* const p = batch.parameters;
  const Element *dy = backward.activation_gradient, *up = batch.at.up;
  Element* const dup = backward.to.up;
  Element* const gelu = backward.makes_activated ? batch.at.activated : nullptr;
  const std::int64_t rows = s_ * t_;
  this->with_gradient(backward, [&](auto* gradient) {
    auto* const bias = this->sum_at(backward, gradient, layer_.up.bias);
    if (!layer_.down.adapters.empty()) {
      // What adapters add to the gradient comes before GELU's slope.
      products_.input_gradient(layer_.down, p, batch.adapters, dy, dup);
      return gelu_backward<Element>(up, dup, gelu, bias, backward.overwrites, rows, f_,
                                    workspace_.kernels, stream_);
    }
    gelu_backward_by<Element, std::remove_pointer_t<decltype(gradient)>>(
        gelu_backward_, matmul_,
        {dy, p + layer_.down.weight, up, dup, gelu, bias, backward.overwrites,
         reinterpret_cast<Element*>(workspace_.bias_sums), rows, c_, f_},
        workspace_.kernels, stream_);
  });
}

template class GptCuda<float>;
template class GptCuda<bf16>;

}  // namespace spillway::cuda
