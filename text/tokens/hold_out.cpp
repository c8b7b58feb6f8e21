#include "text/tokens/hold_out.hpp"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <queue>
#include <utility>

#include "base/errors.hpp"

namespace spillway {

namespace {

std::uint64_t hash_of_document(const TokenCorpus& corpus, std::uint64_t number,
                               std::vector<Token>& tokens) {
  constexpr std::uint64_t most_at_once = 1 << 20;
  TokenCorpus::Range range = corpus.document(number);
  std::uint64_t hash = 0;
  while (range.size() > 0) {
    tokens.resize(std::min(range.size(), most_at_once));
    corpus.read(range.begin, tokens);
    hash = XXH3_64bits_withSeed(tokens.data(), tokens.size() * sizeof(Token), hash);
    range.begin += tokens.size();
  }
  return hash;
}

}  // namespace

std::vector<bool> held_out(const TokenCorpus& corpus, const HoldOut& hold_out) {
  const std::uint64_t documents = corpus.documents();
  std::vector<bool> held(documents);
  if (!hold_out.any()) return held;
  const std::uint64_t wanted = std::max<std::uint64_t>(hold_out.documents, 1);
  if (documents < 2 || wanted >= documents) {
    throw InputError(fmt::format("the data has {} document{}: {} cannot be held out", documents,
                                 documents == 1 ? "" : "s", wanted),
                     "name files of their own: " + Setting{"validation", "FILES"});
  }
  const auto limit = static_cast<std::uint64_t>(std::ldexp(std::min(hold_out.fraction, 0.999), 64));
  // The documents with the lowest hashes, the highest of them first; where a fraction is wanted,
  // the very lowest, in case that none is below the limit.
  std::priority_queue<std::pair<std::uint64_t, std::uint64_t>> lowest;
  std::vector<Token> tokens;
  std::uint64_t count = 0;
  for (std::uint64_t i = 0; i < documents; ++i) {
    const std::uint64_t hash = hash_of_document(corpus, i, tokens);
    if (hold_out.documents == 0 && hash < limit) {
      held[i] = true;
      ++count;
    }
    lowest.emplace(hash, i);
    if (lowest.size() > wanted) lowest.pop();
  }
  for (; count == 0 && !lowest.empty(); lowest.pop()) held[lowest.top().second] = true;
  if (count == documents)
    throw InputError("all documents would be held out",
                     "hold out fewer: " + Setting{"validation", "1%"});
  return held;
}

HoldOut parse_hold_out(const std::string& text) {
  HoldOut hold_out;
  double number = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, number);
  const bool percent = error == std::errc() && stop + 1 == end && *stop == '%';
  if (error == std::errc() && number > 0 && percent && number <= 50) {
    hold_out.fraction = number / 100;
  } else if (error == std::errc() && stop == end && number >= 1 && number <= 1e15 &&
             number == std::floor(number)) {
    hold_out.documents = static_cast<std::uint64_t>(number);
  } else {
    throw InputError(Setting{"validation", text} +
                         " is no file that is there, no percentage up to 50% and no number of "
                         "documents",
                     "for example " + Setting{"validation", "1%"} + ", " +
                         Setting{"validation", "100"} + " or " +
                         Setting{"validation", "held-out.jsonl"});
  }
  return hold_out;
}

}  // namespace spillway
