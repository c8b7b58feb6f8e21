#include "text/tokenizer/vocabulary.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "base/errors.hpp"
#include "base/text.hpp"
#include "text/tokenizer/utf8.hpp"

namespace spillway {

namespace {

constexpr std::int64_t highest_spare = 1 << 20;  // numbers without a token

struct ByteCharacters {
  std::array<char32_t, 256> of_byte{};
  std::array<int, 0x144> of_character{};  // -1: stands for no byte

  ByteCharacters() {
    of_character.fill(-1);
    char32_t next = 0x100;
    for (unsigned byte = 0; byte < 256; ++byte) {
      const bool itself = (byte >= '!' && byte <= '~') || (byte >= 0xa1 && byte != 0xad);
      of_byte[byte] = itself ? byte : next++;
      of_character[of_byte[byte]] = static_cast<int>(byte);
    }
  }
};

const ByteCharacters& byte_characters() {
  static const ByteCharacters table;
  return table;
}

}  // namespace

Vocabulary::Vocabulary(std::vector<std::pair<std::string, Token>> tokens,
                       const std::string& origin) {
  const auto fail = [&](const std::pair<std::string, Token>& token, const char* what) {
    throw InputError(
        origin, 0,
        fmt::format("the token {}: its number {} {}", printable(token.first), token.second, what));
  };
  std::int64_t size = 0;
  const std::int64_t most = static_cast<std::int64_t>(tokens.size()) + highest_spare;
  for (const auto& token : tokens) {
    if (token.second < 0) fail(token, "is negative");
    if (token.second >= most) fail(token, "is far beyond the number of tokens");
    size = std::max<std::int64_t>(size, std::int64_t{token.second} + 1);
  }
  names_.resize(static_cast<std::size_t>(size));
  there_.resize(static_cast<std::size_t>(size));
  numbers_.reserve(tokens.size());
  for (auto& token : tokens) {
    const auto at = static_cast<std::size_t>(token.second);
    if (there_[at]) fail(token, "is that of another token, too");
    there_[at] = true;
    names_[at] = token.first;
    if (!numbers_.emplace(names_[at], token.second).second) fail(token, "is its second one");
  }
}

std::optional<Token> Vocabulary::find(std::string_view name) const {
  const auto found = numbers_.find(name);
  return found == numbers_.end() ? std::nullopt : std::optional(found->second);
}

std::string_view Vocabulary::name(Token token) const {
  return token >= 0 && token < size() ? std::string_view(names_[static_cast<std::size_t>(token)])
                                      : std::string_view();
}

char32_t character_of_byte(unsigned char byte) { return byte_characters().of_byte[byte]; }

std::string byte_level_name(std::string_view bytes) {
  std::string name;
  for (const char byte : bytes)
    append_utf8(character_of_byte(static_cast<unsigned char>(byte)), name);
  return name;
}

std::optional<std::string> bytes_of_name(std::string_view name) {
  const ByteCharacters& table = byte_characters();
  std::string bytes;
  for (std::size_t at = 0; at < name.size(); at += utf8_length(name[at])) {
    const char32_t character = utf8_character(name.substr(at));
    if (character >= table.of_character.size() || table.of_character[character] < 0) return {};
    bytes.push_back(static_cast<char>(table.of_character[character]));
  }
  return bytes;
}

}  // namespace spillway
