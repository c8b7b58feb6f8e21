// What training sees of one document: its tokens, and which of them are trained on.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "text/tokenizer/tokenizer.hpp"

namespace spillway {

// Tokens first .. end - 1 of a document.
struct TokenRun {
  std::size_t first = 0, end = 0;
  bool operator==(const TokenRun&) const = default;
};

// Where a record begins: a file of its source and a byte of the file's text (uncompressed).
struct RecordPlace {
  std::size_t file = 0;
  std::uint64_t offset = 0;
  bool operator==(const RecordPlace&) const = default;
};

struct Document {
  // With what begins and ends a document (bos, eos), where the tokenizer has such tokens.
  std::vector<Token> tokens;
  // Tokens that are trained on: as targets they count in the loss. Ascending, without overlap; runs
  // that touch are one.
  std::vector<TokenRun> trained;
  // A piece of a long text: the next document of the part goes on where this one ends, so no eos is
  // here and no bos is there.
  bool goes_on = false;
  RecordPlace place;

  std::size_t trained_tokens() const {
    std::size_t count = 0;
    for (const TokenRun& run : trained) count += run.end - run.first;
    return count;
  }
  bool operator==(const Document&) const = default;
};

// What becomes of a document of more tokens than a sequence has room for.
enum class TooLong {
  automatic,  // as the packer decides
  cut,        // its end is left out
  drop,       // all of it is left out
  split,      // it goes on in the next document
};

}  // namespace spillway
