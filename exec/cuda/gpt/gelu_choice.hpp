// What computes the backward pass of GELU: our kernel after the product that makes its gradient, or
// that product's epilogue, in cuBLASLt.
//
//   kernel       dgelu = dy w, rounded; then a kernel makes dfc = dgelu gelu'(fc), the sums of
//                dfc's rows (the gradient of fc's bias, in fp32) and, where it is wanted, gelu(fc)
//   dgelu        dfc = (dy w) gelu'(fc) by CUBLASLT_EPILOGUE_DGELU, where dy w is never rounded;
//                our column_sums of dfc in fp32
//   dgelu_bgrad  CUBLASLT_EPILOGUE_DGELU_BGRAD also takes the sums, of which a group of sequences
//                makes one, rounded to the type of dfc
//
// They round in other places, so which it is decides the numbers of a training: it is a setting,
// never a measurement of the moment. `spillway calibrate` measures (GpuBench::gelu_backward) and
// writes the machine file's gpu.gelu_backward. Whether GELU's output was saved or is recomputed
// changes no bit under any of them: it is made of fc by the same arithmetic.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <string>

#include "exec/cuda/kernels/kernels.hpp"
#include "exec/cuda/matmul/matmul.hpp"

namespace spillway::cuda {

enum class GeluBackward : std::uint8_t { kernel, dgelu, dgelu_bgrad };

// "kernel", "dgelu", "dgelu-bgrad". The inverse throws InputError for other names.
const char* name_of(GeluBackward how);
GeluBackward gelu_backward_of(const std::string& name);

// The second half of the feed-forward network, y = gelu(fc) w^T with y (rows, c) and fc (rows, f).
template <class Element, class Gradient>
struct GeluBackwardOperands {
  const Element *dy, *w, *fc;
  Element* dfc;
  Element* gelu;      // = gelu(fc), where it is wanted; else null
  Gradient* fc_bias;  // = or += the sums of dfc over rows; null: they are not wanted
  bool overwrites;
  Element* sums;  // f elements of scratch
  std::int64_t rows, c, f;
};

// Enqueues it. Throws MachineError where cuBLASLt has no algorithm for the epilogue.
template <class Element, class Gradient>
void gelu_backward_by(GeluBackward how, Matmul& matmul,
                      const GeluBackwardOperands<Element, Gradient>& o, const Workspace& workspace,
                      cudaStream_t stream);

}  // namespace spillway::cuda
