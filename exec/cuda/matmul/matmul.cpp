#include "exec/cuda/matmul/matmul.hpp"

#include <cublasLt.h>
#include <fmt/core.h>

#include <map>

#include "base/errors.hpp"
#include "exec/cuda/matmul/matmul_plan.hpp"
#include "exec/run/cuda_module.hpp"

namespace spillway::cuda {

namespace {

template <class Number>
constexpr cudaDataType_t type_of() {
  return sizeof(Number) == sizeof(float) ? CUDA_R_32F : CUDA_R_16BF;
}

template <class Element>
std::int32_t vector_alignment(const Element* data, std::int64_t size) {
  return data == nullptr ? 0
                         : alignment_of(data, size * static_cast<std::int64_t>(sizeof(Element)));
}

}  // namespace

struct Matmul::State {
  CublasLibrary library;
  std::byte* workspace = nullptr;
  std::map<MatmulShape, MatmulPlan> plans;
  const MatmulChoices* recorded = nullptr;
  MatmulTuning* tuning = nullptr;

  cublasLtMatmulAlgo_t recorded_algorithm(const MatmulPlan& plan, const MatmulShape& shape) const {
    const auto found = recorded->algorithms.find(key_of(shape));
    if (found == recorded->algorithms.end()) {
      throw RecordedAlgorithmsRefused(
          fmt::format("no algorithm is recorded for the matrix product {}", to_string(shape)));
    }
    const cublasStatus_t status = plan.check(found->second);
    if (status == CUBLAS_STATUS_SUCCESS) return found->second;
    throw RecordedAlgorithmsRefused(
        fmt::format("cuBLASLt refuses the algorithm recorded for the matrix product {} ({}): {}",
                    to_string(shape), describe(found->second), status_text(status)));
  }

  cublasLtMatmulAlgo_t algorithm_for(MatmulPlan& plan, const MatmulProduct& product) const {
    if (recorded != nullptr) return recorded_algorithm(plan, product.shape);
    const auto candidates = plan.candidates(tuning != nullptr ? MatmulTuning::most_candidates : 1);
    require_product(candidates.empty() ? CUBLAS_STATUS_NOT_SUPPORTED : CUBLAS_STATUS_SUCCESS,
                    "cublasLtMatmulAlgoGetHeuristic found no algorithm", product.shape);
    return tuning != nullptr ? tuning->choose(plan, product, candidates) : candidates.front();
  }

