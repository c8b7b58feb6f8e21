// Data inside a page: columns of numbers in few bytes, compressed, as text that no markup can end.
// page/core.js reads it back.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace spillway {

// Whole numbers, one after the other, 7 bits a byte, the lowest first; the high bit says that more
// follow (LEB128). Small numbers take one byte, and 64-bit ones lose nothing.
class NumberColumn {
 public:
  void add(std::uint64_t number);
  // A number that may be negative: 0, -1, 1, -2 ... become 0, 1, 2, 3 ...
  void add_signed(std::int64_t number);
  const std::string& bytes() const { return bytes_; }

 private:
  std::string bytes_;
};

// RFC 4648, with padding.
std::string base64(std::string_view bytes);

// Compressed (zlib format, RFC 1950), then base64.
std::string packed(std::string_view bytes);

}  // namespace spillway
