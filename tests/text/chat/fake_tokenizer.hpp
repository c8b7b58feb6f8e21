// A tokenizer for tests: bytes, and special tokens of any names.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "base/errors.hpp"
#include "text/tokenizer/tokenizer.hpp"

namespace spillway::test {

class FakeTokenizer : public Tokenizer {
 public:
  // Tokens 256, 257, ... have these names; `begin` and `end` are among them, or empty.
  explicit FakeTokenizer(std::vector<std::string> names, std::string begin = "",
                         std::string end = "")
      : names_(std::move(names)), begin_(std::move(begin)), end_(std::move(end)) {}

  void encode(std::string_view text, SpecialTokens special,
              std::vector<Token>& tokens) const override {
    for (std::size_t at = 0; at < text.size();) {
      std::size_t longest = 0;
      Token token = static_cast<unsigned char>(text[at]);
      for (std::size_t i = 0; special == SpecialTokens::parsed && i < names_.size(); ++i) {
        if (names_[i].size() <= longest || !text.substr(at).starts_with(names_[i])) continue;
        longest = names_[i].size();
        token = static_cast<Token>(256 + i);
      }
      tokens.push_back(token);
      at += std::max<std::size_t>(longest, 1);
    }
  }
  std::string decode(std::span<const Token> tokens, bool with_special = true) const override {
    std::string text;
    for (const Token token : tokens) {
      if (token < 0 || token >= size()) throw InputError("no token");
      if (token < 256)
        text += static_cast<char>(token);
      else if (with_special)
        text += names_[static_cast<std::size_t>(token - 256)];
    }
    return text;
  }
  std::int64_t size() const override { return static_cast<std::int64_t>(256 + names_.size()); }
  std::optional<Token> find(std::string_view name) const override {
    for (std::size_t i = 0; i < names_.size(); ++i)
      if (names_[i] == name) return static_cast<Token>(256 + i);
    return {};
  }
  std::optional<Token> begin_of_text() const override { return find(begin_); }
  std::optional<Token> end_of_text() const override { return find(end_); }
  std::optional<Token> padding() const override { return {}; }
  bool adds_begin_of_text() const override { return !begin_.empty() && begin_ != end_; }
  std::uint64_t hash() const override { return 1; }
  std::string describe() const override { return "bytes and special tokens"; }

 private:
  std::vector<std::string> names_;
  std::string begin_, end_;
};

}  // namespace spillway::test
