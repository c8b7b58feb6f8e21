#include <fmt/format.h>

#include "base/errors.hpp"
#include "text/tokenizer/tokenizer.hpp"

namespace spillway {
namespace {

class ByteTokenizer : public Tokenizer {
 public:
  void encode(std::string_view text, SpecialTokens, std::vector<Token>& tokens) const override {
    for (const char byte : text) tokens.push_back(static_cast<unsigned char>(byte));
  }

  std::string decode(std::span<const Token> tokens, bool) const override {
    std::string text;
    text.reserve(tokens.size());
    for (const Token token : tokens) {
      if (token < 0 || token >= size())
        throw InputError(fmt::format("{} is no token: bytes are 0 to 255", token));
      text.push_back(static_cast<char>(token));
    }
    return text;
  }

  std::int64_t size() const override { return 256; }
  std::optional<Token> find(std::string_view) const override { return {}; }
  std::optional<Token> begin_of_text() const override { return {}; }
  std::optional<Token> end_of_text() const override { return {}; }
  std::optional<Token> padding() const override { return {}; }
  bool adds_begin_of_text() const override { return false; }
  std::uint64_t hash() const override { return 256; }
  std::string describe() const override { return "bytes"; }
};

}  // namespace

std::unique_ptr<Tokenizer> make_byte_tokenizer() { return std::make_unique<ByteTokenizer>(); }

}  // namespace spillway
