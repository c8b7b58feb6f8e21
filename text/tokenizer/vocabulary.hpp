// The names of tokens and their numbers.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "text/tokenizer/tokenizer.hpp"

namespace spillway {

class Vocabulary {
 public:
  Vocabulary() = default;
  // Some numbers may have no token. Throws InputError, naming `origin`, for numbers that are
  // negative, there twice or much higher than the number of tokens, and for names there twice.
  Vocabulary(std::vector<std::pair<std::string, Token>> tokens, const std::string& origin);
  Vocabulary(Vocabulary&&) = default;
  Vocabulary& operator=(Vocabulary&&) = default;
  Vocabulary(const Vocabulary&) = delete;
  Vocabulary& operator=(const Vocabulary&) = delete;

  std::optional<Token> find(std::string_view name) const;
  bool holds(Token token) const {
    return token >= 0 && token < size() && there_[static_cast<std::size_t>(token)];
  }
  // Empty where there is no such token.
  std::string_view name(Token token) const;
  // One more than the highest number.
  Token size() const { return static_cast<Token>(names_.size()); }

 private:
  std::vector<std::string> names_;
  std::vector<bool> there_;
  std::unordered_map<std::string_view, Token> numbers_;  // of names in names_, which stay in place
};

// The 256 characters that stand for bytes in the vocabularies of byte-level BPE (GPT-2): printable
// ones of Latin-1 for themselves, U+0100 and on for the others.
char32_t character_of_byte(unsigned char byte);
// `bytes` written that way.
std::string byte_level_name(std::string_view bytes);
// The bytes that are written that way; nothing where a character stands for none.
std::optional<std::string> bytes_of_name(std::string_view name);

}  // namespace spillway
