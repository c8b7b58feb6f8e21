// A model of the Llama family on the CPU (Llama, Mistral; Qwen2: biases of q, k, v; Qwen3: norms of
// each head's query and key):
//
//   x = embed_tokens[token]
//   layer:  r = x + o_proj(attention(rope(qkv(norm1(x))))),  y = r + down(silu(gate(h)) up(h)) with
//           h = norm2(r)
//   loss:   mean over the targets of a step that count of cross entropy of lm_head(norm(x))
//
// Norms are RMSNorm. Queries, keys and values are one product of A + 2 K rows, gate and up one of
// 2 F. The head's matrix is lm_head of the head unit or, tied, the token table.
#pragma once

#include <cstdint>

#include "exec/cpu/llama_offsets.hpp"
#include "exec/cpu/model_cpu.hpp"
#include "exec/cpu/rotary_table.hpp"

namespace spillway {

class LlamaCpu final : public ModelCpu {
 public:
  LlamaCpu(const Problem& problem, CpuVariant variant, bool rounds);

 private:
  // The activations inside a layer, of one sequence. query_key: normed and rotated, in rows of
  // query_stride and key_stride.
  template <class Element>
  struct Activations {
    Element *norm1, *qkv, *query_key, *attention, *residual, *norm2, *gate_up, *product;
    Element *rstd1, *rstd2, *log_sum_exp, *head_rstd;  // (T), (T), (NH, T), (T, NH + NKV)
  };
  template <class Element, class Byte>
  Activations<Element> activations(const Addresses<Byte>& at) const;
  QueryKeyValue<const float> attention_input(const Activations<const float>& a) const;

  void compute_activations(const float* parameters, const float* input, SavedMask available,
                           const LayerTensors& tensors, float* scores) const override;
  void compute_attention(const float* parameters, const float* input, SavedMask available,
                         const LayerTensors& tensors, float* scores) const;
  void compute_feed_forward(const float* parameters, SavedMask available,
                            const LayerTensors& tensors) const;
  // output = residual + down(product).
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

  void set_positions(std::int64_t positions) override {
    rotary_ = rotary_table(problem_.model, positions);
  }
  // Turns queries and keys (T, A + K) in rows of `stride`: forward, or backward; starts (T), or
  // null.
  void rotate(float* query_key, std::int64_t stride, float direction,
              const std::int32_t* starts) const;
  // The norm of each head's query and key: qkv -> query_key (T, A + K), and backward in place in
  // qkv_gradient; and the part of backward that is of the norms' weights.
  void norm_heads(const float* parameters, const float* qkv, const float* head_rstd,
                  float* query_key) const;
  void norm_heads_backward(const float* parameters, const Activations<const float>& a,
                           float* qkv_gradient, float* gradient) const;
  // query_key_gradient (T, A + K).
  void norm_heads_weight_gradient(const Activations<const float>& a,
                                  const float* query_key_gradient, float* gradient) const;

  LlamaLayerOffsets layer_;
  std::int64_t final_norm_;                   // first element in the head unit
  bool qk_norm_;                              //
  std::int64_t qkv_width_, query_key_width_;  // A + 2 K, A + K
  LinearCpu qkv_, projection_, gate_up_, down_;
  RotaryTable rotary_;
};

}  // namespace spillway
