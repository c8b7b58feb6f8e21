// One problem of the emulated cuBLASLt: its descriptors, whether they go together, and doing it.
#pragma once

#include <cublasLt.h>

#include <cstddef>
#include <cstdint>

struct cublasLtMatrixLayoutOpaque_t {
  std::uint32_t type = CUDA_R_32F;
  std::int32_t order = CUBLASLT_ORDER_COL;
  std::uint64_t rows = 0, columns = 0;
  std::int64_t leading = 0;
  std::int32_t batches = 1;
  std::int64_t batch_offset = 0;
};

struct cublasLtMatmulDescOpaque_t {
  std::int32_t compute = CUBLAS_COMPUTE_32F, scale = CUDA_R_32F;
  std::int32_t pointer_mode = CUBLASLT_POINTER_MODE_HOST;
  std::int32_t transpose_a = CUBLAS_OP_N, transpose_b = CUBLAS_OP_N;
  std::uint32_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  void* bias = nullptr;
  std::int64_t bias_batch_stride = 0;
  void* auxiliary = nullptr;
  std::int64_t auxiliary_leading = 0;
  std::int32_t processors = 0;
  std::int8_t fast_accumulation = 0;
  std::int32_t bias_type = -1;
};

struct cublasLtMatmulPreferenceOpaque_t {
  std::uint32_t search_mode = 0;
  std::uint64_t workspace_bytes = 0;
  std::uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_MASK;
  std::uint32_t alignment_a = 256, alignment_b = 256, alignment_c = 256, alignment_d = 256;
  float waves = 0;
  std::uint64_t implementations = ~std::uint64_t{0};
};

namespace emulator {

using Layout = cublasLtMatrixLayoutOpaque_t;
using Descriptor = cublasLtMatmulDescOpaque_t;

struct Sizes {
  std::int64_t m, n, k;
};

// What the library says of these together; `sizes` when it takes them.
cublasStatus_t check_problem(const Descriptor& descriptor, const Layout& a, const Layout& b,
                             const Layout& c, const Layout& d, Sizes& sizes);
// A number for the problem, all but the pointers.
std::uint64_t fingerprint(const Descriptor& descriptor, const Layout& a, const Layout& b,
                          const Layout& c, const Layout& d);

bool has_bias(const Descriptor& descriptor);
bool has_auxiliary(const Descriptor& descriptor);
bool sums_inputs(const Descriptor& descriptor);
bool sums_result(const Descriptor& descriptor);  // over columns: the gradient of a bias

struct Product {
  Descriptor descriptor;
  Layout a, b, c, d;
  Sizes sizes;
  const void *a_data, *b_data, *c_data;
  void* d_data;
  float alpha, beta;
  const float *device_alpha, *device_beta;  // null: alpha and beta
  std::byte* workspace;
  std::size_t workspace_bytes;
  int algorithm;  // cublaslt_algorithm.hpp

  // Whether all matrices lie in memory that the device can reach.
  bool reachable() const;
  // The seed is written over the workspace, where it must last as long as this runs.
  void run(std::uint64_t seed) const;
  bool reads_c() const { return device_beta != nullptr || beta != 0; }

 private:
  Layout auxiliary() const;
  void run_batch(std::int64_t batch) const;
};

}  // namespace emulator
