#include "exec/run/device.hpp"

#include <algorithm>

#include "base/errors.hpp"

namespace spillway {

void Device::upload(std::uint64_t offset, std::span<const std::byte> from) {
  const auto memory = gpu_memory();
  SPILLWAY_ASSERT(offset + from.size() <= memory.size());
  std::copy(from.begin(), from.end(), memory.begin() + static_cast<std::ptrdiff_t>(offset));
}

void Device::download(std::uint64_t offset, std::span<std::byte> to) {
  const auto memory = gpu_memory().subspan(offset, to.size());
  std::copy(memory.begin(), memory.end(), to.begin());
}

}  // namespace spillway
