#include "text/tokenizer/utf8.hpp"

#include <cstdint>
#include <cstring>

namespace spillway {

namespace {

// The number of bytes of the valid character at the start of `text`, which is not empty; 0: none.
std::size_t valid_character(std::string_view text) {
  const auto byte = [&](std::size_t i) {
    return i < text.size() ? static_cast<unsigned char>(text[i]) : 0u;
  };
  const auto follows = [&](std::size_t i) { return (byte(i) & 0xc0u) == 0x80u; };
  const unsigned lead = byte(0);
  if (lead < 0x80) return 1;
  if (lead < 0xc2 || lead > 0xf4 || !follows(1)) return 0;
  if (lead < 0xe0) return 2;
  if (!follows(2)) return 0;
  if (lead < 0xf0) {
    const bool overlong = lead == 0xe0 && byte(1) < 0xa0;
    const bool surrogate = lead == 0xed && byte(1) >= 0xa0;
    return overlong || surrogate ? 0 : 3;
  }
  const bool overlong = lead == 0xf0 && byte(1) < 0x90;
  const bool beyond = lead == 0xf4 && byte(1) >= 0x90;
  return overlong || beyond || !follows(3) ? 0 : 4;
}

}  // namespace

std::size_t valid_utf8(std::string_view text) {
  std::size_t at = 0;
  while (at < text.size()) {
    while (at + 8 <= text.size()) {  // ASCII
      std::uint64_t bytes = 0;
      std::memcpy(&bytes, text.data() + at, 8);
      if ((bytes & 0x8080808080808080u) != 0) break;
      at += 8;
    }
    if (at == text.size()) break;
    const std::size_t bytes = valid_character(text.substr(at));
    if (bytes == 0) break;
    at += bytes;
  }
  return at;
}

char32_t utf8_character(std::string_view text) {
  const auto byte = [&](std::size_t i) {
    return static_cast<char32_t>(static_cast<unsigned char>(text[i]));
  };
  switch (utf8_length(text[0])) {
    case 1:
      return byte(0);
    case 2:
      return (byte(0) & 0x1fu) << 6 | (byte(1) & 0x3fu);
    case 3:
      return (byte(0) & 0x0fu) << 12 | (byte(1) & 0x3fu) << 6 | (byte(2) & 0x3fu);
    default:
      return (byte(0) & 0x07u) << 18 | (byte(1) & 0x3fu) << 12 | (byte(2) & 0x3fu) << 6 |
             (byte(3) & 0x3fu);
  }
}

std::size_t last_utf8_character(std::string_view text) {
  std::size_t at = text.size() - 1;
  while (at > 0 && (static_cast<unsigned char>(text[at]) & 0xc0u) == 0x80u) --at;
  return at;
}

void append_utf8(char32_t character, std::string& text) {
  const auto put = [&](char32_t byte) { text.push_back(static_cast<char>(byte)); };
  if (character < 0x80) return put(character);
  if (character < 0x800) {
    put(0xc0u | character >> 6);
  } else {
    if (character < 0x10000) {
      put(0xe0u | character >> 12);
    } else {
      put(0xf0u | character >> 18);
      put(0x80u | (character >> 12 & 0x3fu));
    }
    put(0x80u | (character >> 6 & 0x3fu));
  }
  put(0x80u | (character & 0x3fu));
}

}  // namespace spillway
