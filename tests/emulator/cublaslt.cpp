// cuBLASLt, as far as Spillway uses it. Stricter than the real one where that lets errors pass by
// luck: an algorithm is good for the problem and the alignment it was asked for, and a workspace
// that somebody else writes while a product runs fails the device.
#include <cublasLt.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "tests/emulator/calls.hpp"
#include "tests/emulator/cublaslt_algorithm.hpp"
#include "tests/emulator/cublaslt_product.hpp"
#include "tests/emulator/stream.hpp"

struct cublasLtContext {};

namespace emulator {
namespace {

constexpr std::size_t workspace_wanted = 64 * 1024, workspace_alignment = 256;
constexpr std::size_t auxiliary_alignment = 16;
constexpr int algorithm_not_there = 6;

template <class T>
cublasStatus_t set(T& field, const void* value, std::size_t bytes) {
  if (value == nullptr || bytes != sizeof field) return CUBLAS_STATUS_INVALID_VALUE;
  std::memcpy(&field, value, bytes);
  return CUBLAS_STATUS_SUCCESS;
}

// Counts the call; the status a test ordered, or that of the device.
cublasStatus_t enter_library(const char* name) {
  const cudaError_t error = enter(name);
  if (error == cudaSuccess) return CUBLAS_STATUS_SUCCESS;
  if (error == device_state()) return CUBLAS_STATUS_EXECUTION_FAILED;
  if (error == cudaErrorInsufficientDriver || error == cudaErrorNoDevice)
    return CUBLAS_STATUS_NOT_INITIALIZED;
  return static_cast<cublasStatus_t>(error);
}

bool aligned(const void* pointer, std::uint64_t bytes) {
  return reinterpret_cast<std::uintptr_t>(pointer) % bytes == 0;
}

}  // namespace
}  // namespace emulator

using namespace emulator;

