// Matrix products by cuBLASLt: bf16 (or fp32, without TF32) operands, fp32 accumulation, bias,
// residual and GELU's slope fused into the product. Deterministic: one algorithm per shape, chosen
// once and kept, none that adds up by atomics.
//
// All matrices are row-major in device memory and dense unless a stride is given; weights are [out,
// in], as in policies/model/units.hpp, and dense.
//
// The first call of a shape chooses its algorithm: the one that was recorded for it (use), the best
// of several (tune), else what cuBLASLt's heuristics put first. Every later call allocates nothing,
// creates nothing, and may be captured into a CUDA graph. So: run a step once before capturing one.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <memory>

#include "exec/cuda/kernels/bf16.hpp"
#include "exec/cuda/matmul/matmul_choices.hpp"
#include "exec/cuda/matmul/matmul_tuning.hpp"

namespace spillway::cuda {

// How a product differs from the plain one of dense operands.
struct ProductForm {
  std::int64_t x_stride = 0, y_stride = 0;  // elements between rows of x and of y, and of their
                                            // gradients; 0: dense
  float factor = 1;                         // of the product of the two operands
  bool adds = false;                        // to what the result holds
};

class Matmul {
 public:
  // Bytes of workspace that algorithms may ask for.
  static constexpr std::size_t workspace_bytes = std::size_t{32} << 20;

  // `workspace`: workspace_bytes of device memory, used by calls on one stream at a time. Throws
  // MachineError when cuBLASLt cannot be set up.
  explicit Matmul(std::byte* workspace);
  ~Matmul();
  Matmul(const Matmul&) = delete;
  Matmul& operator=(const Matmul&) = delete;

  // y (rows, out) = x (rows, in) w^T [+ bias (out)] [+ residual (rows, out), not y, or what y
  // holds]. Calls throw MachineError, with the shape, when cuBLASLt refuses.
  template <class Element>
  void linear(const Element* x, const Element* w, const Element* bias, const Element* residual,
              Element* y, std::int64_t rows, std::int64_t in, std::int64_t out, cudaStream_t stream,
              const ProductForm& form = {});

  // x_gradient (rows, in) = y_gradient (rows, out) w.
  template <class Element>
  void input_gradient(const Element* y_gradient, const Element* w, Element* x_gradient,
                      std::int64_t rows, std::int64_t in, std::int64_t out, cudaStream_t stream,
                      const ProductForm& form = {});

  // w_gradient (out, in) = y_gradient (rows, out)^T x (rows, in).
  template <class Element, class Gradient>
  void weight_gradient(const Element* y_gradient, const Element* x, Gradient* w_gradient,
                       std::int64_t rows, std::int64_t in, std::int64_t out, cudaStream_t stream,
                       const ProductForm& form = {});

  // x_gradient (rows, in) = (y_gradient (rows, out) w) gelu'(z (rows, in)), GELU's slope taken by
  // cuBLASLt of the sums before they are rounded. z_sums (in), unless null, = the sums of
  // x_gradient over rows, as Element. Throws MachineError where cuBLASLt has no algorithm for it.
  template <class Element>
  void gelu_gradient(const Element* y_gradient, const Element* w, const Element* z,
                     Element* x_gradient, Element* z_sums, std::int64_t rows, std::int64_t in,
                     std::int64_t out, cudaStream_t stream);

  // Shapes that are met from now on get the algorithms that were recorded for them; null: no
  // longer. Throws RecordedAlgorithmsRefused when these are of another cuBLASLt or another kind of
  // GPU; a call throws it when there is none for its shape, or cuBLASLt refuses it.
  void use(const MatmulChoices* recorded);
  // Shapes that are met from now on are tuned, on the operands of the call that meets them, which
  // are written over. Null: no longer.
  void tune(MatmulTuning* tuning);
  // The algorithms of all shapes that have been met.
  MatmulChoices choices() const;

  // How many shapes have been met: it stays as it is once every call has been made.
  std::size_t shapes() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace spillway::cuda
