#include "exec/cuda/model/layer_products.hpp"

#include <algorithm>
#include <string>

#include "base/errors.hpp"

namespace spillway::cuda {

LayerProduct layer_product(const ModelSpec& model,
                           std::initializer_list<std::string_view> matrices) {
  const std::vector<TensorLayout> layout = unit_layout(model, 0);
  const std::vector<AdaptedMatrix> adapted = adapted_matrices(model);
  const auto tensor = [&](const std::string& name) {
    return std::find_if(layout.begin(), layout.end(),
                        [&](const TensorLayout& one) { return one.name == name; });
  };
  LayerProduct product;
  for (const std::string_view matrix : matrices) {
    const auto weight = tensor(std::string(matrix) + ".weight");
    const auto bias = tensor(std::string(matrix) + ".bias");
    SPILLWAY_ASSERT(weight != layout.end());
    if (product.out == 0) {
      product.in = weight->columns;
      product.weight = weight->offset;
      if (bias != layout.end()) product.bias = bias->offset;
    }
    SPILLWAY_ASSERT(weight->offset == product.weight + product.out * product.in);
    const auto one = std::find_if(adapted.begin(), adapted.end(), [&](const AdaptedMatrix& other) {
      return other.name == weight->name;
    });
    if (one != adapted.end()) {
      if (product.adapters.empty()) product.a = one->a;
      product.group = one->group;
      product.adapters.push_back({product.out, weight->rows, one->b});
    }
    product.out += weight->rows;
  }
  return product;
}

template <class Element>
LayerProducts<Element>::LayerProducts(const Problem& problem, Matmul& matmul,
                                      const NoiseKey* step_noise, cudaStream_t stream)
    : matmul_(matmul),
      step_noise_(step_noise),
      stream_(stream),
      rows_(problem.workload.sequences_at_once * problem.workload.sequence),
      tokens_(problem.workload.sequence),
      rank_(problem.model.lora_rank),
      trains_matrices_(!problem.model.has_adapters()),
      scale_(trains_matrices_ ? 0.0f : static_cast<float>(problem.model.lora_scale())),
      dropout_(problem.model.lora_dropout > 0
                   ? std::optional(dropout_of(problem.model.lora_dropout))
                   : std::nullopt) {}

template <class Element>
DropoutRows LayerProducts<Element>::dropout_rows(const LayerProduct& product,
                                                 const AdapterBatch<Element>& batch) const {
  return {*dropout_, step_noise_, batch.layer, product.group, batch.sequence, tokens_};
}

template <class Element>
const Element* LayerProducts<Element>::remaining_of(const LayerProduct& product,
                                                    const AdapterBatch<Element>& batch,
                                                    const Element* x) const {
  if (!dropout_ || !batch.drops) return x;
  drop<Element>(dropout_rows(product, batch), x, batch.input, rows_, product.in, stream_);
  return batch.input;
}

template <class Element>
void LayerProducts<Element>::forward(const LayerProduct& product, const Element* parameters,
                                     const AdapterBatch<Element>& batch, const Element* x,
                                     const Element* residual, Element* y) {
  const Element* const p = parameters;
  matmul_.linear<Element>(x, p + product.weight, product.bias ? p + *product.bias : nullptr,
                          residual, y, rows_, product.in, product.out, stream_);
  if (product.adapters.empty()) return;
  const std::int64_t ranks = ranks_of(product);
  matmul_.linear<Element>(remaining_of(product, batch, x), p + product.a, nullptr, nullptr,
                          batch.product, rows_, product.in, ranks, stream_);
  const Element* z = batch.product;
  for (const LayerProduct::Adapter& one : product.adapters) {
    matmul_.linear<Element>(
        z, p + one.b, nullptr, nullptr, y + one.column, rows_, rank_, one.rows, stream_,
        {.x_stride = ranks, .y_stride = product.out, .factor = scale_, .adds = true});
    z += rank_;
  }
}

template <class Element>
void LayerProducts<Element>::input_gradient(const LayerProduct& product, const Element* parameters,
                                            const AdapterBatch<Element>& batch,
                                            const Element* y_gradient, Element* x_gradient,
                                            std::int64_t x_stride) {
  const Element* const p = parameters;
  matmul_.input_gradient<Element>(y_gradient, p + product.weight, x_gradient, rows_, product.in,
                                  product.out, stream_, {.x_stride = x_stride});
  if (product.adapters.empty()) return;
  const std::int64_t ranks = ranks_of(product);
  Element* dz = batch.gradient;
  for (const LayerProduct::Adapter& one : product.adapters) {
    matmul_.input_gradient<Element>(y_gradient + one.column, p + one.b, dz, rows_, rank_, one.rows,
                                    stream_,
                                    {.x_stride = ranks, .y_stride = product.out, .factor = scale_});
    dz += rank_;
  }
  matmul_.input_gradient<Element>(
      batch.gradient, p + product.a, dropout_ ? batch.input : x_gradient, rows_, product.in, ranks,
      stream_, {.x_stride = dropout_ ? 0 : x_stride, .adds = !dropout_});
  if (!dropout_) return;
  SPILLWAY_ASSERT(batch.drops, "what is trained has dropout");
  add_remaining<Element>(dropout_rows(product, batch), batch.input, x_gradient,
                         x_stride != 0 ? x_stride : product.in, rows_, product.in, stream_);
}

template <class Element>
template <class Gradient>
void LayerProducts<Element>::weight_gradient(const LayerProduct& product, const Element* parameters,
                                             const AdapterBatch<Element>& batch,
                                             const Element* y_gradient, const Element* x,
                                             Gradient* gradient, bool overwrites) {
  if (trains_matrices_) {
    matmul_.weight_gradient<Element>(y_gradient, x, gradient + product.weight, rows_, product.in,
                                     product.out, stream_, {.adds = !overwrites});
  }
  if (product.adapters.empty()) return;
  const std::int64_t ranks = ranks_of(product);
  const Element* const remaining_x = remaining_of(product, batch, x);
  matmul_.linear<Element>(remaining_x, parameters + product.a, nullptr, nullptr, batch.product,
                          rows_, product.in, ranks, stream_);
  const Element* z = batch.product;
  for (const LayerProduct::Adapter& one : product.adapters) {
    matmul_.weight_gradient<Element>(
        y_gradient + one.column, z, gradient + one.b, rows_, rank_, one.rows, stream_,
        {.x_stride = ranks, .y_stride = product.out, .factor = scale_, .adds = !overwrites});
    z += rank_;
  }
  matmul_.weight_gradient<Element>(batch.gradient, remaining_x, gradient + product.a, rows_,
                                   product.in, ranks, stream_, {.adds = !overwrites});
}

template class LayerProducts<float>;
template class LayerProducts<bf16>;
#define SPILLWAY_LAYER_PRODUCTS(Element, Gradient)                                       \
  template void LayerProducts<Element>::weight_gradient(                                 \
      const LayerProduct&, const Element*, const AdapterBatch<Element>&, const Element*, \
      const Element*, Gradient*, bool);
SPILLWAY_LAYER_PRODUCTS(float, float)
SPILLWAY_LAYER_PRODUCTS(bf16, float)
SPILLWAY_LAYER_PRODUCTS(bf16, bf16)
#undef SPILLWAY_LAYER_PRODUCTS

}  // namespace spillway::cuda
