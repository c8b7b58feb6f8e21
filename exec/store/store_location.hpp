// Where the files of a store are.
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

namespace spillway {

// A drive has one; more than these are no drives.
inline constexpr std::uint32_t most_directories = 1024;

struct StoreLocation {
  std::vector<std::filesystem::path> directories;  // in stripe order
  std::uint64_t generation = 0;                    // counts the stores that the run has had
  bool operator==(const StoreLocation&) const = default;
};

}  // namespace spillway
