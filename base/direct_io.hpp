// Unbuffered I/O (O_DIRECT), where it is to be had.
#pragma once

#include <cstddef>
#include <optional>
#include <string>

namespace spillway {

inline constexpr std::size_t direct_io_alignment = 4096;  // of offsets, lengths and memory

// Switches an open file that can be read to unbuffered I/O. Otherwise leaves it as it was, and
// returns why that is not possible.
std::optional<std::string> try_direct_io(int descriptor);

}  // namespace spillway
