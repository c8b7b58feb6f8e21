// One matrix product as cuBLASLt is asked for it: descriptors, the algorithms it offers, and the
// call.
//
// cuBLASLt is column-major: a row-major (rows, columns) matrix is its (columns, rows) one with the
// same bytes, so every product is computed transposed, D = op(A) op(B):
//   linear           y^T  (out, rows) = w x^T:      A = w (in, out) transposed, B = x (in, rows)
//   input_gradient   dx^T (in, rows)  = w^T dy^T:   A = w (in, out),            B = dy (out, rows)
//   gelu_gradient    as input_gradient, times gelu'(z), z^T (in, rows)
//   weight_gradient  dw^T (in, out)   = x^T dy:     A = x (in, rows),  B = dy (out, rows)
//   transposed
#pragma once

#include <cublasLt.h>
#include <cuda_runtime.h>

#include <memory>
#include <type_traits>
#include <vector>

#include "exec/cuda/matmul/matmul_shape.hpp"

namespace spillway::cuda {

// Pointers to cuBLASLt's objects that free them.
template <class Handle, cublasStatus_t (*destroy)(Handle)>
struct DestroyCublas {
  void operator()(std::remove_pointer_t<Handle>* handle) const { destroy(handle); }
};
template <class Handle, cublasStatus_t (*destroy)(Handle)>
using OwnedCublas = std::unique_ptr<std::remove_pointer_t<Handle>, DestroyCublas<Handle, destroy>>;
using CublasLibrary = OwnedCublas<cublasLtHandle_t, cublasLtDestroy>;
using CublasOperation = OwnedCublas<cublasLtMatmulDesc_t, cublasLtMatmulDescDestroy>;
using CublasLayout = OwnedCublas<cublasLtMatrixLayout_t, cublasLtMatrixLayoutDestroy>;

// "CUBLAS_STATUS_NOT_SUPPORTED (...)".
std::string status_text(cublasStatus_t status);
// Throws MachineError, with the shape and the call, unless `status` is success.
void require_product(cublasStatus_t status, const char* call, const MatmulShape& shape);

class MatmulPlan {
 public:
  // `library` must outlive it. No algorithm is chosen yet. Throws MachineError when cuBLASLt
  // refuses.
  MatmulPlan(cublasLtHandle_t library, const MatmulProduct& product, std::size_t workspace_bytes);

  // What the heuristics offer for it, the first first: at most `most`, none where they have none.
  std::vector<cublasLtMatmulAlgo_t> candidates(int most) const;
  // Whether this device and this cuBLASLt compute the product by the algorithm, in the workspace
  // there is: success, or why not.
  cublasStatus_t check(const cublasLtMatmulAlgo_t& algorithm) const;

  void choose(const cublasLtMatmulAlgo_t& algorithm) { algorithm_ = algorithm; }
  const cublasLtMatmulAlgo_t& algorithm() const { return algorithm_; }
  // Enqueues the product by the algorithm chosen; the status of the call.
  cublasStatus_t run(const MatmulProduct& product, std::byte* workspace, cudaStream_t stream) const;

 private:
  cublasLtHandle_t library_;
  MatmulShape shape_;
  std::size_t workspace_bytes_;
  CublasOperation operation_;
  CublasLayout a_, b_, c_, d_;
  cublasLtMatmulAlgo_t algorithm_{};
};

// What an algorithm does, for people: "algorithm 66, tile 20, stages 36, split-K 4".
std::string describe(const cublasLtMatmulAlgo_t& algorithm);

}  // namespace spillway::cuda
