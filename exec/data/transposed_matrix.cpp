#include "exec/data/transposed_matrix.hpp"

#include <algorithm>

namespace spillway {

namespace {

constexpr std::int64_t rows_at_once = 16;  // a cache line of the strip

}  // namespace

void TransposedMatrix::read(const void* matrix, std::int64_t rows, std::int64_t columns,
                            const ReadRow& read_row, std::int64_t first, std::int64_t count,
                            float* to) {
  while (count > 0) {
    const std::int64_t column = first / rows;
    if (matrix_ != matrix || column < first_ || column >= first_ + columns_) {
      matrix_ = nullptr;  // nothing is there while a row may not be readable
      load(rows, columns, read_row, column);
      matrix_ = matrix;
    }
    const std::int64_t from = first - first_ * rows;
    const std::int64_t some = std::min(count, columns_ * rows - from);
    std::copy_n(strip_.begin() + from, some, to);
    to += some;
    first += some;
    count -= some;
  }
}

// The strip that `column` lies in.
void TransposedMatrix::load(std::int64_t rows, std::int64_t columns, const ReadRow& read_row,
                            std::int64_t column) {
  const auto column_bytes = rows * static_cast<std::int64_t>(sizeof(float));
  const std::int64_t most = std::max<std::int64_t>(1, most_bytes_ / column_bytes);
  first_ = column / most * most;
  columns_ = std::min(most, columns - first_);
  strip_.resize(static_cast<std::size_t>(columns_ * rows));
  some_rows_.resize(static_cast<std::size_t>(columns_ * rows_at_once));
  for (std::int64_t row = 0; row < rows; row += rows_at_once) {
    const std::int64_t some = std::min(rows_at_once, rows - row);
    for (std::int64_t r = 0; r < some; ++r)
      read_row(row + r, first_, columns_, some_rows_.data() + r * columns_);
    for (std::int64_t c = 0; c < columns_; ++c) {
      for (std::int64_t r = 0; r < some; ++r)
        strip_[static_cast<std::size_t>(c * rows + row + r)] =
            some_rows_[static_cast<std::size_t>(r * columns_ + c)];
    }
  }
}

}  // namespace spillway
