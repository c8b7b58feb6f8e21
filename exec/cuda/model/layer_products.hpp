// The matrix products of a layer, and the low-rank adapters (LoRA) beside them where a model has
// these:
//
//   y = W x [+ bias] [+ residual],   y_i += scale B_i z_i   with   z = A drop(x)
//
// W is of one or several matrices with the same input, of which matrix i makes the columns y_i; A
// is of all of them that have adapters, so that one product makes z. Backward, with dz_i = scale
// dy_i B_i:
//
//   dx = dy W + drop(dz A),   dW = dy^T x where W is trained,   dB_i = scale dy_i^T z_i,
//   dA = dz^T drop(x)
//
// z and drop(x) are never saved: backward makes them again. A kernel batch of S sequences of T
// tokens is one matrix of S T rows.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string_view>
#include <vector>

#include "exec/cuda/kernels/kernels.hpp"
#include "exec/cuda/matmul/matmul.hpp"
#include "policies/model/units.hpp"
#include "policies/workload/problem.hpp"

namespace spillway::cuda {

struct LayerProduct {
  struct Adapter {
    std::int64_t column = 0, rows = 0;  // the first column of y, and how many
    std::int64_t b = 0;                 // first element in the unit of B (rows, rank)
  };
  std::int64_t in = 0, out = 0;  // columns of x and of y
  // First elements in the unit: of W (out, in), of the bias (out), of A (adapters x rank, in).
  std::int64_t weight = 0;
  std::optional<std::int64_t> bias;
  std::int64_t a = 0;
  std::vector<Adapter> adapters;
  int group = 0;  // AdaptedMatrix::group
};
// `matrices`: those with one input, in the order of their unit: "self_attn.q_proj", ..
LayerProduct layer_product(const ModelSpec& model,
                           std::initializer_list<std::string_view> matrices);

// What the adapters of a kernel batch need: scratch, and for dropout its place in the step.
template <class Element>
struct AdapterBatch {
  Element* input = nullptr;     // (S T, AdapterWidths::input), with dropout: drop(x)
  Element* product = nullptr;   // (S T, AdapterWidths::ranks): z
  Element* gradient = nullptr;  // the same in backward: dz
  int layer = 0;
  std::int64_t sequence = 0;  // the first, counted in the step's batch
  bool drops = true;          // with dropout: else all remains
};

template <class Element>
class LayerProducts {
 public:
  // `step_noise`: in device memory, the step's key when a call with dropout runs.
  LayerProducts(const Problem& problem, Matmul& matmul, const NoiseKey* step_noise,
                cudaStream_t stream);

  // x (S T, in) and residual (S T, out; or null) -> y (S T, out). `parameters`: the layer's unit.
  void forward(const LayerProduct& product, const Element* parameters,
               const AdapterBatch<Element>& batch, const Element* x, const Element* residual,
               Element* y);
  // y_gradient (S T, out) -> x_gradient (S T, in), with x_stride elements between its rows; 0: in.
  void input_gradient(const LayerProduct& product, const Element* parameters,
                      const AdapterBatch<Element>& batch, const Element* y_gradient,
                      Element* x_gradient, std::int64_t x_stride = 0);
  // Overwrites the gradients of W or of adapters in `gradient`, the layer's unit, or adds to them.
  // Where there are adapters: to be called after input_gradient, with no other product's in
  // between.
  template <class Gradient>
  void weight_gradient(const LayerProduct& product, const Element* parameters,
                       const AdapterBatch<Element>& batch, const Element* y_gradient,
                       const Element* x, Gradient* gradient, bool overwrites);

 private:
  // drop(x): x itself without dropout.
  const Element* remaining_of(const LayerProduct& product, const AdapterBatch<Element>& batch,
                              const Element* x) const;
  DropoutRows dropout_rows(const LayerProduct& product, const AdapterBatch<Element>& batch) const;
  // Columns of z.
  std::int64_t ranks_of(const LayerProduct& product) const {
    return static_cast<std::int64_t>(product.adapters.size()) * rank_;
  }

  Matmul& matmul_;
  const NoiseKey* const step_noise_;
  const cudaStream_t stream_;
  const std::int64_t rows_, tokens_, rank_;
  const bool trains_matrices_;
  const float scale_;
  const std::optional<Dropout> dropout_;
};

}  // namespace spillway::cuda
