// Where the files of a store are.
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

namespace spillway {

// A drive has one; more than these are no drives.
inline constexpr std::uint32_t most_directories = 1024;

// Directories on drives, those of a set of drives after one another.
struct DriveFolders {
  std::vector<std::filesystem::path> all;
  std::vector<std::uint32_t> sets = {};  // how many of them are on each set; empty: all on one

  // Of one set.
  std::vector<std::filesystem::path> of_set(std::size_t set) const {
    if (sets.empty()) return set == 0 ? all : std::vector<std::filesystem::path>();
    auto first = all.begin();
    for (std::size_t s = 0; s < set; ++s) first += sets[s];
    return {first, first + sets[set]};
  }
  std::size_t set_count() const { return sets.empty() ? 1 : sets.size(); }
};

// Bytes that are free for each set; what is free on a file system is shared equally by the sets
// that have directories there. And the number of file systems of each.
struct DriveRoom {
  std::vector<std::uint64_t> free;
  std::vector<std::int64_t> file_systems;
};
DriveRoom room_on(const DriveFolders& drives);

struct StoreLocation {
  std::vector<std::filesystem::path> directories;  // in stripe order
  std::uint64_t generation = 0;                    // counts the stores that the run has had
  bool operator==(const StoreLocation&) const = default;
};

}  // namespace spillway
