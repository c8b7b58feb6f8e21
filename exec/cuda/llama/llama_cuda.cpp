#include "exec/cuda/llama/llama_cuda.hpp"

#include "exec/cpu/rotary_table.hpp"
#include "exec/cuda/device/launch.hpp"

namespace spillway::cuda {

namespace {

// The cosines and sines of a sequence's positions, brought to `memory`; and the heads they turn.
RotaryShape rotary_shape(const Problem& problem, float* memory, cudaStream_t stream) {
  const ModelSpec& model = problem.model;
  const RotaryTable table = rotary_table(model, problem.workload.sequence);
  float* const sines = memory + table.cosines.size();
  const auto upload = [&](float* to, const std::vector<float>& from) {
    SPILLWAY_CUDA(cudaMemcpyAsync(to, from.data(), from.size() * sizeof(float),
                                  cudaMemcpyHostToDevice, stream));
  };
  upload(memory, table.cosines);
  upload(sines, table.sines);
  SPILLWAY_CUDA(cudaStreamSynchronize(stream));
  return {problem.workload.sequences_at_once,
          problem.workload.sequence,
          model.heads,
          model.kv_heads,
          model.width_of_head(),
          memory,
          sines};
}

}  // namespace

template <class Element>
typename LlamaCuda<Element>::Layer LlamaCuda<Element>::layer(const ModelSpec& model) {
  const LlamaLayerOffsets offsets = llama_layer_offsets(model);
  return {{offsets.norm1, {}},
          {offsets.norm2, {}},
          layer_product(model, {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"}),
          layer_product(model, {"self_attn.o_proj"}),
          layer_product(model, {"mlp.gate_proj", "mlp.up_proj"}),
          layer_product(model, {"mlp.down_proj"})};
}

template <class Element>
LlamaCuda<Element>::LlamaCuda(const Problem& problem, const ModelWorkspace& workspace,
                              cudaStream_t stream, AttentionKernels attention)
    : Base(problem, workspace, stream, attention,
           {llama_table_offsets(problem.model).token_table,
            {},
            llama_table_offsets(problem.model).head},
           layer(problem.model), {llama_table_offsets(problem.model).final_norm, {}}),
      offsets_(llama_layer_offsets(problem.model)),
      rotary_(rotary_shape(problem, workspace.rotary, stream)) {}

template <class Element>
HeadNorm<Element> LlamaCuda<Element>::head_norm(const KernelBatch& batch) const {
  return {batch.parameters + offsets_.query_norm, batch.parameters + offsets_.key_norm,
          batch.at.head_statistics, this->epsilon_};
}

template <class Element>
RotaryShape LlamaCuda<Element>::rotary(const KernelBatch& batch) const {
  RotaryShape shape = rotary_;
  shape.starts = batch.borders.starts;
  return shape;
}

template <class Element>
void LlamaCuda<Element>::prepare_heads(const KernelBatch& batch, SavedMask available) {
  const Activations& a = batch.at;
  const auto missing = [&](SavedMask bit) { return (available & bit) == 0; };
  if (!problem_.model.qk_norm) {
    if (missing(llama_saved::qkv))
      rotate_heads<Element>(rotary(batch), a.qkv, layer_.qkv.out, Turn::forward, stream_);
    return;
  }
  const bool statistics = missing(llama_saved::statistics), output = missing(llama_saved::rotated);
  if (!statistics && !output) return;
  head_norm_forward<Element>(rotary(batch), head_norm(batch), a.qkv, layer_.qkv.out, a.query_key,
                             parts_of(statistics, output), stream_);
}

template <class Element>
void LlamaCuda<Element>::prepare_heads_backward(const KernelBatch& batch,
                                                const Backward& backward) {
  Element* const dqkv = backward.to.qkv;
  if (!problem_.model.qk_norm)
    return rotate_heads<Element>(rotary(batch), dqkv, layer_.qkv.out, Turn::back, stream_);
  this->with_gradient(backward, [&](auto* gradient) {
    head_norm_backward<Element>(rotary(batch), head_norm(batch), batch.at.qkv, dqkv, layer_.qkv.out,
                                this->sum_at(backward, gradient, offsets_.query_norm),
                                this->sum_at(backward, gradient, offsets_.key_norm),
                                backward.overwrites, workspace_.kernels, stream_);
  });
}

template <class Element>
void LlamaCuda<Element>::activate(const Activations& a) {
  swiglu_forward<Element>(a.up, a.activated, s_ * t_, f_, stream_);
}

template <class Element>
void LlamaCuda<Element>::activate_backward(const KernelBatch& batch, const Backward& backward) {
  Element* const dup = backward.to.up;
  // The product's gradient, where up's will be.
  products_.input_gradient(layer_.down, batch.parameters, batch.adapters,
                           backward.activation_gradient, dup + f_, 2 * f_);
  swiglu_backward<Element>(batch.at.up, dup,
                           backward.makes_activated ? batch.at.activated : nullptr, s_ * t_, f_,
                           stream_);
}

template class LlamaCuda<float>;
template class LlamaCuda<bf16>;

}  // namespace spillway::cuda
