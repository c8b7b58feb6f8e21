// cuBLASLt is column-major: a row-major (rows, columns) matrix is its (columns, rows) one with the
// same bytes, so every product is computed transposed, D = op(A) op(B):
//   linear           y^T  (out, rows) = w x^T:      A = w (in, out) transposed, B = x (in, rows)
//   input_gradient   dx^T (in, rows)  = w^T dy^T:   A = w (in, out),            B = dy (out, rows)
//   weight_gradient  dw^T (in, out)   = x^T dy:     A = x (in, rows),  B = dy (out, rows)
//   transposed
#include "exec/cuda/matmul.hpp"

#include <cublasLt.h>
#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <compare>
#include <map>
#include <type_traits>

#include "base/errors.hpp"

namespace spillway::cuda {

namespace {

// Pointers to cuBLASLt's objects that free them.
template <class Handle, cublasStatus_t (*destroy)(Handle)>
struct Destroy {
  void operator()(std::remove_pointer_t<Handle>* handle) const { destroy(handle); }
};
template <class Handle, cublasStatus_t (*destroy)(Handle)>
using Owned = std::unique_ptr<std::remove_pointer_t<Handle>, Destroy<Handle, destroy>>;
using Library = Owned<cublasLtHandle_t, cublasLtDestroy>;
using Operation = Owned<cublasLtMatmulDesc_t, cublasLtMatmulDescDestroy>;
using Layout = Owned<cublasLtMatrixLayout_t, cublasLtMatrixLayoutDestroy>;
using Preference = Owned<cublasLtMatmulPreference_t, cublasLtMatmulPreferenceDestroy>;

enum class Form : std::uint8_t { linear, input_gradient, weight_gradient };

const char* to_string(Form form) {
  switch (form) {
    case Form::linear:
      return "y = x w^T";
    case Form::input_gradient:
      return "dx = dy w";
    case Form::weight_gradient:
      return "dw = dy^T x";
  }
  SPILLWAY_ASSERT(false);
}

template <class Number>
constexpr cudaDataType_t type_of() {
  return sizeof(Number) == sizeof(float) ? CUDA_R_32F : CUDA_R_16BF;
}
int bytes_of(cudaDataType_t type) { return type == CUDA_R_32F ? 4 : 2; }

// A column-major operand.
struct Operand {
  std::int64_t rows = 0, columns = 0, stride = 0;  // stride: of columns, in elements
  std::int32_t alignment = 0;                      // bytes
  auto operator<=>(const Operand&) const = default;
};

// Everything that an algorithm may depend on.
struct Shape {
  Form form = Form::linear;
  cudaDataType_t type = CUDA_R_32F, result_type = CUDA_R_32F;
  Operand a, b, c, d;
  std::int32_t bias_alignment = 0;  // 0: no bias
  bool adds = false;                // D = op(A) op(B) + C; C is D but in Form::linear
  auto operator<=>(const Shape&) const = default;
};

struct Product {
  Shape shape;
  const void *a = nullptr, *b = nullptr, *c = nullptr, *bias = nullptr;
  void* d = nullptr;
};

// What cuBLASLt is asked to do for one shape, and how.
struct Plan {
  Operation operation;
  Layout a, b, c, d;
  cublasLtMatmulAlgo_t algorithm{};
};

// The alignment, up to 256 bytes, that an algorithm may count on. Never more than that of the end
// of a matrix: the tensors of a group of sequences lie one group after the other when they are
// saved, and at the start of scratch when recomputed, and both must be served by one algorithm, or
// the choice of what to save would change bits.
std::int32_t alignment_of(const void* data, std::int64_t bytes) {
  const auto bits = reinterpret_cast<std::uintptr_t>(data) | static_cast<std::uintptr_t>(bytes) |
                    std::uintptr_t{256};
  return static_cast<std::int32_t>(bits & (~bits + 1));
}

Operand operand(const void* data, cudaDataType_t type, std::int64_t rows, std::int64_t columns,
                std::int64_t stride) {
  SPILLWAY_ASSERT(rows > 0 && columns > 0 && stride >= rows,
                  fmt::format("{} x {}, stride {}", rows, columns, stride));
  return {rows, columns, stride, alignment_of(data, columns * stride * bytes_of(type))};
}

std::string to_string(const Shape& shape) {
  return fmt::format(
      "{} ({} to {}; {} x {} by {} x {}, strides {}, {}, {}{}{})", to_string(shape.form),
      shape.type == CUDA_R_32F ? "fp32" : "bf16", shape.result_type == CUDA_R_32F ? "fp32" : "bf16",
      shape.a.rows, shape.a.columns, shape.b.rows, shape.b.columns, shape.a.stride, shape.b.stride,
      shape.d.stride, shape.bias_alignment != 0 ? ", bias" : "", shape.adds ? ", added" : "");
}

std::string status_text(cublasStatus_t status) {
  return fmt::format("{} ({})", cublasLtGetStatusName(status), cublasLtGetStatusString(status));
}

void require(cublasStatus_t status, const char* call, const Shape& shape) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  throw MachineError(
      fmt::format("matrix product {}: {}: {}", to_string(shape), call, status_text(status)),
      status == CUBLAS_STATUS_ALLOC_FAILED
          ? "lower --gpu-memory, so that CUDA's own libraries find some too"
          : "check that the driver is as new as the CUDA libraries beside the program, and that "
            "the GPU is of compute capability 8.0 or later");
}

template <class Value>
void set(const Operation& operation, cublasLtMatmulDescAttributes_t attribute, const Value& value,
         const Shape& shape) {
  require(cublasLtMatmulDescSetAttribute(operation.get(), attribute, &value, sizeof value),
          "cublasLtMatmulDescSetAttribute", shape);
}

template <class Value>
void set(const Preference& preference, cublasLtMatmulPreferenceAttributes_t attribute,
         const Value& value, const Shape& shape) {
  require(cublasLtMatmulPreferenceSetAttribute(preference.get(), attribute, &value, sizeof value),
          "cublasLtMatmulPreferenceSetAttribute", shape);
}

Layout make_layout(cudaDataType_t type, const Operand& operand, const Shape& shape) {
  cublasLtMatrixLayout_t layout = nullptr;
  require(cublasLtMatrixLayoutCreate(&layout, type, static_cast<std::uint64_t>(operand.rows),
                                     static_cast<std::uint64_t>(operand.columns), operand.stride),
          "cublasLtMatrixLayoutCreate", shape);
  return Layout(layout);
}

Operation make_operation(const Product& product) {
  const Shape& shape = product.shape;
  cublasLtMatmulDesc_t made = nullptr;
  // Not ..._FAST_TF32: fp32 products are fp32 products.
  require(cublasLtMatmulDescCreate(&made, CUBLAS_COMPUTE_32F, CUDA_R_32F),
          "cublasLtMatmulDescCreate", shape);
  Operation operation(made);
  const cublasOperation_t transposed = CUBLAS_OP_T;
  if (shape.form == Form::linear) set(operation, CUBLASLT_MATMUL_DESC_TRANSA, transposed, shape);
  if (shape.form == Form::weight_gradient)
    set(operation, CUBLASLT_MATMUL_DESC_TRANSB, transposed, shape);
  if (shape.bias_alignment != 0) {
    set(operation, CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS, shape);
    // The heuristics look at its alignment.
    set(operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER, product.bias, shape);
  }
  return operation;
}

Preference make_preference(const Shape& shape) {
  cublasLtMatmulPreference_t made = nullptr;
  require(cublasLtMatmulPreferenceCreate(&made), "cublasLtMatmulPreferenceCreate", shape);
  Preference preference(made);
  set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, Matmul::workspace_bytes, shape);
  // Parts of a sum may be added up through the workspace, in fp32 and in a step of its own; not as
  // they come, in place, nor rounded to the type of the output in between.
  const std::uint32_t reductions =
      CUBLASLT_REDUCTION_SCHEME_NONE | CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
  set(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, reductions, shape);
  const auto align = [&](cublasLtMatmulPreferenceAttributes_t attribute, const Operand& operand) {
    set(preference, attribute, static_cast<std::uint32_t>(operand.alignment), shape);
  };
  align(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, shape.a);
  align(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, shape.b);
  align(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, shape.c);
  align(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, shape.d);
  return preference;
}

