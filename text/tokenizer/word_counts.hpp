// How often each word is in some files: what byte pair encoding is trained on.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "text/source/source.hpp"
#include "text/tokenizer/normalizer.hpp"
#include "text/tokenizer/pre_tokenizer.hpp"

namespace spillway {

struct WordCounting {
  SourceSettings source;  // of records the texts are read, without what JSON puts around them
  std::vector<NormalizerStep> normalizer;
  std::vector<PreTokenizerStep> steps;
  std::vector<std::string> special;  // names of tokens: not words
  std::size_t threads = 1;
  // Called now and then, by any thread, one at a time.
  std::function<void(std::uint64_t bytes, std::uint64_t all)> progress;
};

struct WordCounts {
  std::vector<std::pair<std::string, std::uint64_t>> words;  // sorted
  std::uint64_t bytes = 0, files = 0;  // bytes: of the texts and, of JSON, of the records
  std::string skipped;                 // files that are no text; empty: none
  std::uint64_t malformed = 0;         // records that were left out, where that was asked for
};

// Reads text in pieces of some megabytes that end at the end of a line, where there is one. Bytes
// that are not UTF-8 end words and are in none. The same result for any number of threads. Throws
// InputError where there is no text, and as Source does.
WordCounts count_words(const WordCounting& how);

}  // namespace spillway
