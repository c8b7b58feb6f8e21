// What frozen weights were when a training first read them: a hash of all of their tensors, and by
// what it is seen that their files have not changed since.
#pragma once

#include <cstdint>
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
  std::uint64_t data = 0;     // Checkpoint::data_hash()

  bool of_same_files(const WeightsSeal& other) const {
    return headers == other.headers && files == other.files;
  }
};

// All but `data`, which is 0. Throws MachineError.
WeightsSeal describe_files(const Checkpoint& weights);

// With the hash of `known` where each file has the size, inode and times that it had then; else
// what has not been read yet is read. Throws MachineError.
WeightsSeal seal_weights(Checkpoint& weights, const std::optional<WeightsSeal>& known = {});

}  // namespace spillway
