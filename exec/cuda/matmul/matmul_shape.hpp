// What a matrix product is, for choosing how it is computed: everything that an algorithm of
// cuBLASLt may depend on, and nothing else. Two products of one shape are computed by one
// algorithm, wherever their operands lie.
#pragma once

#include <library_types.h>

#include <compare>
#include <cstdint>
#include <string>

namespace spillway::cuda {

// y = x w^T, dx = dy w, dw = dy^T x, and dx = (dy w) gelu'(z).
enum class MatmulForm : std::uint8_t { linear, input_gradient, weight_gradient, gelu_gradient };

// A column-major operand.
struct MatmulOperand {
  std::int64_t rows = 0, columns = 0, stride = 0;  // stride: of columns, in elements
  std::int32_t alignment = 0;                      // bytes
  auto operator<=>(const MatmulOperand&) const = default;
};

// D = op(A) op(B) [+ C], and what is fused into it.
struct MatmulShape {
  MatmulForm form = MatmulForm::linear;
  cudaDataType_t type = CUDA_R_32F, result_type = CUDA_R_32F;
  MatmulOperand a, b, c, d;
  // Of the bias that is added, or of the sum over rows of dx that gelu_gradient takes; 0: none.
  std::int32_t bias_alignment = 0;
  std::int32_t gelu_alignment = 0;  // of gelu_gradient's z, which has the sizes of d
  bool adds = false;                // C is D but in MatmulForm::linear
  auto operator<=>(const MatmulShape&) const = default;
};

// A product of a shape: where its operands lie, in device memory.
struct MatmulProduct {
  MatmulShape shape;
  const void *a = nullptr, *b = nullptr, *c = nullptr, *gelu_input = nullptr;
  void *bias = nullptr, *d = nullptr;  // the bias is written by gelu_gradient only
  float factor = 1;                    // of op(A) op(B)
};

std::size_t bytes_of(cudaDataType_t type);

// The alignment, up to 256 bytes, that an algorithm may count on. Never more than that of the end
// of a matrix: the tensors of a group of sequences lie one group after the other when they are
// saved, and at the start of scratch when recomputed, and both must be served by one algorithm, or
// the choice of what to save would change bits.
std::int32_t alignment_of(const void* data, std::int64_t bytes);

MatmulOperand matmul_operand(const void* data, cudaDataType_t type, std::int64_t rows,
                             std::int64_t columns, std::int64_t stride);

// For messages.
std::string to_string(const MatmulShape& shape);
// The same for every shape that is equal, and for no other: without spaces, stable from version to
// version, because runs are recorded by it.
std::string key_of(const MatmulShape& shape);

}  // namespace spillway::cuda