const char* cublasLtGetStatusName(cublasStatus_t status) {
  switch (status) {
    case CUBLAS_STATUS_SUCCESS:
      return "CUBLAS_STATUS_SUCCESS";
    case CUBLAS_STATUS_NOT_INITIALIZED:
      return "CUBLAS_STATUS_NOT_INITIALIZED";
    case CUBLAS_STATUS_ALLOC_FAILED:
      return "CUBLAS_STATUS_ALLOC_FAILED";
    case CUBLAS_STATUS_INVALID_VALUE:
      return "CUBLAS_STATUS_INVALID_VALUE";
    case CUBLAS_STATUS_ARCH_MISMATCH:
      return "CUBLAS_STATUS_ARCH_MISMATCH";
    case CUBLAS_STATUS_MAPPING_ERROR:
      return "CUBLAS_STATUS_MAPPING_ERROR";
    case CUBLAS_STATUS_EXECUTION_FAILED:
      return "CUBLAS_STATUS_EXECUTION_FAILED";
    case CUBLAS_STATUS_INTERNAL_ERROR:
      return "CUBLAS_STATUS_INTERNAL_ERROR";
    case CUBLAS_STATUS_NOT_SUPPORTED:
      return "CUBLAS_STATUS_NOT_SUPPORTED";
    case CUBLAS_STATUS_LICENSE_ERROR:
      return "CUBLAS_STATUS_LICENSE_ERROR";
  }
  return "<unknown>";
}
const char* cublasLtGetStatusString(cublasStatus_t status) { return cublasLtGetStatusName(status); }
std::size_t cublasLtGetVersion() {
  // For tests of the whole program, which cannot ask the emulator.
  if (const char* const version = std::getenv("SPILLWAY_EMULATED_CUBLASLT"))
    return std::strtoull(version, nullptr, 10);
  return machine().cublaslt_version;
}

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  if (const cublasStatus_t status = enter_library("cublasLtCreate")) return status;
  if (handle == nullptr) return CUBLAS_STATUS_INVALID_VALUE;
  *handle = new cublasLtContext;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
  delete handle;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* layout, cudaDataType type,
                                          std::uint64_t rows, std::uint64_t columns,
                                          std::int64_t leading_dimension) {
  if (layout == nullptr) return CUBLAS_STATUS_INVALID_VALUE;
  *layout = new Layout;
  (*layout)->type = type;
  (*layout)->rows = rows;
  (*layout)->columns = columns;
  (*layout)->leading = leading_dimension;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
  delete layout;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t layout,
                                                cublasLtMatrixLayoutAttribute_t attribute,
                                                const void* value, std::size_t bytes) {
  if (layout == nullptr) return CUBLAS_STATUS_INVALID_VALUE;
  switch (attribute) {
    case CUBLASLT_MATRIX_LAYOUT_TYPE:
      return set(layout->type, value, bytes);
    case CUBLASLT_MATRIX_LAYOUT_ORDER:
      return set(layout->order, value, bytes);
    case CUBLASLT_MATRIX_LAYOUT_ROWS:
      return set(layout->rows, value, bytes);
    case CUBLASLT_MATRIX_LAYOUT_COLS:
      return set(layout->columns, value, bytes);
    case CUBLASLT_MATRIX_LAYOUT_LD:
      return set(layout->leading, value, bytes);
    case CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT:
      return set(layout->batches, value, bytes);
    case CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET:
      return set(layout->batch_offset, value, bytes);
  }
  return CUBLAS_STATUS_INVALID_VALUE;
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* descriptor,
                                        cublasComputeType_t compute, cudaDataType_t scale) {
  if (descriptor == nullptr) return CUBLAS_STATUS_INVALID_VALUE;
  *descriptor = new Descriptor;
  (*descriptor)->compute = compute;
  (*descriptor)->scale = scale;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t descriptor) {
  delete descriptor;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t descriptor,
                                              cublasLtMatmulDescAttributes_t attribute,
                                              const void* value, std::size_t bytes) {
  if (descriptor == nullptr) return CUBLAS_STATUS_INVALID_VALUE;
  Descriptor& d = *descriptor;
  switch (attribute) {
    case CUBLASLT_MATMUL_DESC_COMPUTE_TYPE:
      return set(d.compute, value, bytes);
    case CUBLASLT_MATMUL_DESC_SCALE_TYPE:
      return set(d.scale, value, bytes);
    case CUBLASLT_MATMUL_DESC_POINTER_MODE:
      return set(d.pointer_mode, value, bytes);
    case CUBLASLT_MATMUL_DESC_TRANSA:
      return set(d.transpose_a, value, bytes);
    case CUBLASLT_MATMUL_DESC_TRANSB:
      return set(d.transpose_b, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE:
      return set(d.epilogue, value, bytes);
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
      return set(d.bias, value, bytes);
    case CUBLASLT_MATMUL_DESC_BIAS_BATCH_STRIDE:
      return set(d.bias_batch_stride, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER:
      return set(d.auxiliary, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD:
      return set(d.auxiliary_leading, value, bytes);
    case CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET:
      return set(d.processors, value, bytes);
    case CUBLASLT_MATMUL_DESC_FAST_ACCUM:
      return set(d.fast_accumulation, value, bytes);
    case CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE:
      return set(d.bias_type, value, bytes);
  }
  return CUBLAS_STATUS_INVALID_VALUE;
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* preference) {
  if (preference == nullptr) return CUBLAS_STATUS_INVALID_VALUE;
  *preference = new cublasLtMatmulPreferenceOpaque_t;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
  delete preference;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t attribute,
                                                    const void* value, std::size_t bytes) {
  if (preference == nullptr) return CUBLAS_STATUS_INVALID_VALUE;
  auto& p = *preference;
  switch (attribute) {
    case CUBLASLT_MATMUL_PREF_SEARCH_MODE:
      return set(p.search_mode, value, bytes);
    case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES:
      return set(p.workspace_bytes, value, bytes);
    case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK:
      return set(p.reductions, value, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES:
      return set(p.alignment_a, value, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES:
      return set(p.alignment_b, value, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES:
      return set(p.alignment_c, value, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES:
      return set(p.alignment_d, value, bytes);
    case CUBLASLT_MATMUL_PREF_MAX_WAVES_COUNT:
      return set(p.waves, value, bytes);
    case CUBLASLT_MATMUL_PREF_IMPL_MASK:
      return set(p.implementations, value, bytes);
  }
  return CUBLAS_STATUS_INVALID_VALUE;
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle,
                                              cublasLtMatmulDesc_t descriptor,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int requested,
                                              cublasLtMatmulHeuristicResult_t results[],
                                              int* returned) {
  if (const cublasStatus_t status = enter_library("cublasLtMatmulAlgoGetHeuristic")) return status;
  for (const void* needed :
       {static_cast<const void*>(handle), static_cast<const void*>(descriptor),
        static_cast<const void*>(a), static_cast<const void*>(b), static_cast<const void*>(c),
        static_cast<const void*>(d), static_cast<const void*>(preference),
        static_cast<const void*>(results), static_cast<const void*>(returned)})
    if (needed == nullptr) return CUBLAS_STATUS_INVALID_VALUE;
  if (requested <= 0) return CUBLAS_STATUS_INVALID_VALUE;
  *returned = 0;
  Sizes sizes{};
  if (const cublasStatus_t status = check_problem(*descriptor, *a, *b, *c, *d, sizes))
    return status;
  for (int algorithm = 0; algorithm < algorithm_count && *returned < requested; ++algorithm) {
    if (!offered(algorithm, sizes.k, preference->reductions)) continue;
    cublasLtMatmulHeuristicResult_t& result = results[(*returned)++];
    result = {};
    result.workspaceSize = std::min<std::size_t>(preference->workspace_bytes, workspace_wanted);
    // One that the real library may list and not have.
    result.state =
        algorithm == algorithm_not_there ? CUBLAS_STATUS_NOT_SUPPORTED : CUBLAS_STATUS_SUCCESS;
    result.wavesCount = 1;
    result.algo.data[problem_slot] = fingerprint(*descriptor, *a, *b, *c, *d);
    result.algo.data[workspace_slot] = result.workspaceSize;
    result.algo.data[alignment_a] = preference->alignment_a;
    result.algo.data[alignment_b] = preference->alignment_b;
    result.algo.data[alignment_c] = preference->alignment_c;
    result.algo.data[alignment_d] = preference->alignment_d;
    result.algo.data[number_slot] = static_cast<std::uint64_t>(algorithm);
  }
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t handle, cublasLtMatmulDesc_t descriptor,
                                       cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                       cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                       const cublasLtMatmulAlgo_t* algorithm,
                                       cublasLtMatmulHeuristicResult_t* result) {
  if (const cublasStatus_t status = enter_library("cublasLtMatmulAlgoCheck")) return status;
  for (const void* needed : {static_cast<const void*>(handle), static_cast<const void*>(descriptor),
                             static_cast<const void*>(a), static_cast<const void*>(b),
                             static_cast<const void*>(c), static_cast<const void*>(d),
                             static_cast<const void*>(algorithm), static_cast<const void*>(result)})
    if (needed == nullptr) return CUBLAS_STATUS_INVALID_VALUE;
  Sizes sizes{};
  if (const cublasStatus_t status = check_problem(*descriptor, *a, *b, *c, *d, sizes))
    return status;
  if (algorithm->data[problem_slot] != fingerprint(*descriptor, *a, *b, *c, *d))
    return CUBLAS_STATUS_INVALID_VALUE;
  if (algorithm->data[number_slot] >= algorithm_count) return CUBLAS_STATUS_NOT_SUPPORTED;
  result->workspaceSize = algorithm->data[workspace_slot];  // algo stays as it is
  result->state = CUBLAS_STATUS_SUCCESS;
  result->wavesCount = 1;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoConfigGetAttribute(const cublasLtMatmulAlgo_t* algorithm,
                                                    cublasLtMatmulAlgoConfigAttributes_t attribute,
                                                    void* value, std::size_t bytes,
                                                    std::size_t* written) {
  if (algorithm == nullptr || value == nullptr) return CUBLAS_STATUS_INVALID_VALUE;
  const auto algorithm_number = static_cast<int>(algorithm->data[number_slot]);
  const std::uint32_t number = attribute == CUBLASLT_ALGO_CONFIG_ID
                                   ? static_cast<std::uint32_t>(algorithm_number)
                               : attribute == CUBLASLT_ALGO_CONFIG_SPLITK_NUM
                                   ? static_cast<std::uint32_t>(order_of(algorithm_number).parts)
                                   : 0;
  if (bytes < sizeof number) return CUBLAS_STATUS_INVALID_VALUE;
  std::memcpy(value, &number, sizeof number);
  if (written != nullptr) *written = sizeof number;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t descriptor,
                              const void* alpha, const void* a, cublasLtMatrixLayout_t a_layout,
                              const void* b, cublasLtMatrixLayout_t b_layout, const void* beta,
                              const void* c, cublasLtMatrixLayout_t c_layout, void* d,
                              cublasLtMatrixLayout_t d_layout,
                              const cublasLtMatmulAlgo_t* algorithm, void* workspace,
                              std::size_t workspace_bytes, cudaStream_t stream) {
  if (const cublasStatus_t status = enter_library("cublasLtMatmul")) return status;
  if (handle == nullptr || descriptor == nullptr || alpha == nullptr || beta == nullptr ||
      a == nullptr || b == nullptr || d == nullptr || a_layout == nullptr || b_layout == nullptr ||
      c_layout == nullptr || d_layout == nullptr)
    return CUBLAS_STATUS_INVALID_VALUE;
  CUstream_st* const on = find_stream(stream);
  if (on == nullptr) return CUBLAS_STATUS_INVALID_VALUE;
  Product product{};
  product.descriptor = *descriptor;
  product.a = *a_layout;
  product.b = *b_layout;
  product.c = *c_layout;
  product.d = *d_layout;
  if (const cublasStatus_t status =
          check_problem(*descriptor, product.a, product.b, product.c, product.d, product.sizes))
    return status;
  product.a_data = a;
  product.b_data = b;
  product.c_data = c;
  product.d_data = d;
  if (descriptor->pointer_mode == CUBLASLT_POINTER_MODE_HOST) {
    product.alpha = *static_cast<const float*>(alpha);
    product.beta = *static_cast<const float*>(beta);
  } else if (descriptor->pointer_mode == CUBLASLT_POINTER_MODE_DEVICE) {
    product.device_alpha = static_cast<const float*>(alpha);
    product.device_beta = static_cast<const float*>(beta);
  } else {
    return CUBLAS_STATUS_NOT_SUPPORTED;
  }
  const bool reads_c = product.reads_c();
  if (reads_c && c == nullptr) return CUBLAS_STATUS_INVALID_VALUE;
  if (c == d && product.c.leading != product.d.leading) return CUBLAS_STATUS_INVALID_VALUE;
  if ((has_bias(*descriptor) || sums_inputs(*descriptor) || sums_result(*descriptor)) &&
      descriptor->bias == nullptr)
    return CUBLAS_STATUS_INVALID_VALUE;
  if (has_auxiliary(*descriptor) &&
      (descriptor->auxiliary == nullptr || !aligned(descriptor->auxiliary, auxiliary_alignment)))
    return CUBLAS_STATUS_INVALID_VALUE;
  if (algorithm != nullptr) {
    if (algorithm->data[problem_slot] !=
        fingerprint(*descriptor, product.a, product.b, product.c, product.d))
      return CUBLAS_STATUS_INVALID_VALUE;
    if (!aligned(a, algorithm->data[alignment_a]) || !aligned(b, algorithm->data[alignment_b]) ||
        !aligned(d, algorithm->data[alignment_d]) ||
        (reads_c && !aligned(c, algorithm->data[alignment_c])))
      return CUBLAS_STATUS_INVALID_VALUE;
    product.workspace_bytes = algorithm->data[workspace_slot];
    if (product.workspace_bytes > 0 &&
        (workspace == nullptr || workspace_bytes < product.workspace_bytes ||
         !aligned(workspace, workspace_alignment)))
      return CUBLAS_STATUS_INVALID_VALUE;
    product.workspace = static_cast<std::byte*>(workspace);
    product.algorithm = static_cast<int>(algorithm->data[number_slot]);
  }
  if (!product.reachable()) {
    fail_device(cudaErrorIllegalAddress, "a matrix of cublasLtMatmul is not in device memory");
    return CUBLAS_STATUS_EXECUTION_FAILED;
  }
  const cudaError_t error = submit(*on, {[product](std::uint64_t seed) { product.run(seed); }});
  return error == cudaSuccess ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_EXECUTION_FAILED;
}
