// The emulated cuBLASLt: products against a triple loop, and what it refuses.
#include <cublasLt.h>
#include <cuda_runtime.h>

#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "exec/cuda/kernels/bf16.hpp"
#include "tests/emulator/emulator.hpp"

namespace {

using spillway::bf16;

template <class T>
class CopiedArray {
 public:
  explicit CopiedArray(std::size_t count) : count_(count) {
    REQUIRE(cudaMalloc(&data_, count * sizeof(T)) == cudaSuccess);
  }
  explicit CopiedArray(const std::vector<float>& values) : CopiedArray(values.size()) {
    std::vector<T> converted(values.size());
    for (std::size_t i = 0; i < values.size(); ++i)
      converted[i] = spillway::from_float<T>(values[i]);
    REQUIRE(cudaMemcpy(data_, converted.data(), count_ * sizeof(T), cudaMemcpyHostToDevice) ==
            cudaSuccess);
  }
  ~CopiedArray() { cudaFree(data_); }
  CopiedArray(const CopiedArray&) = delete;
  CopiedArray& operator=(const CopiedArray&) = delete;
  T* data() const { return data_; }
  std::vector<float> values() const {
    std::vector<T> copy(count_);
    REQUIRE(cudaMemcpy(copy.data(), data_, count_ * sizeof(T), cudaMemcpyDeviceToHost) ==
            cudaSuccess);
    std::vector<float> result;
    for (const T value : copy) result.push_back(spillway::to_float(value));
    return result;
  }

 private:
  T* data_ = nullptr;
  std::size_t count_;
};

template <class T>
constexpr cudaDataType type_of = sizeof(T) == 4 ? CUDA_R_32F : CUDA_R_16BF;

struct Case {
  bool ta = false, tb = false;
  std::uint64_t m = 5, n = 7, k = 9;
  std::int64_t extra = 0;  // elements between columns
  float alpha = 1, beta = 0;
  cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  std::size_t workspace_bytes = 1 << 20;
};

// Handles of one problem, and the call.
template <class In, class Out>
struct Problem {
  explicit Problem(const Case& its) : one(its) {
    REQUIRE(cublasLtCreate(&handle) == CUBLAS_STATUS_SUCCESS);
    cublasLtMatmulDescCreate(&descriptor, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    set(CUBLASLT_MATMUL_DESC_TRANSA, its.ta ? CUBLAS_OP_T : CUBLAS_OP_N);
    set(CUBLASLT_MATMUL_DESC_TRANSB, its.tb ? CUBLAS_OP_T : CUBLAS_OP_N);
    set(CUBLASLT_MATMUL_DESC_EPILOGUE, its.epilogue);
    const auto layout = [&](cublasLtMatrixLayout_t& to, cudaDataType type, std::uint64_t rows,
                            std::uint64_t columns) {
      cublasLtMatrixLayoutCreate(&to, type, rows, columns,
                                 static_cast<std::int64_t>(rows) + its.extra);
    };
    layout(a, type_of<In>, its.ta ? its.k : its.m, its.ta ? its.m : its.k);
    layout(b, type_of<In>, its.tb ? its.n : its.k, its.tb ? its.k : its.n);
    layout(d, type_of<Out>, its.m, its.n);
    cublasLtMatmulPreferenceCreate(&preference);
    const std::uint64_t most = its.workspace_bytes;
    cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                         &most, sizeof most);
  }
  ~Problem() {
    cublasLtMatmulPreferenceDestroy(preference);
    for (const auto layout : {a, b, d}) cublasLtMatrixLayoutDestroy(layout);
    cublasLtMatmulDescDestroy(descriptor);
    cublasLtDestroy(handle);
  }
  Problem(const Problem&) = delete;
  Problem& operator=(const Problem&) = delete;

  template <class T>
  void set(cublasLtMatmulDescAttributes_t attribute, T value) {
    REQUIRE(cublasLtMatmulDescSetAttribute(descriptor, attribute, &value, sizeof value) ==
            CUBLAS_STATUS_SUCCESS);
  }
  cublasStatus_t find() {
    int found = 0;
    return cublasLtMatmulAlgoGetHeuristic(handle, descriptor, a, b, d, d, preference, 1, &best,
                                          &found);
  }
  cublasStatus_t multiply(const In* x, const In* y, const Out* add, Out* to, void* workspace,
                          cudaStream_t stream = nullptr) {
    return cublasLtMatmul(handle, descriptor, &one.alpha, x, a, y, b, &one.beta, add, d, to, d,
                          &best.algo, workspace, one.workspace_bytes, stream);
  }

