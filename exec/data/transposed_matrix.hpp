// The transpose of a matrix that can only be read row by row, in a fixed amount of memory: a strip
// of its columns is held at a time, and filled by one pass over the rows.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

namespace spillway {

class TransposedMatrix {
 public:
  // Elements [first, first + count) of a row.
  using ReadRow =
      std::function<void(std::int64_t row, std::int64_t first, std::int64_t count, float* to)>;
  static constexpr std::int64_t usual_strip_bytes = std::int64_t{64} << 20;
  // `most_bytes`: of a strip, which holds at least one column.
  explicit TransposedMatrix(std::int64_t most_bytes = usual_strip_bytes)
      : most_bytes_(most_bytes) {}

  // Elements [first, first + count) of the transpose [columns, rows] of a [rows, columns] matrix.
  // `matrix` tells it from others: its strip is kept until another one is asked for.
  void read(const void* matrix, std::int64_t rows, std::int64_t columns, const ReadRow& read_row,
            std::int64_t first, std::int64_t count, float* to);

  std::uint64_t memory_bytes() const {
    return (strip_.capacity() + some_rows_.capacity()) * sizeof(float);
  }

 private:
  void load(std::int64_t rows, std::int64_t columns, const ReadRow& read_row, std::int64_t column);

  std::int64_t most_bytes_;
  const void* matrix_ = nullptr;  // of the strip; null: there is none
  std::int64_t first_ = 0, columns_ = 0;
  std::vector<float> strip_, some_rows_;
};

}  // namespace spillway
