// Matrix products: through Matmul, as training makes them (bias and residual fused, gradients of
// weights added up in fp32), each beside a bare cuBLASLt product of the same shape and types with
// no epilogue and no accumulation; and the largest rate of such a product.
//
// The bare one is what cuBLASLt's heuristics put first, with the same workspace, free to add parts
// of a sum up in any order; and beside it the fastest of their first eight, whatever its bits.
#include <cublasLt.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <memory>

#include "base/errors.hpp"
#include "exec/cuda/bench/bench.hpp"
#include "exec/cuda/device/launch.hpp"
#include "exec/cuda/matmul/matmul.hpp"

namespace spillway::cuda {

namespace {

constexpr std::int64_t peak_size = 8192;

void require(cublasStatus_t status, const char* call) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  throw MachineError(fmt::format("{} ({}) in {}", cublasLtGetStatusName(status),
                                 cublasLtGetStatusString(status), call),
                     "check that the driver is as new as the CUDA libraries beside the program");
}
#define REQUIRE_CUBLAS(call) require((call), #call)

// A column-major operand.
struct Matrix {
  cudaDataType_t type;
  std::int64_t rows, columns;
};

// D = op(A) op(B), as cuBLASLt does it when asked for nothing else.
class BareProduct {
 public:
  BareProduct(cublasOperation_t op_a, const Matrix& a, cublasOperation_t op_b, const Matrix& b,
              const Matrix& d)
      : workspace_(Matmul::workspace_bytes, 0.0f) {
    REQUIRE_CUBLAS(cublasLtCreate(&library_));
    REQUIRE_CUBLAS(cublasLtMatmulDescCreate(&operation_, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    REQUIRE_CUBLAS(cublasLtMatmulDescSetAttribute(operation_, CUBLASLT_MATMUL_DESC_TRANSA, &op_a,
                                                  sizeof op_a));
    REQUIRE_CUBLAS(cublasLtMatmulDescSetAttribute(operation_, CUBLASLT_MATMUL_DESC_TRANSB, &op_b,
                                                  sizeof op_b));
    a_ = layout(a);
    b_ = layout(b);
    d_ = layout(d);
    cublasLtMatmulPreference_t preference = nullptr;
    REQUIRE_CUBLAS(cublasLtMatmulPreferenceCreate(&preference));
    const auto bytes = static_cast<std::uint64_t>(Matmul::workspace_bytes);
    std::array<cublasLtMatmulHeuristicResult_t, MatmulTuning::most_candidates> offered{};
    int found = 0;
    cublasStatus_t status = cublasLtMatmulPreferenceSetAttribute(
        preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &bytes, sizeof bytes);
    if (status == CUBLAS_STATUS_SUCCESS) {
      status =
          cublasLtMatmulAlgoGetHeuristic(library_, operation_, a_, b_, d_, d_, preference,
                                         static_cast<int>(offered.size()), offered.data(), &found);
    }
    cublasLtMatmulPreferenceDestroy(preference);
    require(status, "cublasLtMatmulAlgoGetHeuristic");
    for (int i = 0; i < found; ++i) {
      const cublasLtMatmulHeuristicResult_t& one = offered[static_cast<std::size_t>(i)];
      if (one.state == CUBLAS_STATUS_SUCCESS) algorithms_.push_back(one.algo);
    }
    require(algorithms_.empty() ? CUBLAS_STATUS_NOT_SUPPORTED : CUBLAS_STATUS_SUCCESS,
            "cublasLtMatmulAlgoGetHeuristic found no algorithm");
  }
  ~BareProduct() {
    for (const cublasLtMatrixLayout_t one : {a_, b_, d_}) {
      if (one != nullptr) cublasLtMatrixLayoutDestroy(one);
    }
    if (operation_ != nullptr) cublasLtMatmulDescDestroy(operation_);
    if (library_ != nullptr) cublasLtDestroy(library_);
  }
  BareProduct(const BareProduct&) = delete;
  BareProduct& operator=(const BareProduct&) = delete;

  // In the order of the heuristics.
  const std::vector<cublasLtMatmulAlgo_t>& algorithms() const { return algorithms_; }

  void run(std::size_t algorithm, const void* a, const void* b, void* d,
           cudaStream_t stream) const {
    const float one = 1, zero = 0;
    REQUIRE_CUBLAS(cublasLtMatmul(library_, operation_, &one, a, a_, b, b_, &zero, d, d_, d, d_,
                                  &algorithms_[algorithm], workspace_.data(),
                                  Matmul::workspace_bytes, stream));
  }

 private:
  static cublasLtMatrixLayout_t layout(const Matrix& matrix) {
    cublasLtMatrixLayout_t made = nullptr;
    REQUIRE_CUBLAS(
        cublasLtMatrixLayoutCreate(&made, matrix.type, static_cast<std::uint64_t>(matrix.rows),
                                   static_cast<std::uint64_t>(matrix.columns), matrix.rows));
    return made;
  }

  BenchArray<unsigned char> workspace_;
  cublasLtHandle_t library_ = nullptr;
  cublasLtMatmulDesc_t operation_ = nullptr;
  cublasLtMatrixLayout_t a_ = nullptr, b_ = nullptr, d_ = nullptr;
  std::vector<cublasLtMatmulAlgo_t> algorithms_;
};

// x (rows, in) to y (rows, out).
struct Shape {
  std::string name;
  std::int64_t rows, in, out;
  bool bias, residual;
};

std::vector<Shape> shapes_of(const BenchRunner& runner) {
  std::vector<Shape> shapes;
  const auto add = [&](std::int64_t c, std::int64_t rows, std::int64_t v, std::int64_t head_rows) {
    const auto named = [&](const char* name) { return fmt::format("{}-c{}", name, c); };
    shapes.push_back({named("qkv"), rows, c, 3 * c, true, false});
    shapes.push_back({named("projection"), rows, c, c, true, true});
    shapes.push_back({named("fc"), rows, c, 4 * c, true, false});
    shapes.push_back({named("fc-projection"), rows, 4 * c, c, true, true});
    shapes.push_back({named("head"), head_rows, c, v, false, false});
  };
  if (runner.tiny()) {
    add(32, 16, 48, 8);
    return shapes;
  }
  // The vocabulary is padded, and the head goes in chunks, as ModelCuda has it with sequences of
  // 1024 tokens, 8 or more at once.
  constexpr std::int64_t rows = 16 * 1024, vocabulary = 50304, head_rows = 4096;
  if (!runner.quick()) add(768, rows, vocabulary, head_rows);
  add(1600, rows, vocabulary, head_rows);
  return shapes;
}

class Products {
 public:
  Products(BenchRunner& runner, const Shape& shape)
      : runner_(runner),
        shape_(shape),
        x_(size(shape.rows, shape.in), 1.0f),
        w_(size(shape.out, shape.in), 0.02f),
        y_(size(shape.rows, shape.out), 1.0f),
        residual_(size(shape.rows, shape.residual ? shape.out : 1), 1.0f),
        bias_(size(1, shape.out), 0.02f),
        w_gradient_(size(shape.out, shape.in), 0.0f),
        workspace_(Matmul::workspace_bytes, 0.0f),
        tuning_memory_(MatmulTuning::memory_bytes, 0.0f),
        tuning_(bytes(tuning_memory_), bytes(workspace_), runner.stream()),
        matmul_(bytes(workspace_)) {
    matmul_.tune(&tuning_);
  }

  void run(std::vector<GpuTiming>& timings) {
    const std::int64_t rows = shape_.rows, in = shape_.in, out = shape_.out;
    constexpr cudaDataType_t narrow = CUDA_R_16BF, wide = CUDA_R_32F;
    const Matrix x{narrow, in, rows}, w{narrow, in, out}, y{narrow, out, rows},
        w_gradient{wide, in, out};
    {
      const BareProduct bare(CUBLAS_OP_T, w, CUBLAS_OP_N, x, y);
      add(
          "", timings,
          [&](std::int64_t, cudaStream_t stream) {
            matmul_.linear(x_.data(), w_.data(), shape_.bias ? bias_.data() : nullptr,
                           shape_.residual ? residual_.data() : nullptr, y_.data(), rows, in, out,
                           stream);
          },
          bare, w_.data(), x_.data(), y_.data());
    }
    {
      const BareProduct bare(CUBLAS_OP_N, w, CUBLAS_OP_N, y, x);
      add(
          "-dx", timings,
          [&](std::int64_t, cudaStream_t stream) {
            matmul_.input_gradient(y_.data(), w_.data(), x_.data(), rows, in, out, stream);
          },
          bare, w_.data(), y_.data(), x_.data());
    }
    const BareProduct bare(CUBLAS_OP_N, x, CUBLAS_OP_T, y, w_gradient);
    add(
        "-dw", timings,
        [&](std::int64_t, cudaStream_t stream) {
          matmul_.weight_gradient(y_.data(), x_.data(), w_gradient_.data(), rows, in, out, stream,
                                  {.adds = true});
        },
        bare, x_.data(), y_.data(), w_gradient_.data());
  }

 private:
  static std::size_t size(std::int64_t rows, std::int64_t columns) {
    return static_cast<std::size_t>(rows * columns);
  }
  static std::byte* bytes(const BenchArray<unsigned char>& array) {
    return reinterpret_cast<std::byte*>(array.data());
  }
  // By one round each.
  std::size_t fastest_of(const BareProduct& bare, const void* a, const void* b, void* d) {
    std::size_t fastest = 0;
    double least = std::numeric_limits<double>::infinity();
    for (std::size_t i = 0; i < bare.algorithms().size(); ++i) {
      const double seconds = runner_.time_once(
          [&](std::int64_t, cudaStream_t stream) { bare.run(i, a, b, d, stream); });
      if (seconds >= least) continue;
      least = seconds;
      fastest = i;
    }
    return fastest;
  }
  void add(const char* suffix, std::vector<GpuTiming>& timings, const BenchCall& call,
           const BareProduct& bare, const void* a, const void* b, void* d) {
    GpuTiming timing;
    timing.name = "matmul/" + shape_.name + suffix;
    timing.what = fmt::format("{} rows, {} to {}, bf16{}{}", shape_.rows, shape_.in, shape_.out,
                              *suffix == '\0' && shape_.bias ? ", bias" : "",
                              *suffix == '\0' && shape_.residual ? ", residual" : "");
    timing.flops = 2 * static_cast<double>(shape_.rows) * static_cast<double>(shape_.in) *
                   static_cast<double>(shape_.out);
    timing.reference = "bare cuBLASLt, same shape";
    const std::size_t fastest = fastest_of(bare, a, b, d);
    timing.best = fmt::format("number {} of {}: {}", fastest + 1, bare.algorithms().size(),
                              describe(bare.algorithms()[fastest]));
    const auto by = [&](std::size_t algorithm) {
      return [&bare, algorithm, a, b, d](std::int64_t, cudaStream_t stream) {
        bare.run(algorithm, a, b, d, stream);
      };
    };
    call(0, runner_.stream());  // tunes, which is not to be timed
    runner_.time(timing, call, by(0), by(fastest));
    timings.push_back(std::move(timing));
  }

  BenchRunner& runner_;
  const Shape& shape_;
  BenchArray<bf16> x_, w_, y_, residual_, bias_;
  BenchArray<float> w_gradient_;
  BenchArray<unsigned char> workspace_, tuning_memory_;
  MatmulTuning tuning_;
  Matmul matmul_;
};

}  // namespace

GpuTiming time_matmul_peak(BenchRunner& runner) {
  const std::int64_t n = runner.tiny() ? 16 : peak_size;
  const auto size = static_cast<std::size_t>(n * n);
  const BenchArray<bf16> a(size, 1.0f), b(size, 1.0f), d(size, 1.0f);
  const Matrix matrix{CUDA_R_16BF, n, n};
  const BareProduct product(CUBLAS_OP_T, matrix, CUBLAS_OP_N, matrix, matrix);
  GpuTiming timing;
  timing.name = "matmul/peak";
  timing.what = fmt::format("bare cuBLASLt, {0} x {0} x {0}, bf16, random numbers", n);
  timing.flops = 2 * static_cast<double>(n) * static_cast<double>(n) * static_cast<double>(n);
  runner.time(timing, [&](std::int64_t, cudaStream_t stream) {
    product.run(0, a.data(), b.data(), d.data(), stream);
  });
  return timing;
}

GpuTiming time_layer_products(BenchRunner& runner, const LayerProductShape& shape) {
  const std::int64_t rows = shape.rows, c = shape.hidden, wide = std::max(3 * c, shape.ffn);
  const auto size = [](std::int64_t one, std::int64_t other) {
    return static_cast<std::size_t>(one * other);
  };
  const BenchArray<bf16> x(size(rows, wide), 1.0f), w(size(wide, c), 0.02f),
      y(size(rows, wide), 1.0f);
  // y (rows, out) of x (rows, in) and w (out, in).
  const auto product = [rows](std::int64_t in, std::int64_t out) {
    constexpr cudaDataType_t type = CUDA_R_16BF;
    return std::make_unique<BareProduct>(CUBLAS_OP_T, Matrix{type, in, out}, CUBLAS_OP_N,
                                         Matrix{type, in, rows}, Matrix{type, out, rows});
  };
  const std::array<std::unique_ptr<BareProduct>, 4> products = {
      product(c, 3 * c), product(c, c), product(c, shape.ffn), product(shape.ffn, c)};
  GpuTiming timing;
  timing.name = fmt::format("matmul/layer-c{}-r{}", c, rows);
  timing.what = fmt::format("bare cuBLASLt, products of a layer, {} rows, {} and {} columns, bf16",
                            rows, c, shape.ffn);
  timing.flops = shape.flops();
  runner.time(timing, [&](std::int64_t, cudaStream_t stream) {
    for (const auto& one : products) one->run(0, w.data(), x.data(), y.data(), stream);
  });
  return timing;
}

std::vector<GpuTiming> time_matmuls(BenchRunner& runner) {
  std::vector<GpuTiming> timings;
  for (const Shape& shape : shapes_of(runner)) Products(runner, shape).run(timings);
  return timings;
}

}  // namespace spillway::cuda