Plan make_plan(cublasLtHandle_t library, const Product& product) {
  const Shape& shape = product.shape;
  Plan plan{make_operation(product),
            make_layout(shape.type, shape.a, shape),
            make_layout(shape.type, shape.b, shape),
            make_layout(shape.result_type, shape.c, shape),
            make_layout(shape.result_type, shape.d, shape),
            {}};
  const Preference preference = make_preference(shape);
  cublasLtMatmulHeuristicResult_t best{};
  int found = 0;
  require(cublasLtMatmulAlgoGetHeuristic(library, plan.operation.get(), plan.a.get(), plan.b.get(),
                                         plan.c.get(), plan.d.get(), preference.get(), 1, &best,
                                         &found),
          "cublasLtMatmulAlgoGetHeuristic", shape);
  require(found == 1 ? best.state : CUBLAS_STATUS_NOT_SUPPORTED,
          "cublasLtMatmulAlgoGetHeuristic found no algorithm", shape);
  plan.algorithm = best.algo;
  return plan;
}

}  // namespace

struct Matmul::State {
  Library library;
  std::byte* workspace = nullptr;
  std::map<Shape, Plan> plans;

  void run(const Product& product, cudaStream_t stream) {
    auto plan = plans.find(product.shape);
    if (plan == plans.end())
      plan = plans.emplace(product.shape, make_plan(library.get(), product)).first;
    const Plan& p = plan->second;
    if (product.bias != nullptr)
      set(p.operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER, product.bias, product.shape);
    const float alpha = 1.0f, beta = product.shape.adds ? 1.0f : 0.0f;
    require(cublasLtMatmul(library.get(), p.operation.get(), &alpha, product.a, p.a.get(),
                           product.b, p.b.get(), &beta, product.c, p.c.get(), product.d, p.d.get(),
                           &p.algorithm, workspace, workspace_bytes, stream),
            "cublasLtMatmul", product.shape);
  }
};

