#include "exec/cuda/matmul/matmul_shape.hpp"

#include <fmt/core.h>

#include "base/errors.hpp"

namespace spillway::cuda {

namespace {

const char* formula_of(MatmulForm form) {
  switch (form) {
    case MatmulForm::linear:
      return "y = x w^T";
    case MatmulForm::input_gradient:
      return "dx = dy w";
    case MatmulForm::weight_gradient:
      return "dw = dy^T x";
    case MatmulForm::gelu_gradient:
      return "dx = (dy w) gelu'(z)";
  }
  SPILLWAY_ASSERT(false);
}

const char* key_of(MatmulForm form) {
  switch (form) {
    case MatmulForm::linear:
      return "linear";
    case MatmulForm::input_gradient:
      return "dx";
    case MatmulForm::weight_gradient:
      return "dw";
    case MatmulForm::gelu_gradient:
      return "dgelu";
  }
  SPILLWAY_ASSERT(false);
}

const char* name_of(cudaDataType_t type) { return type == CUDA_R_32F ? "fp32" : "bf16"; }

std::string key_of(const MatmulOperand& operand) {
  return fmt::format("{}x{}/{}@{}", operand.rows, operand.columns, operand.stride,
                     operand.alignment);
}

}  // namespace

std::size_t bytes_of(cudaDataType_t type) { return type == CUDA_R_32F ? 4 : 2; }

std::int32_t alignment_of(const void* data, std::int64_t bytes) {
  const auto bits = reinterpret_cast<std::uintptr_t>(data) | static_cast<std::uintptr_t>(bytes) |
                    std::uintptr_t{256};
  return static_cast<std::int32_t>(bits & (~bits + 1));
}

MatmulOperand matmul_operand(const void* data, cudaDataType_t type, std::int64_t rows,
                             std::int64_t columns, std::int64_t stride) {
  SPILLWAY_ASSERT(rows > 0 && columns > 0 && stride >= rows,
                  fmt::format("{} x {}, stride {}", rows, columns, stride));
  const auto bytes = columns * stride * static_cast<std::int64_t>(bytes_of(type));
  return {rows, columns, stride, alignment_of(data, bytes)};
}

std::string to_string(const MatmulShape& shape) {
  return fmt::format("{} ({} to {}; {} x {} by {} x {}, strides {}, {}, {}{}{})",
                     formula_of(shape.form), name_of(shape.type), name_of(shape.result_type),
                     shape.a.rows, shape.a.columns, shape.b.rows, shape.b.columns, shape.a.stride,
                     shape.b.stride, shape.d.stride, shape.bias_alignment != 0 ? ", bias" : "",
                     shape.adds ? ", added" : "");
}

std::string key_of(const MatmulShape& shape) {
  std::string key = fmt::format("{}:{}:{}:{},{},{},{}", key_of(shape.form), name_of(shape.type),
                                name_of(shape.result_type), key_of(shape.a), key_of(shape.b),
                                key_of(shape.c), key_of(shape.d));
  if (shape.bias_alignment != 0) key += fmt::format(":bias@{}", shape.bias_alignment);
  if (shape.gelu_alignment != 0) key += fmt::format(":z@{}", shape.gelu_alignment);
  if (shape.adds) key += ":adds";
  return key;
}

}  // namespace spillway::cuda
