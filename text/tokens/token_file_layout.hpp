// Where the parts of a token file lie, for those who read and write it (token_file.hpp).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "text/tokens/token_file.hpp"

namespace spillway {

inline constexpr char token_file_magic[] = "SPILLTOK";  // without the zero at its end
inline constexpr std::uint32_t token_file_version = 1;
inline constexpr std::size_t token_file_header_bytes = 128;

// Bytes from the start of the file.
struct TokenFileParts {
  std::uint64_t tokens = 0, ends = 0, mask = 0, description = 0, end = 0;
};

// For counts that a file can have.
TokenFileParts parts_of(const TokenFileHeader& header);

// The numbers between the version and the header's own checksum.
TokenFileHeader read_token_header(std::span<const std::byte> file);
std::array<std::byte, token_file_header_bytes> token_header_bytes(const TokenFileHeader& header);

}  // namespace spillway
