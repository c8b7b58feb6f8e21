// Characters of UTF-8.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace spillway {

// How many bytes at the start of `text` are valid UTF-8, to the end of a character.
std::size_t valid_utf8(std::string_view text);

// The number of bytes of the character that begins with this byte of valid UTF-8.
constexpr std::size_t utf8_length(char first) {
  const auto byte = static_cast<unsigned char>(first);
  return byte < 0x80 ? 1 : byte < 0xe0 ? 2 : byte < 0xf0 ? 3 : 4;
}

// The character at the start of valid UTF-8.
char32_t utf8_character(std::string_view text);
// Of the character that ends the text, which is valid UTF-8 and not empty: where it begins.
std::size_t last_utf8_character(std::string_view text);

void append_utf8(char32_t character, std::string& text);

}  // namespace spillway
