// Writes a file of tokens (token_file.hpp), which appears whole or not at all.
#pragma once

#include <xxhash.h>

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/new_file.hpp"
#include "text/source/document.hpp"
#include "text/tokens/token_file.hpp"

namespace spillway {

// Takes 8 bytes for each document and an eighth of a byte for each token until it is committed.
class TokenFileWriter {
 public:
  // Of `what` counts, sizes, hashes and the flag for a mask are the writer's own. Replaces a token
  // file only. Throws as NewFile does.
  TokenFileWriter(const FilePlace& place, const TokenFileHeader& what);

  // Tokens, each below the vocabulary, of which those of `trained` (runs of this call's tokens) are
  // trained on. Nothing is done with no tokens.
  void add(std::span<const Token> tokens, std::span<const TokenRun> trained);
  // What was added since the last end is a document; nothing is done where nothing was.
  void end_document();
  std::uint64_t tokens() const { return header_.tokens; }

  // At least one token was added. Throws MachineError.
  void commit(const std::string& description, bool last);

 private:
  void put(std::span<const std::byte> bytes);
  void flush();

  struct HashDeleter {
    void operator()(XXH3_state_t* state) const { XXH3_freeState(state); }
  };
  NewFile file_;
  TokenFileHeader header_;
  std::unique_ptr<XXH3_state_t, HashDeleter> hash_;  // of the tokens
  std::vector<std::byte> buffer_;
  std::vector<std::uint64_t> ends_;
  std::vector<std::uint64_t> mask_;  // 64 tokens each
};

// What a new token file may replace.
const ReplaceOnly& only_a_token_file();

}  // namespace spillway
