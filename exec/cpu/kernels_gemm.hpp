// The three matrix products of a linear layer y = x w^T + bias, and their strided form for
// attention heads, as OpenBLAS calls. All row-major fp32; w is (out, in).
#pragma once

#include <cblas.h>

#include <cstdint>

namespace spillway {

inline blasint blas_size(std::int64_t value) { return static_cast<blasint>(value); }

// A matrix inside a wider row-major one: rows are `stride` floats apart.
template <class Element>
struct Strided {
  Element* data;
  std::int64_t stride;
};

// c (m, n) = alpha a b + beta c, with a (m, k) or, transposed, (k, m); b (k, n) or, transposed, (n,
// k).
inline void gemm(CBLAS_TRANSPOSE transpose_a, CBLAS_TRANSPOSE transpose_b, std::int64_t m,
                 std::int64_t n, std::int64_t k, float alpha, Strided<const float> a,
                 Strided<const float> b, float beta, Strided<float> c) {
  cblas_sgemm(CblasRowMajor, transpose_a, transpose_b, blas_size(m), blas_size(n), blas_size(k),
              alpha, a.data, blas_size(a.stride), b.data, blas_size(b.stride), beta, c.data,
              blas_size(c.stride));
}

// y (rows, out) = x (rows, in) w^T.
inline void linear(const float* x, const float* w, float* y, std::int64_t rows, std::int64_t in,
                   std::int64_t out) {
  gemm(CblasNoTrans, CblasTrans, rows, out, in, 1.0f, {x, in}, {w, in}, 0.0f, {y, out});
}

// y (rows, out) += x (rows, in) w^T.
inline void linear_add(const float* x, const float* w, float* y, std::int64_t rows, std::int64_t in,
                       std::int64_t out) {
  gemm(CblasNoTrans, CblasTrans, rows, out, in, 1.0f, {x, in}, {w, in}, 1.0f, {y, out});
}

// x_gradient (rows, in) = y_gradient (rows, out) w.
inline void linear_input_gradient(const float* y_gradient, const float* w, float* x_gradient,
                                  std::int64_t rows, std::int64_t in, std::int64_t out) {
  gemm(CblasNoTrans, CblasNoTrans, rows, in, out, 1.0f, {y_gradient, out}, {w, in}, 0.0f,
       {x_gradient, in});
}

// w_gradient (out, in) += y_gradient (rows, out)^T x (rows, in).
inline void linear_weight_gradient(const float* y_gradient, const float* x, float* w_gradient,
                                   std::int64_t rows, std::int64_t in, std::int64_t out) {
  gemm(CblasTrans, CblasNoTrans, out, in, rows, 1.0f, {y_gradient, out}, {x, in}, 1.0f,
       {w_gradient, in});
}

}  // namespace spillway
