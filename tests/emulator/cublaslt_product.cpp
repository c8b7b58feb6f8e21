#include "tests/emulator/cublaslt_product.hpp"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "exec/cuda/kernels/bf16.hpp"
#include "tests/emulator/calls.hpp"
#include "tests/emulator/cublaslt_algorithm.hpp"
#include "tests/emulator/gemm.hpp"
#include "tests/emulator/memory.hpp"
#include "tests/emulator/random.hpp"
#include "tests/emulator/settings.hpp"

namespace emulator {
namespace {

bool known_type(const Layout& layout) {
  return layout.type == CUDA_R_32F || layout.type == CUDA_R_16BF;
}
std::size_t element_bytes(const Layout& layout) { return layout.type == CUDA_R_32F ? 4 : 2; }

const void* batch_data(const Layout& layout, const void* data, std::int64_t batch) {
  return static_cast<const std::byte*>(data) +
         batch * layout.batch_offset * static_cast<std::int64_t>(element_bytes(layout));
}

Operand operand(const Layout& layout, const void* data, bool transposed) {
  const bool by_column = layout.order == CUBLASLT_ORDER_COL;
  Operand result{data, layout.type == CUDA_R_16BF, by_column ? 1 : layout.leading,
                 by_column ? layout.leading : 1};
  if (transposed) std::swap(result.row_step, result.column_step);
  return result;
}

void store(bool bf16, void* data, std::int64_t place, float value) {
  if (bf16) {
    static_cast<spillway::bf16*>(data)[place] = spillway::to_bf16(value);
  } else {
    static_cast<float*>(data)[place] = value;
  }
}

float gelu(float x) {
  return 0.5f * x * (1.0f + std::tanh(0.7978845608028654f * (x + 0.044715f * x * x * x)));
}

// y = x (1 + tanh u) / 2 with u = a (x + b x^3).
float gelu_slope(float x) {
  constexpr float a = 0.7978845608028654f, b = 0.044715f;
  const float tanh = std::tanh(a * (x + b * x * x * x));
  return 0.5f * (1.0f + tanh) + 0.5f * x * (1.0f - tanh * tanh) * (a * (1.0f + 3.0f * b * x * x));
}

bool has_gelu(const Descriptor& d) { return (d.epilogue & CUBLASLT_EPILOGUE_GELU) != 0; }
bool has_gelu_slope(const Descriptor& d) { return (d.epilogue & 64u) != 0; }

// Calls store(i, j, product) for every element of the product, added up as the algorithm does it.
void multiply(const Sizes& sizes, const Operand& a, const Operand& b, Order order,
              const std::function<void(std::int64_t, std::int64_t, float)>& store) {
  // Of the products [first, first + count), the last one first if the order is backwards.
  const auto part = [&](std::int64_t first, std::int64_t count, const auto& take) {
    const std::int64_t begin = order.backwards ? first + count - 1 : first;
    const auto from = [&](Operand operand, std::int64_t Operand::*step) {
      operand.data = static_cast<const std::byte*>(operand.data) +
                     begin * operand.*step * (operand.bf16 ? 2 : 4);
      if (order.backwards) operand.*step = -(operand.*step);
      return operand;
    };
    gemm(sizes.m, sizes.n, count, from(a, &Operand::column_step), from(b, &Operand::row_step),
         take);
  };
  if (order.parts == 1) return part(0, sizes.k, store);
  std::vector<float> sums(static_cast<std::size_t>(sizes.m * sizes.n));
  const auto sum = [&](std::int64_t i, std::int64_t j) -> float& {
    return sums[static_cast<std::size_t>(j * sizes.m + i)];
  };
  for (int p = 0; p < order.parts; ++p) {
    const std::int64_t first = sizes.k * p / order.parts, end = sizes.k * (p + 1) / order.parts;
    part(first, end - first,
         [&](std::int64_t i, std::int64_t j, float product) { sum(i, j) += product; });
  }
  for (std::int64_t j = 0; j < sizes.n; ++j)
    for (std::int64_t i = 0; i < sizes.m; ++i) store(i, j, sum(i, j));
}

// Whether all of the matrix lies in memory that the device can reach.
bool lies_on_device(const Layout& layout, const void* data) {
  const bool by_column = layout.order == CUBLASLT_ORDER_COL;
  const std::uint64_t lines = by_column ? layout.columns : layout.rows;
  const std::uint64_t line = by_column ? layout.rows : layout.columns;
  const std::uint64_t elements = (lines - 1) * static_cast<std::uint64_t>(layout.leading) + line;
  for (std::int32_t batch = 0; batch < layout.batches; ++batch) {
    const Place place = place_of(batch_data(layout, data, batch), elements * element_bytes(layout));
    if (place != Place::device && place != Place::pinned) return false;
  }
  return true;
}

}  // namespace

bool has_bias(const Descriptor& d) { return (d.epilogue & CUBLASLT_EPILOGUE_BIAS) != 0; }
bool has_auxiliary(const Descriptor& d) { return (d.epilogue & 128u) != 0; }
bool sums_result(const Descriptor& d) { return d.epilogue == CUBLASLT_EPILOGUE_DGELU_BGRAD; }
bool sums_inputs(const Descriptor& d) {
  return d.epilogue == CUBLASLT_EPILOGUE_BGRADA || d.epilogue == CUBLASLT_EPILOGUE_BGRADB;
}

cublasStatus_t check_problem(const Descriptor& descriptor, const Layout& a, const Layout& b,
                             const Layout& c, const Layout& d, Sizes& sizes) {
  for (const Layout* layout : {&a, &b, &c, &d}) {
    if (!known_type(*layout) || layout->order < 0 || layout->order > CUBLASLT_ORDER_ROW)
      return CUBLAS_STATUS_NOT_SUPPORTED;
    const auto least = static_cast<std::int64_t>(
        layout->order == CUBLASLT_ORDER_COL ? layout->rows : layout->columns);
    if (layout->rows == 0 || layout->columns == 0 || layout->leading < least ||
        layout->batches < 1 || layout->batches != d.batches)
      return CUBLAS_STATUS_INVALID_VALUE;
  }
  const bool ta = descriptor.transpose_a != CUBLAS_OP_N, tb = descriptor.transpose_b != CUBLAS_OP_N;
  sizes.m = static_cast<std::int64_t>(ta ? a.columns : a.rows);
  sizes.k = static_cast<std::int64_t>(ta ? a.rows : a.columns);
  sizes.n = static_cast<std::int64_t>(tb ? b.rows : b.columns);
  const auto k_of_b = static_cast<std::int64_t>(tb ? b.columns : b.rows);
  if (k_of_b != sizes.k) return CUBLAS_STATUS_INVALID_VALUE;
  for (const Layout* result : {&c, &d})
    if (static_cast<std::int64_t>(result->rows) != sizes.m ||
        static_cast<std::int64_t>(result->columns) != sizes.n)
      return CUBLAS_STATUS_INVALID_VALUE;
  // Types that go together, from the library's table.
  if (a.type != b.type || c.type != d.type || c.order != d.order)
    return CUBLAS_STATUS_NOT_SUPPORTED;
  if (a.type == CUDA_R_32F && d.type != CUDA_R_32F) return CUBLAS_STATUS_NOT_SUPPORTED;
  const bool fp32_sums = descriptor.compute == CUBLAS_COMPUTE_32F ||
                         descriptor.compute == CUBLAS_COMPUTE_32F_PEDANTIC ||
                         descriptor.compute == CUBLAS_COMPUTE_32F_FAST_16BF ||
                         descriptor.compute == CUBLAS_COMPUTE_32F_FAST_TF32;
  if (!fp32_sums || descriptor.scale != CUDA_R_32F) return CUBLAS_STATUS_NOT_SUPPORTED;
  switch (descriptor.epilogue) {
    case CUBLASLT_EPILOGUE_DEFAULT:
    case CUBLASLT_EPILOGUE_BIAS:
    case CUBLASLT_EPILOGUE_GELU:
    case CUBLASLT_EPILOGUE_GELU_BIAS:
    case CUBLASLT_EPILOGUE_GELU_AUX:
    case CUBLASLT_EPILOGUE_GELU_AUX_BIAS:
    case CUBLASLT_EPILOGUE_DGELU:
    case CUBLASLT_EPILOGUE_DGELU_BGRAD:
    case CUBLASLT_EPILOGUE_BGRADA:
    case CUBLASLT_EPILOGUE_BGRADB:
      break;
    default:
      return CUBLAS_STATUS_NOT_SUPPORTED;
  }
  // Epilogues work down columns: only for results that are stored so.
  if (descriptor.epilogue != CUBLASLT_EPILOGUE_DEFAULT && d.order != CUBLASLT_ORDER_COL)
    return CUBLAS_STATUS_NOT_SUPPORTED;
  if (descriptor.bias_type != -1 && descriptor.bias_type != static_cast<std::int32_t>(d.type))
    return CUBLAS_STATUS_NOT_SUPPORTED;
  if (has_auxiliary(descriptor) &&
      (descriptor.auxiliary_leading % 8 != 0 || descriptor.auxiliary_leading < sizes.m))
    return CUBLAS_STATUS_INVALID_VALUE;
  return CUBLAS_STATUS_SUCCESS;
}

std::uint64_t fingerprint(const Descriptor& descriptor, const Layout& a, const Layout& b,
                          const Layout& c, const Layout& d) {
  std::uint64_t value = 1;
  const auto add = [&value](auto field) { value = mix(value ^ static_cast<std::uint64_t>(field)); };
  for (const Layout* layout : {&a, &b, &c, &d}) {
    add(layout->type), add(layout->order), add(layout->rows), add(layout->columns);
    add(layout->leading), add(layout->batches), add(layout->batch_offset);
  }
  add(descriptor.compute), add(descriptor.transpose_a), add(descriptor.transpose_b);
  add(descriptor.epilogue), add(descriptor.pointer_mode), add(descriptor.auxiliary_leading);
  return value;
}

Layout Product::auxiliary() const {
  Layout layout = d;
  layout.leading = descriptor.auxiliary_leading;
  return layout;
}

bool Product::reachable() const {
  return lies_on_device(a, a_data) && lies_on_device(b, b_data) && lies_on_device(d, d_data) &&
         (!reads_c() || lies_on_device(c, c_data)) &&
         (!has_auxiliary(descriptor) || lies_on_device(auxiliary(), descriptor.auxiliary));
}

void Product::run(std::uint64_t seed) const {
  count_product(algorithm);
  const auto mark = static_cast<std::byte>(seed);
  std::fill_n(workspace, workspace_bytes, mark);
  for (std::int32_t batch = 0; batch < d.batches; ++batch) run_batch(batch);
  if (std::any_of(workspace, workspace + workspace_bytes,
                  [mark](std::byte value) { return value != mark; }))
    fail_device(cudaErrorIllegalAddress,
                "the workspace of a cublasLtMatmul was written while it ran");
}

void Product::run_batch(std::int64_t batch) const {
  const float scale = device_alpha != nullptr ? *device_alpha : alpha;
  const float keep = device_beta != nullptr ? *device_beta : beta;
  const Operand left =
      operand(a, batch_data(a, a_data, batch), descriptor.transpose_a != CUBLAS_OP_N);
  const Operand right =
      operand(b, batch_data(b, b_data, batch), descriptor.transpose_b != CUBLAS_OP_N);
  const Operand added = operand(c, keep != 0 ? batch_data(c, c_data, batch) : nullptr, false);
  void* const result = const_cast<void*>(batch_data(d, d_data, batch));
  const Operand places = operand(d, result, false);
  const bool bf16 = places.bf16;
  const Operand bias{batch_data(d, descriptor.bias, 0), bf16, 1, descriptor.bias_batch_stride};
  const Operand auxiliary{descriptor.auxiliary, bf16, 1, descriptor.auxiliary_leading};
  std::vector<float> result_sums(static_cast<std::size_t>(sizes.m));
  multiply(sizes, left, right, order_of(algorithm),
           [&](std::int64_t i, std::int64_t j, float product) {
             float value = scale * product;
             if (keep != 0) value += keep * added.at(i, j);
             if (has_bias(descriptor)) value += bias.at(i, batch);
             if (has_gelu_slope(descriptor)) {
               value *= gelu_slope(auxiliary.at(i, j));
             } else if (has_auxiliary(descriptor)) {
               store(bf16, descriptor.auxiliary, i + j * descriptor.auxiliary_leading, value);
             }
             if (has_gelu(descriptor)) value = gelu(value);
             result_sums[static_cast<std::size_t>(i)] += value;
             store(bf16, result, i * places.row_step + j * places.column_step, value);
           });
  if (sums_result(descriptor)) {
    for (std::int64_t i = 0; i < sizes.m; ++i)
      store(bf16, descriptor.bias, i, result_sums[static_cast<std::size_t>(i)]);
  }
  if (!sums_inputs(descriptor)) return;
  // The sum of op(A) over columns, or of op(B) over rows.
  const bool of_a = descriptor.epilogue == CUBLASLT_EPILOGUE_BGRADA;
  for (std::int64_t i = 0; i < (of_a ? sizes.m : sizes.n); ++i) {
    float sum = 0;
    for (std::int64_t p = 0; p < sizes.k; ++p) sum += of_a ? left.at(i, p) : right.at(p, i);
    store(bf16, descriptor.bias, i + batch * descriptor.bias_batch_stride, sum);
  }
}

}  // namespace emulator
