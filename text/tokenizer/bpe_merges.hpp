// Byte pair encoding: neighbouring tokens of a word are merged, best rank first, until no pair of
// neighbours has one (Sennrich, Haddow and Birch 2016, https://arxiv.org/abs/1508.07909).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "text/tokenizer/tokenizer.hpp"

namespace spillway {

struct Merge {
  Token left = 0, right = 0, result = 0;
  bool operator==(const Merge&) const = default;
};

class BpeMerges {
 public:
  struct Entry {
    std::uint64_t pair;
    std::uint32_t rank;
    Token result;
  };
  static constexpr std::uint32_t no_rank = ~std::uint32_t{0};

  BpeMerges() : BpeMerges(std::span<const Merge>()) {}
  // In order of rank; of two with one pair the later one counts.
  explicit BpeMerges(std::span<const Merge> merges);

  // rank is no_rank where the pair is not merged.
  const Entry& find(Token left, Token right) const;

  // What merging takes besides the word.
  struct Scratch {
    std::vector<std::uint32_t> ranks;
    struct Symbol {
      Token token;
      std::uint32_t before, after;  // neighbours that are left; none: the number of symbols
    };
    std::vector<Symbol> symbols;
    std::vector<std::uint64_t> queue;  // rank and place
  };
  // Merges the tokens of a word in place: the pair of the lowest rank first, of equal ones the
  // first. Of n tokens in at most n log n steps, but for short words.
  void merge(std::vector<Token>& word, Scratch& scratch) const;

 private:
  void merge_short(std::vector<Token>& word, Scratch& scratch) const;
  void merge_long(std::vector<Token>& word, Scratch& scratch) const;

  std::vector<Entry> table_;  // a power of two; searched from the place of the pair's hash on
  int shift_ = 0;
  Entry none_{0, no_rank, -1};
};

}  // namespace spillway
