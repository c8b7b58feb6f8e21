#include "exec/cuda/attention/attention.hpp"

#include <fmt/format.h>

#include <string>

#include "base/errors.hpp"

namespace spillway::cuda {

namespace {

constexpr std::int64_t head_step = 8, largest_head = 128;

// The numbers of heads that so many channels can be cut into, those of the largest heads first.
std::string working_heads(std::int64_t channels) {
  std::string list;
  for (std::int64_t size = largest_head; channels > 0 && size > 0; size -= head_step) {
    if (channels % size != 0) continue;
    list += fmt::format("{}{} (of {})", list.empty() ? "" : ", ", channels / size, size);
  }
  return list;
}

}  // namespace

void require_attention_head(std::int64_t channels, std::int64_t heads) {
  const bool whole = heads > 0 && channels > 0 && channels % heads == 0;
  const std::int64_t head_size = whole ? channels / heads : 0;
  if (whole && head_size % head_step == 0 && head_size <= largest_head) return;
  const std::string what = fmt::format(
      "attention on a GPU takes heads whose size is a multiple of {} up to {}, not {} "
      "channels in {} heads{}",
      head_step, largest_head, channels, heads, whole ? fmt::format(" ({} each)", head_size) : "");
  const std::string working = working_heads(channels);
  throw InputError(
      what, working.empty()
                ? fmt::format("choose a hidden size that is a multiple of {}, and heads of 64 or "
                              "128 to be fast",
                              head_step)
                : fmt::format("numbers of heads that work with {} channels: {}; heads of 64 and "
                              "128 are the fast ones",
                              channels, working));
}

}  // namespace spillway::cuda
