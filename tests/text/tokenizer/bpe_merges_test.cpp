#include <catch2/catch.hpp>
#include <random>

#include "text/tokenizer/bpe_merges.hpp"

using namespace spillway;

namespace {

// As the definition says: all pairs are looked at for each merge.
std::vector<Token> merged_slowly(const std::vector<Merge>& merges, std::vector<Token> word) {
  while (true) {
    std::size_t best_rank = merges.size(), best = 0;
    for (std::size_t i = 0; i + 1 < word.size(); ++i) {
      for (std::size_t rank = 0; rank < best_rank; ++rank) {
        if (merges[rank].left == word[i] && merges[rank].right == word[i + 1]) {
          best_rank = rank;
          best = i;
        }
      }
    }
    if (best_rank == merges.size()) return word;
    word[best] = merges[best_rank].result;
    word.erase(word.begin() + static_cast<std::ptrdiff_t>(best) + 1);
  }
}

}  // namespace

TEST_CASE("the best rank is merged first, wherever it is, in words of any length", "[tokenizer]") {
  const unsigned seed = GENERATE(1u, 2u, 3u, 4u, 5u, 6u, 7u, 8u);
  INFO("seed " << seed);
  std::mt19937 random(seed);
  const auto below = [&](std::size_t end) { return static_cast<Token>(random() % end); };
  std::vector<Merge> merges;
  for (Token next = 3; next < 40; ++next) {
    const Merge merge{below(static_cast<std::size_t>(next)), below(static_cast<std::size_t>(next)),
                      next};
    const bool known = std::any_of(merges.begin(), merges.end(), [&](const Merge& other) {
      return other.left == merge.left && other.right == merge.right;
    });
    if (!known) merges.push_back(merge);
  }
  const BpeMerges table(merges);
  BpeMerges::Scratch scratch;
  for (const std::size_t length : {0u, 1u, 2u, 3u, 10u, 47u, 48u, 49u, 50u, 200u, 600u}) {
    std::vector<Token> word(length);
    for (Token& token : word) token = below(3);
    const std::vector<Token> expected = merged_slowly(merges, word);
    table.merge(word, scratch);
    CHECK(word == expected);
  }
}

TEST_CASE("of two merges of one pair the later one counts", "[tokenizer]") {
  const BpeMerges table(std::vector<Merge>{{1, 2, 3}, {4, 5, 6}, {1, 2, 7}});
  CHECK(table.find(1, 2).rank == 2);
  CHECK(table.find(1, 2).result == 7);
  CHECK(table.find(2, 1).rank == BpeMerges::no_rank);
}

TEST_CASE("a word of millions of letters is merged", "[tokenizer]") {
  // Doubling: 1 1 -> 2, 2 2 -> 3, ...
  std::vector<Merge> merges;
  for (Token token = 1; token < 22; ++token) merges.push_back({token, token, token + 1});
  std::vector<Token> word(std::size_t{1} << 21, 1);
  BpeMerges::Scratch scratch;
  BpeMerges(merges).merge(word, scratch);
  CHECK(word == std::vector<Token>{22});
}
