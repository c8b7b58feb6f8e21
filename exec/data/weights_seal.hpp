// What frozen weights were when a training first read them: the hash of all bytes of their files,
// and by what it is seen that these files have not changed since.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "exec/data/checkpoint.hpp"

namespace spillway {

struct WeightsSeal {
  struct File {
    std::string name;  // without its folder
    std::uint64_t bytes = 0, inode = 0, device = 0;
    std::int64_t modified_ns = 0, changed_ns = 0;  // since 1970
    bool operator==(const File&) const = default;
  };
  std::vector<File> files;
  std::uint64_t headers = 0;  // Checkpoint::hash()
  std::uint64_t data = 0;     // XXH3 of the XXH3 of each file
};

// Reads all of the files once; or takes the hash from `known` where each file has the size, inode
// and times that it had then. `progress` (may be empty) is told the bytes read so far and in all.
// Throws MachineError.
WeightsSeal seal_weights(
    const Checkpoint& weights, const std::optional<WeightsSeal>& known = {},
    const std::function<void(std::uint64_t done, std::uint64_t all)>& progress = {},
    RingFactory make_ring = make_usual_ring);

}  // namespace spillway
