// A tokenizer of one's own: trained on files, written as Hugging Face's tokenizers write theirs.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "text/source/source.hpp"

namespace spillway {

struct TokenizerTraining {
  SourceSettings source;         // files and folders; of records the texts are read
  std::int64_t vocabulary = 0;   // tokens, special ones included
  std::string pattern = "gpt2";  // how texts are cut into words: gpt2, llama3, qwen2
  std::string begin;             // names of tokens; empty: there is none
  std::string end = "<|endoftext|>";
  std::string padding;               // empty: that of the end
  std::vector<std::string> special;  // more special tokens
  std::size_t threads = 1;
  std::function<void(std::uint64_t bytes, std::uint64_t all)> reading;
  std::function<void(std::int64_t tokens)> merging;
};

struct TokenizerTrained {
  std::int64_t tokens = 0;  // fewer than asked for where the text has no more pairs
  std::uint64_t bytes = 0, files = 0, words = 0;
  std::string skipped;          // files that are no text; empty: none
  std::uint64_t malformed = 0;  // records that were left out, where that was asked for
};

// Trains byte-level BPE and writes the new folder `out`: tokenizer.json and tokenizer_config.json.
// The same texts in the same order give the same bytes, on any number of threads. Throws
// InputError.
TokenizerTrained train_tokenizer(const TokenizerTraining& how, const std::filesystem::path& out);

}  // namespace spillway
