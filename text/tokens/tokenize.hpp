// A source of text as a folder of token files (token_file.hpp): by several threads, and going on
// where an earlier call stopped.
//
// Threads take parts of the source, one of them writes what they made of the parts in order. So the
// files are a function of the source, the tokenizer and the rules, whatever the number of threads
// and whenever the work was stopped. A file ends after the part in which it becomes large enough.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>

#include "text/chat/document_reader.hpp"
#include "text/tokens/token_corpus.hpp"

namespace spillway {

struct TokenizeSettings {
  static constexpr std::uint64_t default_shard_tokens = std::uint64_t{1} << 27;
  // Of the source's parts: small enough that a few MB keep several threads busy.
  static constexpr std::uint64_t part_bytes = std::uint64_t{4} << 20;

  std::filesystem::path folder;  // made where it is missing
  DocumentSettings documents;
  int threads = 1;
  std::uint64_t shard_tokens = default_shard_tokens;
  // XXH3 of the contents of the source's files (source_hash.hpp).
  std::uint64_t source_hash = 0;
  bool replace_others = false;  // tokens of something else that lie in the folder
};

struct TokenizeProgress {
  std::uint64_t parts = 0, all_parts = 0;
  std::uint64_t bytes = 0, all_bytes = 0;  // of the source's files, nearly
  std::uint64_t kept_bytes = 0;            // of these, what an earlier call had tokenized
  std::uint64_t tokens = 0, documents = 0;
};

struct TokenizeListener {
  std::function<void(const TokenizeProgress&)> progress;  // a few times a second; may be empty
  std::function<bool()> stop;                             // asked as often; may be empty
  std::function<void()> waiting;  // another program writes to the folder; may be empty
};

struct TokenizeResult {
  bool finished = false;  // not: it was asked to stop, and goes on there if called again
  std::uint32_t kept_files = 0, files = 0;
  DocumentCounts counts;
};

// Of everything that decides the tokens.
std::uint64_t token_identity(const Source& source, const Tokenizer& tokenizer,
                             const TokenizeSettings& settings);

// Throws InputError (malformed text, no text at all, other things in the folder), MachineError.
TokenizeResult tokenize(const Source& source, const Tokenizer& tokenizer,
                        const TokenizeSettings& settings, const TokenizeListener& listener = {});

}  // namespace spillway
