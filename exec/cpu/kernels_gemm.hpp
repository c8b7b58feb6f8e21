// Matrix products as OpenBLAS calls: row-major, fp32.
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

}  // namespace spillway
