// How much room the kernels of kernels.hpp ask for: the most that any of them leaves in partial
// sums.
#include <algorithm>

#include "exec/cuda/kernels/device_math.hpp"
#include "exec/cuda/kernels/kernels.hpp"
#include "exec/cuda/kernels/partials.hpp"

namespace spillway::cuda {

std::size_t workspace_bytes(std::int64_t norm_columns, std::int64_t widest_columns,
                            std::int64_t unit_elements) {
  constexpr std::int64_t any_rows = std::int64_t{1} << 40;
  std::int64_t most = divide_up(unit_elements, squares_block) * std::int64_t{sizeof(double)};
  static_assert(adamw_block >= squares_block);
  // A narrower tensor may be cut into more blocks, and so leave more.
  for (std::int64_t columns = 8; columns <= widest_columns; columns += 8) {
    for (const std::int64_t size : {pack_size<float>, pack_size<bf16>}) {
      const auto at_most = [&](std::int64_t partial_sums) {
        most = std::max(most, partial_sums * columns * std::int64_t{sizeof(float)});
      };
      if (columns <= norm_columns) {
        at_most(2 * norm_backward_blocks(any_rows, columns / size, false).blocks);
        at_most(4 * norm_backward_blocks(any_rows, columns / size, true).blocks);
      }
      at_most(row_chunks(any_rows, columns, size).chunks);
    }
  }
  return static_cast<std::size_t>(divide_up(most, 256) * 256);
}

}  // namespace spillway::cuda