Matmul::Matmul(std::byte* workspace) : state_(std::make_unique<State>()) {
  SPILLWAY_ASSERT(reinterpret_cast<std::uintptr_t>(workspace) % 256 == 0);
  cublasLtHandle_t library = nullptr;
  const cublasStatus_t status = cublasLtCreate(&library);
  if (status != CUBLAS_STATUS_SUCCESS) {
    throw MachineError(fmt::format("cublasLtCreate: {}", status_text(status)),
                       "check that nvidia-smi lists the GPU, and that its driver is as new as the "
                       "CUDA libraries beside the program");
  }
  state_->library.reset(library);
  state_->workspace = workspace;
}

Matmul::~Matmul() = default;

std::size_t Matmul::shapes() const { return state_->plans.size(); }

template <class Element>
void Matmul::linear(const Element* x, const Element* w, const Element* bias,
                    const Element* residual, Element* y, std::int64_t rows, std::int64_t in,
                    std::int64_t out, std::int64_t y_stride, cudaStream_t stream) {
  SPILLWAY_ASSERT(residual == nullptr || residual != y);
  constexpr cudaDataType_t type = type_of<Element>();
  Product product;
  Shape& s = product.shape;
  s.form = Form::linear;
  s.type = s.result_type = type;
  s.a = operand(w, type, in, out, in);
  s.b = operand(x, type, in, rows, in);
  s.d = operand(y, type, out, rows, y_stride != 0 ? y_stride : out);
  s.adds = residual != nullptr;
  s.c = s.adds ? operand(residual, type, out, rows, out) : s.d;
  s.bias_alignment =
      bias != nullptr ? alignment_of(bias, out * static_cast<std::int64_t>(sizeof(Element))) : 0;
  product.a = w;
  product.b = x;
  product.c = s.adds ? residual : y;
  product.d = y;
  product.bias = bias;
  state_->run(product, stream);
}

template <class Element>
void Matmul::input_gradient(const Element* y_gradient, const Element* w, Element* x_gradient,
                            std::int64_t rows, std::int64_t in, std::int64_t out,
                            std::int64_t y_gradient_stride, cudaStream_t stream) {
  constexpr cudaDataType_t type = type_of<Element>();
  Product product;
  Shape& s = product.shape;
  s.form = Form::input_gradient;
  s.type = s.result_type = type;
  s.a = operand(w, type, in, out, in);
  s.b = operand(y_gradient, type, out, rows, y_gradient_stride != 0 ? y_gradient_stride : out);
  s.c = s.d = operand(x_gradient, type, in, rows, in);
  product.a = w;
  product.b = y_gradient;
  product.c = product.d = x_gradient;
  state_->run(product, stream);
}

template <class Element, class Gradient>
void Matmul::weight_gradient(const Element* y_gradient, const Element* x, Gradient* w_gradient,
                             bool overwrites, std::int64_t rows, std::int64_t in, std::int64_t out,
                             std::int64_t y_gradient_stride, cudaStream_t stream) {
  constexpr cudaDataType_t type = type_of<Element>(), result = type_of<Gradient>();
  Product product;
  Shape& s = product.shape;
  s.form = Form::weight_gradient;
  s.type = type;
  s.result_type = result;
  s.a = operand(x, type, in, rows, in);
  s.b = operand(y_gradient, type, out, rows, y_gradient_stride != 0 ? y_gradient_stride : out);
  s.c = s.d = operand(w_gradient, result, in, out, in);
  s.adds = !overwrites;
  product.a = x;
  product.b = y_gradient;
  product.c = product.d = w_gradient;
  state_->run(product, stream);
}

#define SPILLWAY_MATMUL(Element)                                                                 \
  template void Matmul::linear(const Element*, const Element*, const Element*, const Element*,   \
                               Element*, std::int64_t, std::int64_t, std::int64_t, std::int64_t, \
                               cudaStream_t);                                                    \
  template void Matmul::input_gradient(const Element*, const Element*, Element*, std::int64_t,   \
                                       std::int64_t, std::int64_t, std::int64_t, cudaStream_t);
#define SPILLWAY_WEIGHT_GRADIENT(Element, Gradient)                                             \
  template void Matmul::weight_gradient(const Element*, const Element*, Gradient*, bool,        \
                                        std::int64_t, std::int64_t, std::int64_t, std::int64_t, \
                                        cudaStream_t);
SPILLWAY_MATMUL(float)
SPILLWAY_MATMUL(bf16)
SPILLWAY_WEIGHT_GRADIENT(float, float)
SPILLWAY_WEIGHT_GRADIENT(bf16, float)
SPILLWAY_WEIGHT_GRADIENT(bf16, bf16)
#undef SPILLWAY_MATMUL
#undef SPILLWAY_WEIGHT_GRADIENT

}  // namespace spillway::cuda
