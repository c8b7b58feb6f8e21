// Tokens that are found in a text as a whole, before anything else is done to it: special tokens
// like "<|endoftext|>" and others that were added to a vocabulary.
#pragma once

#include <bitset>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer/split_pattern.hpp"
#include "text/tokenizer/tokenizer.hpp"

namespace spillway {

// As tokenizer.json has them.
struct AddedToken {
  Token token = 0;
  std::string content;
  bool special = false;
  bool single_word = false;  // not within a word
  bool lstrip = false;       // with the white space before it
  bool rstrip = false;       // with the white space after it
  bool normalized = false;   // looked for in the normalized text
};

// Finds some added tokens: the leftmost, of several at one place the longest.
class AddedTokenFinder {
 public:
  struct Found {
    std::size_t begin = 0, end = 0;
    Token token = 0;
  };

  // `text` of each: what is looked for.
  struct Entry {
    std::string text;
    AddedToken token;
  };
  explicit AddedTokenFinder(std::vector<Entry> entries);

  bool empty() const { return entries_.empty(); }
  // The first token at `from` or later in `text`, valid UTF-8, whose parts before `from` belong to
  // other tokens. `special` as_text: special tokens are passed over, with their names.
  std::optional<Found> find(std::string_view text, std::size_t from, SpecialTokens special) const;

 private:
  const Entry* at(std::string_view text, std::size_t place) const;

  std::vector<Entry> entries_;  // by first byte, the longest first
  std::vector<std::uint32_t> begin_of_byte_;
  std::bitset<256> first_bytes_;
  std::bitset<65536> first_two_bytes_;
};

}  // namespace spillway
