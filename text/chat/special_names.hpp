// The special tokens of a tokenizer by name, and where a text holds such names.
#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer/tokenizer.hpp"

namespace spillway {

// Bytes first .. end - 1 of a text.
struct TextRange {
  std::size_t first = 0, end = 0;
  bool operator==(const TextRange&) const = default;
};

class SpecialNames {
 public:
  // Those that Tokenizer::decode leaves out.
  explicit SpecialNames(const Tokenizer& tokenizer);

  const std::vector<std::string>& names() const { return names_; }
  bool has(std::string_view name) const;
  // Of bos and eos; empty: the tokenizer has none.
  const std::string& begin_of_text() const { return begin_; }
  const std::string& end_of_text() const { return end_; }
  bool is_special(Token token) const;

  // The first name at or after `from`, the longest of those that begin there.
  std::optional<TextRange> find(std::string_view text, std::size_t from) const;

 private:
  std::vector<std::string> names_;
  std::vector<Token> tokens_;  // ascending
  std::string begin_, end_;
  std::string first_bytes_;                             // of all names
  std::array<std::vector<std::string>, 256> names_of_;  // by their first byte, longest first
};

}  // namespace spillway
