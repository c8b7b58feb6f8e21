// Looking at a committed training from outside: what is there, and is it whole.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "exec/store/training_store.hpp"

namespace spillway {

// The stores that a directory takes part in as the first of its stripe set: usually one, two while
// one is becoming the other. Where the record says that its other directories are somewhere else,
// that is where they are looked for.
std::vector<StoreLocation> find_stores(const std::filesystem::path& directory);

struct BadChunk {
  std::int32_t unit = 0;  // whose optimizer state it holds
  std::filesystem::path file;
  std::uint64_t offset = 0;  // in the file
  std::uint64_t bytes = 0;
  std::string why;
};

// Reads every chunk of the committed state and compares its checksum. `progress` is called with the
// bytes checked so far and in all, `make_ring` makes the ring it is read through. Throws
// InputError, MachineError when the store cannot be opened (it is in use by a run, a directory is
// missing).
std::vector<BadChunk> check_store(const ResumePoint& point,
                                  const std::function<void(std::uint64_t, std::uint64_t)>& progress,
                                  const RingFactory& make_ring = make_usual_ring);

}  // namespace spillway