  const Case one;
  cublasLtHandle_t handle{};
  cublasLtMatmulDesc_t descriptor{};
  cublasLtMatrixLayout_t a{}, b{}, d{};
  cublasLtMatmulPreference_t preference{};
  cublasLtMatmulHeuristicResult_t best{};
};

std::vector<float> random_values(std::size_t count, std::mt19937& random) {
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  // Values that bf16 holds exactly, so that both types have the same operands.
  for (float& value : values) value = spillway::to_float(spillway::to_bf16(normal(random)));
  return values;
}

// D = alpha op(A) op(B) + beta C + bias, in fp64 from the same operands; columns one after the
// other.
template <class In, class Out>
void check_product(const Case& one, std::mt19937& random) {
  const std::size_t m = one.m, n = one.n, k = one.k, extra = static_cast<std::size_t>(one.extra);
  const std::size_t lda = (one.ta ? k : m) + extra, ldb = (one.tb ? n : k) + extra, ldd = m + extra;
  const auto x = random_values(lda * (one.ta ? m : k), random);
  const auto y = random_values(ldb * (one.tb ? k : n), random);
  const auto c = random_values(ldd * n, random);
  const auto bias = random_values(m, random);
  CopiedArray<In> device_x(x), device_y(y);
  CopiedArray<Out> device_c(c), device_bias(bias), device_d(ldd * n);
  CopiedArray<std::uint8_t> workspace_bytes(one.workspace_bytes);
  Problem<In, Out> problem(one);
  if (one.epilogue == CUBLASLT_EPILOGUE_BIAS)
    problem.template set<void*>(CUBLASLT_MATMUL_DESC_BIAS_POINTER, device_bias.data());
  REQUIRE(problem.find() == CUBLAS_STATUS_SUCCESS);
  REQUIRE(problem.multiply(device_x.data(), device_y.data(), device_c.data(), device_d.data(),
                           workspace_bytes.data()) == CUBLAS_STATUS_SUCCESS);
  REQUIRE(cudaDeviceSynchronize() == cudaSuccess);
  const std::vector<float> result = device_d.values();
  const double tolerance = sizeof(Out) == 4 ? 1e-5 : 1.0 / 256;
  for (std::size_t j = 0; j < n; ++j)
    for (std::size_t i = 0; i < m; ++i) {
      double expected = 0, size = 0;
      for (std::size_t p = 0; p < k; ++p) {
        const double product = double{x[one.ta ? p + i * lda : i + p * lda]} *
                               double{y[one.tb ? j + p * ldb : p + j * ldb]};
        expected += product;
        size += std::abs(product);
      }
      expected = double{one.alpha} * expected + double{one.beta} * double{c[i + j * ldd]};
      if (one.epilogue == CUBLASLT_EPILOGUE_BIAS) expected += double{bias[i]};
      REQUIRE(double{result[i + j * ldd]} ==
              Approx(expected).epsilon(tolerance).margin(1e-6 * size + 1e-6));
    }
}

TEST_CASE("the emulated cublasLtMatmul computes alpha op(A) op(B) + beta C + bias") {
  emulator::reset();
  std::mt19937 random(1);
  for (const bool ta : {false, true})
    for (const bool tb : {false, true})
      for (const float beta : {0.0f, 1.0f, -0.5f})
        for (const auto epilogue : {CUBLASLT_EPILOGUE_DEFAULT, CUBLASLT_EPILOGUE_BIAS}) {
          Case one{ta, tb, 5, 7, 9, 0, 1.25f, beta, epilogue};
          INFO("transposed " << ta << tb << ", beta " << beta << ", epilogue " << epilogue);
          check_product<float, float>(one, random);
          one = {ta, tb, 33, 18, 70, 8, 0.5f, beta, epilogue};
          check_product<bf16, bf16>(one, random);
          check_product<bf16, float>(one, random);
        }
}

TEST_CASE("a column of a product has the same bits however many others there are") {
  emulator::reset();
  std::mt19937 random(2);
  const std::size_t m = 19, k = 301, columns = 37;
  CopiedArray<bf16> x(random_values(m * k, random)), y(random_values(k * columns, random));
  CopiedArray<std::uint8_t> workspace(1 << 20);
  std::vector<float> all;
  for (const std::size_t n : {columns, std::size_t{1}, std::size_t{16}, std::size_t{17}}) {
    CopiedArray<float> d(m * n);
    Problem<bf16, float> problem({.m = m, .n = n, .k = k});
    REQUIRE(problem.find() == CUBLAS_STATUS_SUCCESS);
    REQUIRE(problem.multiply(x.data(), y.data(), d.data(), d.data(), workspace.data()) ==
            CUBLAS_STATUS_SUCCESS);
    const std::vector<float> result = d.values();
    if (all.empty()) all = result;
    CHECK(std::memcmp(result.data(), all.data(), result.size() * sizeof(float)) == 0);
  }
}

TEST_CASE("a product in place adds to what is there") {
  emulator::reset();
  CopiedArray<float> x(std::vector<float>{2}), y(std::vector<float>{3}), d(std::vector<float>{10});
  CopiedArray<std::uint8_t> workspace(1 << 20);
  Problem<float, float> problem({.m = 1, .n = 1, .k = 1, .beta = 1});
  REQUIRE(problem.find() == CUBLAS_STATUS_SUCCESS);
  REQUIRE(problem.multiply(x.data(), y.data(), d.data(), d.data(), workspace.data()) ==
          CUBLAS_STATUS_SUCCESS);
  CHECK(d.values() == std::vector<float>{16});
}

TEST_CASE("the emulated cuBLASLt refuses what the real one may fail on") {
  emulator::reset();
  CopiedArray<float> x(64), y(64), d(64);
  CopiedArray<std::uint8_t> workspace(1 << 20);
  const Case square{.m = 4, .n = 4, .k = 4};

  SECTION("a leading dimension below the rows") {
    Problem<float, float> problem(square);
    const std::int64_t leading = 3;
    cublasLtMatrixLayoutSetAttribute(problem.a, CUBLASLT_MATRIX_LAYOUT_LD, &leading,
                                     sizeof leading);
    CHECK(problem.find() == CUBLAS_STATUS_INVALID_VALUE);
  }
  SECTION("inner sizes that differ") {
    Problem<float, float> problem(square);
    const std::uint64_t rows = 5;
    cublasLtMatrixLayoutSetAttribute(problem.b, CUBLASLT_MATRIX_LAYOUT_ROWS, &rows, sizeof rows);
    const std::int64_t leading = 5;
    cublasLtMatrixLayoutSetAttribute(problem.b, CUBLASLT_MATRIX_LAYOUT_LD, &leading,
                                     sizeof leading);
    CHECK(problem.find() == CUBLAS_STATUS_INVALID_VALUE);
  }
  SECTION("fp32 operands with a bf16 result") {
    Problem<float, bf16> problem(square);
    CHECK(problem.find() == CUBLAS_STATUS_NOT_SUPPORTED);
  }
  SECTION("an algorithm for another shape") {
    Problem<float, float> problem(square), other({.m = 4, .n = 8, .k = 4});
    REQUIRE(problem.find() == CUBLAS_STATUS_SUCCESS);
    other.best = problem.best;
    CHECK(other.multiply(x.data(), y.data(), d.data(), d.data(), workspace.data()) ==
          CUBLAS_STATUS_INVALID_VALUE);
  }
  SECTION("operands less aligned than the algorithm was asked for") {
    Problem<float, float> problem(square);
    REQUIRE(problem.find() == CUBLAS_STATUS_SUCCESS);
    CHECK(problem.multiply(x.data() + 4, y.data(), d.data(), d.data(), workspace.data()) ==
          CUBLAS_STATUS_INVALID_VALUE);
  }
  SECTION("a workspace that is too small") {
    Problem<float, float> problem(square);
    REQUIRE(problem.find() == CUBLAS_STATUS_SUCCESS);
    REQUIRE(problem.best.workspaceSize > 0);
    CHECK(cublasLtMatmul(problem.handle, problem.descriptor, &square.alpha, x.data(), problem.a,
                         y.data(), problem.b, &square.beta, d.data(), problem.d, d.data(),
                         problem.d, &problem.best.algo, workspace.data(),
                         problem.best.workspaceSize - 1, nullptr) == CUBLAS_STATUS_INVALID_VALUE);
  }
  SECTION("a matrix in memory that the device cannot reach") {
    std::vector<float> host(1024);
    Problem<float, float> problem(square);
    REQUIRE(problem.find() == CUBLAS_STATUS_SUCCESS);
    void* aligned = host.data();
    std::size_t space = host.size() * sizeof(float);
    REQUIRE(std::align(256, 64, aligned, space) != nullptr);
    CHECK(problem.multiply(static_cast<float*>(aligned), y.data(), d.data(), d.data(),
                           workspace.data()) == CUBLAS_STATUS_EXECUTION_FAILED);
    CHECK(cudaDeviceSynchronize() == cudaErrorIllegalAddress);
    emulator::reset();
  }
}

}  // namespace