  void run(const MatmulProduct& product, cudaStream_t stream) {
    auto found = plans.find(product.shape);
    if (found == plans.end()) {
      MatmulPlan plan(library.get(), product, workspace_bytes);
      plan.choose(algorithm_for(plan, product));
      found = plans.emplace(product.shape, std::move(plan)).first;
    }
    require_product(found->second.run(product, workspace, stream), "cublasLtMatmul", product.shape);
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

void Matmul::use(const MatmulChoices* recorded) {
  if (const std::string here = matmul_maker(); recorded != nullptr && recorded->made_by != here) {
    throw RecordedAlgorithmsRefused(
        fmt::format("the algorithms of its matrix products are those of {}; here is {}",
                    recorded->made_by, here));
  }
  state_->recorded = recorded;
}

void Matmul::tune(MatmulTuning* tuning) { state_->tuning = tuning; }

MatmulChoices Matmul::choices() const {
  MatmulChoices choices;
  choices.made_by = matmul_maker();
  for (const auto& [shape, plan] : state_->plans)
    choices.algorithms.emplace(key_of(shape), plan.algorithm());
  return choices;
}

template <class Element>
void Matmul::linear(const Element* x, const Element* w, const Element* bias,
                    const Element* residual, Element* y, std::int64_t rows, std::int64_t in,
                    std::int64_t out, cudaStream_t stream, const ProductForm& form) {
  SPILLWAY_ASSERT(residual == nullptr || (residual != y && !form.adds));
  constexpr cudaDataType_t type = type_of<Element>();
  MatmulProduct product;
  MatmulShape& s = product.shape;
  s.form = MatmulForm::linear;
  s.type = s.result_type = type;
  s.a = matmul_operand(w, type, in, out, in);
  s.b = matmul_operand(x, type, in, rows, form.x_stride != 0 ? form.x_stride : in);
  s.d = matmul_operand(y, type, out, rows, form.y_stride != 0 ? form.y_stride : out);
  s.adds = residual != nullptr || form.adds;
  s.c = residual != nullptr ? matmul_operand(residual, type, out, rows, out) : s.d;
  s.bias_alignment = vector_alignment(bias, out);
  product.a = w;
  product.b = x;
  product.c = residual != nullptr ? residual : y;
  product.d = y;
  product.bias = const_cast<Element*>(bias);  // only read
  product.factor = form.factor;
  state_->run(product, stream);
}

template <class Element>
void Matmul::input_gradient(const Element* y_gradient, const Element* w, Element* x_gradient,
                            std::int64_t rows, std::int64_t in, std::int64_t out,
                            cudaStream_t stream, const ProductForm& form) {
  constexpr cudaDataType_t type = type_of<Element>();
  MatmulProduct product;
  MatmulShape& s = product.shape;
  s.form = MatmulForm::input_gradient;
  s.type = s.result_type = type;
  s.a = matmul_operand(w, type, in, out, in);
  s.b = matmul_operand(y_gradient, type, out, rows, form.y_stride != 0 ? form.y_stride : out);
  s.c = s.d = matmul_operand(x_gradient, type, in, rows, form.x_stride != 0 ? form.x_stride : in);
  s.adds = form.adds;
  product.a = w;
  product.b = y_gradient;
  product.c = product.d = x_gradient;
  product.factor = form.factor;
  state_->run(product, stream);
}

template <class Element>
void Matmul::gelu_gradient(const Element* y_gradient, const Element* w, const Element* z,
                           Element* x_gradient, Element* z_sums, std::int64_t rows, std::int64_t in,
                           std::int64_t out, cudaStream_t stream) {
  SPILLWAY_ASSERT(in % 8 == 0, "what cuBLASLt asks of the rows of z");
  constexpr cudaDataType_t type = type_of<Element>();
  MatmulProduct product;
  MatmulShape& s = product.shape;
  s.form = MatmulForm::gelu_gradient;
  s.type = s.result_type = type;
  s.a = matmul_operand(w, type, in, out, in);
  s.b = matmul_operand(y_gradient, type, out, rows, out);
  s.c = s.d = matmul_operand(x_gradient, type, in, rows, in);
  s.gelu_alignment = matmul_operand(z, type, in, rows, in).alignment;
  s.bias_alignment = vector_alignment(z_sums, in);
  product.a = w;
  product.b = y_gradient;
  product.c = product.d = x_gradient;
  product.gelu_input = z;
  product.bias = z_sums;
  state_->run(product, stream);
}

template <class Element, class Gradient>
void Matmul::weight_gradient(const Element* y_gradient, const Element* x, Gradient* w_gradient,
                             std::int64_t rows, std::int64_t in, std::int64_t out,
                             cudaStream_t stream, const ProductForm& form) {
  constexpr cudaDataType_t type = type_of<Element>(), result = type_of<Gradient>();
  MatmulProduct product;
  MatmulShape& s = product.shape;
  s.form = MatmulForm::weight_gradient;
  s.type = type;
  s.result_type = result;
  s.a = matmul_operand(x, type, in, rows, form.x_stride != 0 ? form.x_stride : in);
  s.b = matmul_operand(y_gradient, type, out, rows, form.y_stride != 0 ? form.y_stride : out);
  s.c = s.d = matmul_operand(w_gradient, result, in, out, in);
  s.adds = form.adds;
  product.a = x;
  product.b = y_gradient;
  product.c = product.d = w_gradient;
  product.factor = form.factor;
  state_->run(product, stream);
}

#define SPILLWAY_MATMUL(Element)                                                                 \
  template void Matmul::linear(const Element*, const Element*, const Element*, const Element*,   \
                               Element*, std::int64_t, std::int64_t, std::int64_t, cudaStream_t, \
                               const ProductForm&);                                              \
  template void Matmul::input_gradient(const Element*, const Element*, Element*, std::int64_t,   \
                                       std::int64_t, std::int64_t, cudaStream_t,                 \
                                       const ProductForm&);                                      \
  template void Matmul::gelu_gradient(const Element*, const Element*, const Element*, Element*,  \
                                      Element*, std::int64_t, std::int64_t, std::int64_t,        \
                                      cudaStream_t);
#define SPILLWAY_WEIGHT_GRADIENT(Element, Gradient)                                              \
  template void Matmul::weight_gradient(const Element*, const Element*, Gradient*, std::int64_t, \
                                        std::int64_t, std::int64_t, cudaStream_t,                \
                                        const ProductForm&);
SPILLWAY_MATMUL(float)
SPILLWAY_MATMUL(bf16)
SPILLWAY_WEIGHT_GRADIENT(float, float)
SPILLWAY_WEIGHT_GRADIENT(bf16, float)
SPILLWAY_WEIGHT_GRADIENT(bf16, bf16)
#undef SPILLWAY_MATMUL
#undef SPILLWAY_WEIGHT_GRADIENT

}  // namespace spillway::cuda
