// Trains byte pair encoding: from single bytes on, the pair of neighbours that is most frequent in
// the words becomes a token, again and again (Sennrich, Haddow and Birch 2016, algorithm 1).
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "text/tokenizer/bpe_merges.hpp"

namespace spillway {

struct TrainedBpe {
  // The bytes of each token: the 256 single bytes first, in the order of the characters that stand
  // for them in a vocabulary; then one for each merge that makes a new one.
  std::vector<std::string> tokens;
  std::vector<Merge> merges;  // in order of rank
};

// Merges until there are `tokens` tokens, or no pair is there twice. Of pairs that are equally
// frequent the one of the lowest numbers is merged first. `progress` is called now and then with
// the number of tokens.
TrainedBpe train_bpe(const std::vector<std::pair<std::string, std::uint64_t>>& words,
                     std::int64_t tokens, const std::function<void(std::int64_t)>& progress);

}  // namespace spillway
