#include "tests/emulator/gemm.hpp"

#include <algorithm>
#include <vector>

#include "exec/cuda/kernels/bf16.hpp"

namespace emulator {
namespace {

// A tile of the product; its rows are held in registers, as vectors along columns.
constexpr std::int64_t tile_rows = 4, tile_columns = 16;
using Row = float __attribute__((vector_size(tile_columns * sizeof(float))));
// As an element of std::vector: of a bare vector type it forgets the alignment.
struct alignas(tile_columns * sizeof(float)) PanelRow {
  Row values;
};

// a_panel: (k, tile_rows), b_panel: (k, tile_columns).
__attribute__((always_inline)) inline void tile(std::int64_t k, const float* a_panel,
                                                const PanelRow* b_panel, Row* sums) {
  Row s0{}, s1{}, s2{}, s3{};
  for (std::int64_t p = 0; p < k; ++p, a_panel += tile_rows) {
    const Row b = b_panel[p].values;
    s0 += a_panel[0] * b;
    s1 += a_panel[1] * b;
    s2 += a_panel[2] * b;
    s3 += a_panel[3] * b;
  }
  sums[0] = s0;
  sums[1] = s1;
  sums[2] = s2;
  sums[3] = s3;
}

// The same sums for every set of instructions: vectors only lie side by side.
void tile_plain(std::int64_t k, const float* a, const PanelRow* b, Row* sums) {
  tile(k, a, b, sums);
}
#if defined(__x86_64__)
__attribute__((target("avx2"))) void tile_avx2(std::int64_t k, const float* a, const PanelRow* b,
                                               Row* sums) {
  tile(k, a, b, sums);
}
__attribute__((target("avx512f"))) void tile_avx512(std::int64_t k, const float* a,
                                                    const PanelRow* b, Row* sums) {
  tile(k, a, b, sums);
}
#endif

auto* best_tile() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f")) return &tile_avx512;
  if (__builtin_cpu_supports("avx2")) return &tile_avx2;
#endif
  return &tile_plain;
}

}  // namespace

float Operand::at(std::int64_t row, std::int64_t column) const {
  const std::int64_t place = row * row_step + column * column_step;
  return bf16 ? spillway::to_float(static_cast<const spillway::bf16*>(data)[place])
              : static_cast<const float*>(data)[place];
}

void gemm(std::int64_t m, std::int64_t n, std::int64_t k, const Operand& a, const Operand& b,
          const std::function<void(std::int64_t, std::int64_t, float)>& store) {
  const auto panels = [](std::int64_t count, std::int64_t width) {
    return (count + width - 1) / width;
  };
  std::vector<PanelRow> b_panels(static_cast<std::size_t>(panels(n, tile_columns) * k));
  for (std::int64_t j = 0; j < n; ++j)
    for (std::int64_t p = 0; p < k; ++p)
      b_panels[static_cast<std::size_t>(j / tile_columns * k + p)].values[j % tile_columns] =
          b.at(p, j);
  std::vector<float> a_panel(static_cast<std::size_t>(tile_rows * k));
  auto* const compute = best_tile();
  Row sums[tile_rows];
  for (std::int64_t i = 0; i < m; i += tile_rows) {
    const std::int64_t rows = std::min(tile_rows, m - i);
    for (std::int64_t p = 0; p < k; ++p)
      for (std::int64_t row = 0; row < rows; ++row)
        a_panel[static_cast<std::size_t>(p * tile_rows + row)] = a.at(i + row, p);
    for (std::int64_t j = 0; j < n; j += tile_columns) {
      compute(k, a_panel.data(), b_panels.data() + j / tile_columns * k, sums);
      for (std::int64_t row = 0; row < rows; ++row)
        for (std::int64_t column = 0; column < std::min(tile_columns, n - j); ++column)
          store(i + row, j + column, sums[row][column]);
    }
  }
}

}  // namespace emulator
