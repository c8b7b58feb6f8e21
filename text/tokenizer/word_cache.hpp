// The tokens of words that have been met. One thread's; a word that needs the place of another one
// replaces it, so that memory is bounded (4 MiB).
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <vector>

#include "text/tokenizer/tokenizer.hpp"

namespace spillway {

class WordCache {
 public:
  static constexpr std::size_t longest_word = 30, most_tokens = 8;

  WordCache() : places_(std::size_t{1} << place_bits) {}

  // The tokens of this word; empty: not there. Words have 1 to longest_word bytes.
  std::span<const Token> find(std::string_view word) const {
    const Place& place = places_[place_of(word)];
    if (place.length != word.size() ||
        std::memcmp(place.word.data(), word.data(), word.size()) != 0)
      return {};
    return {place.tokens.data(), place.count};
  }

  // At most most_tokens.
  void keep(std::string_view word, std::span<const Token> tokens) {
    Place& place = places_[place_of(word)];
    place.length = static_cast<std::uint8_t>(word.size());
    place.count = static_cast<std::uint8_t>(tokens.size());
    std::memcpy(place.word.data(), word.data(), word.size());
    std::memcpy(place.tokens.data(), tokens.data(), tokens.size_bytes());
  }

 private:
  static constexpr int place_bits = 16;
  struct Place {
    std::array<char, longest_word> word;
    std::uint8_t length = 0, count = 0;
    std::array<Token, most_tokens> tokens;
  };

  static std::size_t place_of(std::string_view word) {
    constexpr std::uint64_t factor = 0x9e3779b97f4a7c15u;
    std::uint64_t hash = word.size();
    std::uint64_t part = 0;
    std::size_t at = 0;
    for (; at + 8 <= word.size(); at += 8) {
      std::memcpy(&part, word.data() + at, 8);
      hash = (hash ^ part) * factor;
      hash ^= hash >> 32;
    }
    part = 0;
    std::memcpy(&part, word.data() + at, word.size() - at);
    hash = (hash ^ part) * factor;
    return (hash ^ hash >> 29) * factor >> (64 - place_bits);
  }

  std::vector<Place> places_;
};

}  // namespace spillway
