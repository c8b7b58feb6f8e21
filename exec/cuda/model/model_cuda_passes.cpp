// A layer's backward in two passes (policies/model/weight_operands.hpp): the first runs the kernels
// of layer_backward but for the matrices' gradients, which the second makes by the same products.
//
// Biases and norms: a kernel that takes sums over tokens ends by adding up partial sums in fp32,
// and writes the result to the gradient or adds it. The first pass has it write to the operands, in
// fp32, and the second adds that to the gradient: the same numbers, rounded at the same place.
#include "base/errors.hpp"
#include "base/rounding.hpp"
#include "exec/cuda/kernels/partials.hpp"
#include "exec/cuda/model/model_cuda.hpp"

namespace spillway::cuda {

template <class Element>
typename ModelCuda<Element>::WeightOperands ModelCuda<Element>::carve_operands(
    std::byte* operands, SavedMask available) const {
  WeightOperands parts;
  std::byte* next = operands;
  const auto take = [&](std::uint64_t bytes) {
    std::byte* const part = next;
    next += round_up(bytes, buffer_alignment);
    return part;
  };
  parts.activations = take(saved_bytes(problem_, kept_for_weights(problem_, available)));
  const auto widths = output_gradient_widths(problem_);
  for (std::size_t i = 0; i < widths.size(); ++i) {
    const auto elements = static_cast<std::uint64_t>(b_ * t_ * widths[i]);
    if (elements > 0)
      parts.gradients[i] = reinterpret_cast<Element*>(take(elements * sizeof(Element)));
  }
  const auto sums = static_cast<std::uint64_t>((b_ / s_) * vector_elements(problem_.model));
  parts.sums = reinterpret_cast<float*>(take(sums * sizeof(float)));
  SPILLWAY_ASSERT(next == operands + weight_operand_bytes(problem_, available));
  return parts;
}

template <class Element>
typename ModelCuda<Element>::BatchGradients ModelCuda<Element>::kept_gradients(
    const WeightOperands& operands, std::int64_t first) const {
  const auto of = [&](OutputGradient which, std::int64_t width) {
    return operands.gradients[static_cast<std::size_t>(which)] + first * t_ * width;
  };
  BatchGradients gradients{};
  gradients.up = of(OutputGradient::up, layer_.up.out);
  gradients.qkv = of(OutputGradient::qkv, layer_.qkv.out);
  gradients.output = of(OutputGradient::output, c_);
  gradients.residual = of(OutputGradient::residual, c_);
  return gradients;
}

template <class Element>
float* ModelCuda<Element>::kept_sums(const WeightOperands& operands, std::int64_t first) const {
  return operands.sums + first / s_ * vector_elements(problem_.model);
}

template <class Element>
std::int64_t ModelCuda<Element>::place_among_vectors(std::int64_t offset) const {
  std::int64_t place = 0;
  for (const Vectors& one : vectors_) {
    if (offset >= one.begin && offset < one.begin + one.count) return place + offset - one.begin;
    place += one.count;
  }
  SPILLWAY_ASSERT(false, "a bias or a norm of the layer");
}

template <class Element>
void ModelCuda<Element>::keep(const Element* gradient, Element* to) const {
  if (to == nullptr) return;
  copy_activation<Element>(gradient, to, s_ * t_ * c_, stream_);
}

template <class Element>
void ModelCuda<Element>::layer_input_gradient(const Element* parameters, const Element* input,
                                              const std::byte* saved, SavedMask available,
                                              bool recomputes_output, Element* activation_gradient,
                                              std::byte* operands, std::byte* scratch,
                                              const StepPlace& place_in_step) {
  SPILLWAY_ASSERT(!problem_.model.has_adapters());
  backward_micro_batch(parameters, input, saved, available, recomputes_output, activation_gradient,
                       nullptr, true, carve_operands(operands, available), scratch, place_in_step);
}

template <class Element>
void ModelCuda<Element>::layer_weight_gradient(const std::byte* saved, SavedMask available,
                                               std::byte* operands, std::byte* gradient,
                                               bool first_micro_batch) {
  SPILLWAY_ASSERT(saved != nullptr || available == saved_none);
  const WeightOperands parts = carve_operands(operands, available);
  const auto of_unit = [&](auto* unit) {
    if (first_micro_batch) zero(unit, layer_end_, layer_elements_);
    for (std::int64_t first = 0; first < b_; first += s_) {
      TensorAddresses at{};
      place(at, parts.activations, kept_for_weights(problem_, available), b_, first);
      // What is available is only read.
      place(at, const_cast<std::byte*>(saved), available, b_, first);
      weight_gradients(activations(at), kept_gradients(parts, first), kept_sums(parts, first), unit,
                       first_micro_batch && first == 0);
    }
  };
  with_gradient(gradient, of_unit);
}

template <class Element>
template <class Gradient>
void ModelCuda<Element>::weight_gradients(const Activations& a, const BatchGradients& gradients,
                                          const float* sums, Gradient* unit, bool overwrites) {
  const auto matrix = [&](const LayerProduct& product, const Element* dy, const Element* x) {
    products_.weight_gradient(product, static_cast<const Element*>(nullptr), {}, dy, x, unit,
                              overwrites);
  };
  matrix(layer_.down, gradients.output, a.activated);
  matrix(layer_.up, gradients.up, a.norm2);
  matrix(layer_.projection, gradients.residual, a.attention);
  matrix(layer_.qkv, gradients.qkv, a.norm1);
  for (const Vectors& one : vectors_) {
    add_partials<Gradient>(sums, 1, {{unit + one.begin}, 1, one.count, overwrites}, stream_);
    sums += one.count;
  }
}

#define SPILLWAY_PASSES(Element)                                                                   \
  template std::int64_t ModelCuda<Element>::place_among_vectors(std::int64_t) const;               \
  template ModelCuda<Element>::BatchGradients ModelCuda<Element>::kept_gradients(                  \
      const WeightOperands&, std::int64_t) const;                                                  \
  template float* ModelCuda<Element>::kept_sums(const WeightOperands&, std::int64_t) const;        \
  template void ModelCuda<Element>::keep(const Element*, Element*) const;                          \
  template void ModelCuda<Element>::layer_input_gradient(                                          \
      const Element*, const Element*, const std::byte*, SavedMask, bool, Element*, std::byte*,     \
      std::byte*, const StepPlace&);                                                               \
  template void ModelCuda<Element>::layer_weight_gradient(const std::byte*, SavedMask, std::byte*, \
                                                          std::byte*, bool);
SPILLWAY_PASSES(float)
SPILLWAY_PASSES(bf16)
#undef SPILLWAY_PASSES

}  // namespace spillway::cuda
