// Text to tokens and back.
//
// A tokenizer never changes once it is made; all calls are const and thread-safe. The same text
// gives the same tokens on any machine.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace spillway {

using Token = std::int32_t;

// What becomes of the names of special tokens ("<|endoftext|>") in a text.
enum class SpecialTokens {
  as_text,  // the letters of the name: what a text of unknown origin is encoded with
  parsed,   // the token of this name: for texts that a chat template wrote
};

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  // Appends the tokens of `text`, which need not be valid UTF-8. Nothing is put before or after
  // them: no bos, no eos.
  virtual void encode(std::string_view text, SpecialTokens special,
                      std::vector<Token>& tokens) const = 0;
  // The bytes of the tokens, exactly: they need not be valid UTF-8. Special tokens are written by
  // name, or left out. Throws InputError for a number that is no token.
  virtual std::string decode(std::span<const Token> tokens, bool with_special = true) const = 0;

  // One more than the highest token.
  virtual std::int64_t size() const = 0;
  // The token of this name, special or not, as the tokenizer's file writes it; nothing: none.
  virtual std::optional<Token> find(std::string_view name) const = 0;
  // What begins and ends a document, where the tokenizer has such tokens.
  virtual std::optional<Token> begin_of_text() const = 0;
  virtual std::optional<Token> end_of_text() const = 0;
  // What shorter texts of a batch are filled up with, where the tokenizer names one.
  virtual std::optional<Token> padding() const = 0;
  // Whether the model was trained with begin_of_text() before each document.
  virtual bool adds_begin_of_text() const = 0;

  // Of everything that decides which tokens a text has: equal for equal tokenizers, on any machine.
  virtual std::uint64_t hash() const = 0;
  // "byte-level BPE, 50257 tokens".
  virtual std::string describe() const = 0;
};

// One token for each byte: 256 tokens, none of them special.
std::unique_ptr<Tokenizer> make_byte_tokenizer();

}  // namespace spillway
