#include "text/tokenizer/bpe_merges.hpp"

#include <algorithm>
#include <bit>
#include <functional>

namespace spillway {

namespace {

constexpr std::size_t short_word = 48;  // tokens; up to here looking at all pairs is fastest

std::uint64_t pair_of(Token left, Token right) {
  return static_cast<std::uint64_t>(static_cast<std::uint32_t>(left)) << 32 |
         static_cast<std::uint32_t>(right);
}

std::uint64_t place_of(std::uint64_t pair, int shift) {
  return (pair * 0x9e3779b97f4a7c15u) >> shift;
}

}  // namespace

BpeMerges::BpeMerges(std::span<const Merge> merges) {
  const std::size_t places = std::bit_ceil(2 * merges.size() + 2);
  shift_ = 64 - std::countr_zero(places);
  table_.assign(places, {0, no_rank, -1});
  std::uint32_t rank = 0;
  for (const Merge& merge : merges) {
    const std::uint64_t pair = pair_of(merge.left, merge.right);
    std::size_t at = place_of(pair, shift_);
    while (table_[at].rank != no_rank && table_[at].pair != pair) at = (at + 1) & (places - 1);
    table_[at] = {pair, rank++, merge.result};
  }
}

const BpeMerges::Entry& BpeMerges::find(Token left, Token right) const {
  const std::uint64_t pair = pair_of(left, right);
  std::size_t at = place_of(pair, shift_);
  while (table_[at].rank != no_rank) {
    if (table_[at].pair == pair) return table_[at];
    at = (at + 1) & (table_.size() - 1);
  }
  return none_;
}

void BpeMerges::merge(std::vector<Token>& word, Scratch& scratch) const {
  if (word.size() < 2) return;
  if (word.size() <= short_word)
    merge_short(word, scratch);
  else
    merge_long(word, scratch);
}

void BpeMerges::merge_short(std::vector<Token>& word, Scratch& scratch) const {
  std::vector<std::uint32_t>& ranks = scratch.ranks;
  ranks.resize(word.size() - 1);
  for (std::size_t i = 0; i + 1 < word.size(); ++i) ranks[i] = find(word[i], word[i + 1]).rank;
  while (!ranks.empty()) {
    const auto best = std::min_element(ranks.begin(), ranks.end());
    if (*best == no_rank) return;
    const auto i = static_cast<std::size_t>(best - ranks.begin());
    word[i] = find(word[i], word[i + 1]).result;
    word.erase(word.begin() + static_cast<std::ptrdiff_t>(i) + 1);
    ranks.erase(best);
    if (i > 0) ranks[i - 1] = find(word[i - 1], word[i]).rank;
    if (i < ranks.size()) ranks[i] = find(word[i], word[i + 1]).rank;
  }
}

// A queue of pairs, of which those are left out whose tokens have been merged otherwise meanwhile:
// their rank is not that of the pair which now stands at their place.
void BpeMerges::merge_long(std::vector<Token>& word, Scratch& scratch) const {
  const auto count = static_cast<std::uint32_t>(word.size());
  auto& symbols = scratch.symbols;
  auto& queue = scratch.queue;
  symbols.resize(count);
  queue.clear();
  const auto rank_at = [&](std::uint32_t i) {
    return symbols[i].after == count ? no_rank
                                     : find(symbols[i].token, symbols[symbols[i].after].token).rank;
  };
  for (std::uint32_t i = 0; i < count; ++i) symbols[i] = {word[i], i == 0 ? count : i - 1, i + 1};
  for (std::uint32_t i = 0; i + 1 < count; ++i) {
    const std::uint32_t rank = rank_at(i);
    if (rank != no_rank) queue.push_back(std::uint64_t{rank} << 32 | i);
  }
  std::make_heap(queue.begin(), queue.end(), std::greater<>());
  const auto push = [&](std::uint32_t i) {
    const std::uint32_t rank = rank_at(i);
    if (rank == no_rank) return;
    queue.push_back(std::uint64_t{rank} << 32 | i);
    std::push_heap(queue.begin(), queue.end(), std::greater<>());
  };
  while (!queue.empty()) {
    std::pop_heap(queue.begin(), queue.end(), std::greater<>());
    const auto i = static_cast<std::uint32_t>(queue.back());
    const auto rank = static_cast<std::uint32_t>(queue.back() >> 32);
    queue.pop_back();
    if (symbols[i].token < 0 || rank_at(i) != rank) continue;
    const std::uint32_t next = symbols[i].after;
    symbols[i].token = find(symbols[i].token, symbols[next].token).result;
    symbols[i].after = symbols[next].after;
    symbols[next].token = -1;  // merged away
    if (symbols[i].after != count) symbols[symbols[i].after].before = i;
    if (symbols[i].before != count) push(symbols[i].before);
    push(i);
  }
  word.clear();
  for (std::uint32_t i = 0; i != count; i = symbols[i].after) word.push_back(symbols[i].token);
}

}  // namespace spillway
