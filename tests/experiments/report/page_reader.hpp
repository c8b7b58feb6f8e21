// A page read back, as a browser would.
#pragma once

#include <zlib.h>

#include <catch2/catch.hpp>
#include <cstdint>
#include <string>

namespace spillway::test {

// Of NumberColumn.
class NumberReader {
 public:
  explicit NumberReader(std::string bytes) : bytes_(std::move(bytes)) {}
  std::uint64_t next() {
    std::uint64_t number = 0;
    for (int shift = 0;; shift += 7) {
      REQUIRE(at_ < bytes_.size());
      const auto byte = static_cast<unsigned char>(bytes_[at_++]);
      number |= static_cast<std::uint64_t>(byte & 0x7f) << shift;
      if (byte < 0x80) return number;
    }
  }
  std::int64_t next_signed() {
    const std::uint64_t number = next();
    return static_cast<std::int64_t>(number % 2 == 0 ? number >> 1 : ~(number >> 1));
  }
  bool at_end() const { return at_ == bytes_.size(); }

 private:
  std::string bytes_;
  std::size_t at_ = 0;
};

inline std::string from_base64(const std::string& text) {
  const std::string digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string bytes;
  std::uint32_t held = 0;
  int bits = 0;
  for (const char c : text) {
    if (c == '=') break;
    held = held << 6 | static_cast<std::uint32_t>(digits.find(c));
    bits += 6;
    if (bits < 8) continue;
    bits -= 8;
    bytes += static_cast<char>(held >> bits & 0xff);
  }
  return bytes;
}

// What packed() was given.
inline std::string unpacked(const std::string& text) {
  const std::string compressed = from_base64(text);
  std::string bytes(std::size_t{1} << 16, '\0');
  for (;;) {
    uLongf size = bytes.size();
    const int status =
        ::uncompress(reinterpret_cast<Bytef*>(bytes.data()), &size,
                     reinterpret_cast<const Bytef*>(compressed.data()), compressed.size());
    if (status == Z_BUF_ERROR && bytes.size() < (std::size_t{1} << 30)) {
      bytes.resize(bytes.size() * 4);
      continue;
    }
    REQUIRE(status == Z_OK);
    bytes.resize(size);
    return bytes;
  }
}

// The data that a page brings along under a name.
inline std::string blob_of(const std::string& page, const std::string& name) {
  const std::string begin = "id=\"blob-" + name + "\">";
  const std::size_t at = page.find(begin);
  REQUIRE(at != std::string::npos);
  const std::size_t from = at + begin.size();
  return unpacked(page.substr(from, page.find('<', from) - from));
}

}  // namespace spillway::test
