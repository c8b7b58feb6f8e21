#include "exec/cuda/matmul/matmul_plan.hpp"

#include <fmt/core.h>

#include <cuda_runtime_api.h>

#include "base/errors.hpp"
#include "exec/cuda/device/launch.hpp"

namespace spillway::cuda {

namespace {

using Preference = OwnedCublas<cublasLtMatmulPreference_t, cublasLtMatmulPreferenceDestroy>;

template <class Value>
void set_attribute(const CublasOperation& operation, cublasLtMatmulDescAttributes_t attribute,
                   const Value& value, const MatmulShape& shape) {
  require_product(cublasLtMatmulDescSetAttribute(operation.get(), attribute, &value, sizeof value),
                  "cublasLtMatmulDescSetAttribute", shape);
}

template <class Value>
void set_preference(const Preference& preference, cublasLtMatmulPreferenceAttributes_t attribute,
                    const Value& value, const MatmulShape& shape) {
  require_product(
      cublasLtMatmulPreferenceSetAttribute(preference.get(), attribute, &value, sizeof value),
      "cublasLtMatmulPreferenceSetAttribute", shape);
}

CublasLayout make_layout(cudaDataType_t type, const MatmulOperand& operand,
                         const MatmulShape& shape) {
  cublasLtMatrixLayout_t layout = nullptr;
  require_product(
      cublasLtMatrixLayoutCreate(&layout, type, static_cast<std::uint64_t>(operand.rows),
                                 static_cast<std::uint64_t>(operand.columns), operand.stride),
      "cublasLtMatrixLayoutCreate", shape);
  return CublasLayout(layout);
}

cublasLtEpilogue_t epilogue_of(const MatmulShape& shape) {
  if (shape.form == MatmulForm::gelu_gradient)
    return shape.bias_alignment != 0 ? CUBLASLT_EPILOGUE_DGELU_BGRAD : CUBLASLT_EPILOGUE_DGELU;
  return shape.bias_alignment != 0 ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
}

// The heuristics look at the alignment of what epilogues read and write.
void set_pointers(const CublasOperation& operation, const MatmulProduct& product) {
  if (product.bias != nullptr)
    set_attribute(operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER, product.bias, product.shape);
  if (product.gelu_input != nullptr) {
    set_attribute(operation, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, product.gelu_input,
                  product.shape);
  }
}

CublasOperation make_operation(const MatmulProduct& product) {
  const MatmulShape& shape = product.shape;
  cublasLtMatmulDesc_t made = nullptr;
  // Not ..._FAST_TF32: fp32 products are fp32 products.
  require_product(cublasLtMatmulDescCreate(&made, CUBLAS_COMPUTE_32F, CUDA_R_32F),
                  "cublasLtMatmulDescCreate", shape);
  CublasOperation operation(made);
  const cublasOperation_t transposed = CUBLAS_OP_T;
  if (shape.form == MatmulForm::linear)
    set_attribute(operation, CUBLASLT_MATMUL_DESC_TRANSA, transposed, shape);
  if (shape.form == MatmulForm::weight_gradient)
    set_attribute(operation, CUBLASLT_MATMUL_DESC_TRANSB, transposed, shape);
  if (const cublasLtEpilogue_t epilogue = epilogue_of(shape); epilogue != CUBLASLT_EPILOGUE_DEFAULT)
    set_attribute(operation, CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue, shape);
  if (shape.form == MatmulForm::gelu_gradient)
    set_attribute(operation, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, shape.d.stride, shape);
  set_pointers(operation, product);
  return operation;
}

Preference make_preference(const MatmulShape& shape, std::size_t workspace_bytes) {
  cublasLtMatmulPreference_t made = nullptr;
  require_product(cublasLtMatmulPreferenceCreate(&made), "cublasLtMatmulPreferenceCreate", shape);
  Preference preference(made);
  set_preference(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                 static_cast<std::uint64_t>(workspace_bytes), shape);
  // Parts of a sum may be added up through the workspace, in fp32 and in a step of its own; not as
  // they come, in place, nor rounded to the type of the output in between.
  const std::uint32_t reductions =
      CUBLASLT_REDUCTION_SCHEME_NONE | CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
  set_preference(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, reductions, shape);
  const auto align = [&](cublasLtMatmulPreferenceAttributes_t attribute,
                         const MatmulOperand& operand) {
    set_preference(preference, attribute, static_cast<std::uint32_t>(operand.alignment), shape);
  };
  align(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, shape.a);
  align(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, shape.b);
  align(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, shape.c);
  align(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, shape.d);
  return preference;
}

}  // namespace

std::string status_text(cublasStatus_t status) {
  return fmt::format("{} ({})", cublasLtGetStatusName(status), cublasLtGetStatusString(status));
}

void require_product(cublasStatus_t status, const char* call, const MatmulShape& shape) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  // Where a kernel before it failed, the library only says that it cannot go on.
  if (status == CUBLAS_STATUS_EXECUTION_FAILED) check(cudaDeviceSynchronize(), call);
  Message hint =
      "check that the driver is as new as the CUDA libraries beside the program, and that the GPU "
      "is of compute capability 8.0 or later";
  if (status == CUBLAS_STATUS_ALLOC_FAILED)
    hint = "lower " + Setting{"gpu.memory"} + ", so that CUDA's own libraries find some too";
  if (status == CUBLAS_STATUS_NOT_SUPPORTED && shape.form == MatmulForm::gelu_gradient)
    hint = "let the kernel compute GELU's backward: gpu.gelu_backward = \"kernel\"";
  throw MachineError(
      fmt::format("matrix product {}: {}: {}", to_string(shape), call, status_text(status)), hint);
}

