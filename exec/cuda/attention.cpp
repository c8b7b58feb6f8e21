#include "exec/cuda/attention.hpp"

#include <string>

#include "base/errors.hpp"

namespace spillway::cuda {

void require_attention_head(std::int64_t channels, std::int64_t heads) {
  if (heads > 0 && channels > 0 && channels % heads == 0) {
    const std::int64_t head_size = channels / heads;
    if (head_size % 8 == 0 && head_size <= 128) return;
  }
  throw InputError("attention on a GPU takes heads whose size is a multiple of 8 up to 128; " +
                   std::to_string(channels) + " channels in " + std::to_string(heads) +
                   " heads are not: choose another number of heads");
}

}  // namespace spillway::cuda
