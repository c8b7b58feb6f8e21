// Tells text from what a language model should not be fed unasked: archives, pictures, programs.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace spillway {

// Looks at the bytes of one file, given in order and in pieces of any size.
//
// A file is text unless it begins as a known kind of archive, picture, program ... does, or more
// than one byte in a thousand is zero, or more than three in ten are neither UTF-8 nor a character
// that texts have. Texts in Latin-1 and its relatives pass: few of their letters are beyond ASCII.
class TextContent {
 public:
  void add(std::span<const std::uint8_t> bytes);
  // What the bytes so far are when they are not text: "a zip archive"; empty: they are text.
  std::string not_text() const;
  // Whether they are UTF-8 to the last byte, without control characters that texts do not have.
  bool all_characters() const { return odd_ == 0 && to_come_ == 0; }

 private:
  void add_byte(std::uint8_t byte);

  std::array<std::uint8_t, 512> head_{};  // where files say what they are
  std::uint64_t bytes_ = 0, zeros_ = 0, odd_ = 0;
  // Of a UTF-8 character that has begun: the bytes still to come, those that are there, and between
  // which values the next one lies.
  int to_come_ = 0, there_ = 0;
  std::uint8_t lowest_ = 0x80, highest_ = 0xbf;
};

}  // namespace spillway
