// The matrix product behind the emulated cuBLASLt.
#pragma once

#include <cstdint>
#include <functional>

namespace emulator {

// product(i, j) = sum over p of a(i, p) b(p, j), added up in fp32 in the order of p, each operation
// rounded on its own: an element's bits do not depend on how many others there are. Operands are
// fp32 or bf16, element (i, j) at i * row_step + j * column_step.
struct Operand {
  const void* data;
  bool bf16;
  std::int64_t row_step, column_step;
  float at(std::int64_t row, std::int64_t column) const;
};
// Calls store(i, j, product) for every element.
void gemm(std::int64_t m, std::int64_t n, std::int64_t k, const Operand& a, const Operand& b,
          const std::function<void(std::int64_t i, std::int64_t j, float product)>& store);

}  // namespace emulator
