#include "exec/store/chunk_table.hpp"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>

#include "base/errors.hpp"

namespace spillway {

ChunkTable::ChunkTable(std::vector<std::uint64_t> boundaries, std::uint64_t grid,
                       std::uint64_t size)
    : begins_(std::move(boundaries)) {
  SPILLWAY_ASSERT(grid > 0);
  begins_.push_back(0);
  begins_.push_back(size);
  for (std::uint64_t at = grid; at < size; at += grid) begins_.push_back(at);
  std::sort(begins_.begin(), begins_.end());
  begins_.erase(std::unique(begins_.begin(), begins_.end()), begins_.end());
  SPILLWAY_ASSERT(begins_.back() == size, "a boundary lies outside of the store");
  sums_.resize(begins_.size() - 1, 0);
}

std::size_t ChunkTable::find(std::uint64_t address) const {
  const auto found = std::lower_bound(begins_.begin(), begins_.end() - 1, address);
  return found == begins_.end() - 1 || *found != address
             ? count()
             : static_cast<std::size_t>(found - begins_.begin());
}

std::size_t ChunkTable::at(std::uint64_t address) const {
  const std::size_t chunk = find(address);
  SPILLWAY_ASSERT(chunk < count(), fmt::format("no chunk begins at {}", address));
  return chunk;
}

std::uint64_t ChunkTable::checksum(std::span<const std::byte> bytes) {
  const std::uint64_t sum = XXH3_64bits(bytes.data(), bytes.size());
  return sum == 0 ? 1 : sum;
}

}  // namespace spillway