MatmulPlan::MatmulPlan(cublasLtHandle_t library, const MatmulProduct& product,
                       std::size_t workspace_bytes)
    : library_(library),
      shape_(product.shape),
      workspace_bytes_(workspace_bytes),
      operation_(make_operation(product)),
      a_(make_layout(shape_.type, shape_.a, shape_)),
      b_(make_layout(shape_.type, shape_.b, shape_)),
      c_(make_layout(shape_.result_type, shape_.c, shape_)),
      d_(make_layout(shape_.result_type, shape_.d, shape_)) {}

std::vector<cublasLtMatmulAlgo_t> MatmulPlan::candidates(int most) const {
  const Preference preference = make_preference(shape_, workspace_bytes_);
  std::vector<cublasLtMatmulHeuristicResult_t> found(static_cast<std::size_t>(most));
  int count = 0;
  const cublasStatus_t status =
      cublasLtMatmulAlgoGetHeuristic(library_, operation_.get(), a_.get(), b_.get(), c_.get(),
                                     d_.get(), preference.get(), most, found.data(), &count);
  require_product(status, "cublasLtMatmulAlgoGetHeuristic", shape_);
  std::vector<cublasLtMatmulAlgo_t> algorithms;
  for (int i = 0; i < count; ++i) {
    const cublasLtMatmulHeuristicResult_t& one = found[static_cast<std::size_t>(i)];
    if (one.state == CUBLAS_STATUS_SUCCESS && one.workspaceSize <= workspace_bytes_)
      algorithms.push_back(one.algo);
  }
  return algorithms;
}

cublasStatus_t MatmulPlan::check(const cublasLtMatmulAlgo_t& algorithm) const {
  cublasLtMatmulHeuristicResult_t result{};
  const cublasStatus_t status = cublasLtMatmulAlgoCheck(
      library_, operation_.get(), a_.get(), b_.get(), c_.get(), d_.get(), &algorithm, &result);
  if (status != CUBLAS_STATUS_SUCCESS) return status;
  return result.workspaceSize <= workspace_bytes_ ? status : CUBLAS_STATUS_NOT_SUPPORTED;
}

cublasStatus_t MatmulPlan::run(const MatmulProduct& product, std::byte* workspace,
                               cudaStream_t stream) const {
  set_pointers(operation_, product);
  const float beta = shape_.adds ? 1.0f : 0.0f;
  return cublasLtMatmul(library_, operation_.get(), &product.factor, product.a, a_.get(), product.b,
                        b_.get(), &beta, product.c, c_.get(), product.d, d_.get(), &algorithm_,
                        workspace, workspace_bytes_, stream);
}

std::string describe(const cublasLtMatmulAlgo_t& algorithm) {
  const auto number = [&](cublasLtMatmulAlgoConfigAttributes_t attribute) -> std::uint32_t {
    std::uint32_t value = 0;
    std::size_t written = 0;
    const cublasStatus_t status =
        cublasLtMatmulAlgoConfigGetAttribute(&algorithm, attribute, &value, sizeof value, &written);
    return status == CUBLAS_STATUS_SUCCESS ? value : 0;
  };
  return fmt::format("algorithm {}, tile {}, stages {}, split-K {}",
                     number(CUBLASLT_ALGO_CONFIG_ID), number(CUBLASLT_ALGO_CONFIG_TILE_ID),
                     number(CUBLASLT_ALGO_CONFIG_STAGES_ID),
                     number(CUBLASLT_ALGO_CONFIG_SPLITK_NUM));
}

}  // namespace spillway::cuda
