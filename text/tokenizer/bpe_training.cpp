#include "text/tokenizer/bpe_training.hpp"

#include <algorithm>
#include <array>
#include <numeric>
#include <queue>
#include <unordered_map>

#include "text/tokenizer/vocabulary.hpp"

namespace spillway {

namespace {

constexpr std::int64_t least_frequency = 2;

class Trainer {
 public:
  Trainer(const std::vector<std::pair<std::string, std::uint64_t>>& words, std::int64_t tokens,
          const std::function<void(std::int64_t)>& progress)
      : most_tokens_(tokens), progress_(progress) {
    add_bytes();
    add_words(words);
  }

  TrainedBpe run() {
    for (std::uint32_t i = 0; i < pairs_.size(); ++i) push(i);
    while (static_cast<std::int64_t>(result_.tokens.size()) < most_tokens_ && !queue_.empty()) {
      const Candidate best = queue_.top();
      queue_.pop();
      const std::int64_t count = pairs_[best.pair].count;
      if (count != best.count) {
        if (count > 0 && count < best.count) push(best.pair);
        continue;
      }
      if (count < least_frequency) break;
      merge(best.pair);
    }
    return std::move(result_);
  }

 private:
  struct Pair {
    Token left, right;
    std::int64_t count = 0;
    std::vector<std::uint32_t> words = {};  // that have it or had it, in order
  };
  struct Word {
    std::size_t begin;
    std::uint32_t length;
    std::int64_t count;
  };
  struct Candidate {
    std::int64_t count;
    std::uint64_t key;
    std::uint32_t pair;
    bool operator<(const Candidate& other) const {
      return count != other.count ? count < other.count : key > other.key;
    }
  };

  static std::uint64_t key_of(Token left, Token right) {
    return static_cast<std::uint64_t>(left) << 32 | static_cast<std::uint32_t>(right);
  }

  void add_bytes() {
    std::array<unsigned, 256> order{};
    std::iota(order.begin(), order.end(), 0u);
    std::sort(order.begin(), order.end(), [](unsigned a, unsigned b) {
      return character_of_byte(static_cast<unsigned char>(a)) <
             character_of_byte(static_cast<unsigned char>(b));
    });
    for (const unsigned byte : order) {
      token_of_byte_[byte] = static_cast<Token>(result_.tokens.size());
      result_.tokens.emplace_back(1, static_cast<char>(byte));
      numbers_.emplace(result_.tokens.back(), token_of_byte_[byte]);
    }
  }

  void add_words(const std::vector<std::pair<std::string, std::uint64_t>>& words) {
    for (const auto& [text, count] : words) {
      const auto word = static_cast<std::uint32_t>(words_.size());
      words_.push_back({symbols_.size(), static_cast<std::uint32_t>(text.size()),
                        static_cast<std::int64_t>(count)});
      for (const char byte : text)
        symbols_.push_back(token_of_byte_[static_cast<unsigned char>(byte)]);
      const Token* const symbols = symbols_.data() + words_.back().begin;
      for (std::size_t i = 0; i + 1 < text.size(); ++i)
        change(symbols[i], symbols[i + 1], words_.back().count, word);
    }
  }

  // Counts a pair in a word more or less often; returns its number.
  std::uint32_t change(Token left, Token right, std::int64_t by, std::uint32_t word) {
    const auto [found, is_new] = numbers_of_pairs_.try_emplace(
        key_of(left, right), static_cast<std::uint32_t>(pairs_.size()));
    if (is_new) pairs_.push_back({left, right});
    Pair& pair = pairs_[found->second];
    pair.count += by;
    if (by > 0 && (pair.words.empty() || pair.words.back() != word)) pair.words.push_back(word);
    return found->second;
  }

  void push(std::uint32_t pair) {
    const Pair& of = pairs_[pair];
    if (of.count >= least_frequency) queue_.push({of.count, key_of(of.left, of.right), pair});
  }

  void merge(std::uint32_t number) {
    const Token left = pairs_[number].left, right = pairs_[number].right;
    const std::string merged = result_.tokens[static_cast<std::size_t>(left)] +
                               result_.tokens[static_cast<std::size_t>(right)];
    // Two merges may make one token: "ab" "c" and "a" "bc".
    const auto [found, is_new] =
        numbers_.emplace(merged, static_cast<Token>(result_.tokens.size()));
    if (is_new) result_.tokens.push_back(merged);
    const Token token = found->second;
    result_.merges.push_back({left, right, token});
    const std::vector<std::uint32_t> words = std::move(pairs_[number].words);
    grown_.clear();
    for (const std::uint32_t word : words) merge_in(word, left, right, token);
    pairs_[number].count = 0;
    pairs_[number].words = {};
    std::sort(grown_.begin(), grown_.end());
    grown_.erase(std::unique(grown_.begin(), grown_.end()), grown_.end());
    for (const std::uint32_t pair : grown_) push(pair);
    if (progress_ && result_.merges.size() % 256 == 0)
      progress_(static_cast<std::int64_t>(result_.tokens.size()));
  }

  void merge_in(std::uint32_t number, Token left, Token right, Token merged) {
    Word& word = words_[number];
    Token* const symbols = symbols_.data() + word.begin;
    std::uint32_t kept = 0;
    for (std::uint32_t i = 0; i < word.length; ++i) {
      if (symbols[i] != left || i + 1 == word.length || symbols[i + 1] != right) {
        symbols[kept++] = symbols[i];
        continue;
      }
      if (kept > 0) {
        change(symbols[kept - 1], left, -word.count, number);
        grown_.push_back(change(symbols[kept - 1], merged, word.count, number));
      }
      if (i + 2 < word.length) {
        change(right, symbols[i + 2], -word.count, number);
        grown_.push_back(change(merged, symbols[i + 2], word.count, number));
      }
      symbols[kept++] = merged;
      ++i;
    }
    word.length = kept;
  }

  std::int64_t most_tokens_;
  const std::function<void(std::int64_t)>& progress_;
  TrainedBpe result_;
  std::array<Token, 256> token_of_byte_{};
  std::unordered_map<std::string, Token> numbers_;
  std::vector<Word> words_;
  std::vector<Token> symbols_;  // of all words
  std::vector<Pair> pairs_;
  std::unordered_map<std::uint64_t, std::uint32_t> numbers_of_pairs_;
  std::priority_queue<Candidate> queue_;
  std::vector<std::uint32_t> grown_;  // pairs that the last merge has made
};

}  // namespace

TrainedBpe train_bpe(const std::vector<std::pair<std::string, std::uint64_t>>& words,
                     std::int64_t tokens, const std::function<void(std::int64_t)>& progress) {
  return Trainer(words, tokens, progress).run();
}

}  // namespace spillway
