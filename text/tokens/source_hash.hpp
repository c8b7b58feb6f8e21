// What the files of a source hold, as a number.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>

#include "text/source/source.hpp"

namespace spillway {

struct SourceHashListener {
  std::function<void(std::uint64_t done, std::uint64_t all)> progress;  // bytes; may be empty
  std::function<bool()> stop;  // may be empty; where it says so, the hash is 0
};

// XXH3 of the sizes and contents of all files, in order.
//
// `memory` (a file's path; empty: none) remembers the hash of each file by what the file system
// says of the file: device, number, size, times of change. A file of which all that is as it was is
// not read again. What changed less than a few seconds ago is not remembered: its times may not
// show the next change. A memory that is damaged or cannot be written is no failure. Throws
// InputError where a file cannot be read.
std::uint64_t source_hash(const Source& source, const std::filesystem::path& memory = {},
                          const SourceHashListener& listener = {});

}  // namespace spillway
