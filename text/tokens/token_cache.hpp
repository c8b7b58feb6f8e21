// Tokens that were made once are not made again: a folder of folders of token files, each named by
// what it was made from: the content of the files, the tokenizer and the rules.
//
// Any number of programs may use it at once: one makes the tokens of a source, others that want the
// same ones wait. Folders may be removed at any time; a program that reads one goes on. What a
// program that was stopped has not finished is gone on with, for a week; then, or where there is
// nothing of it, it is removed once other tokens are wanted.
#pragma once

#include <cstdint>
#include <ctime>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "text/tokens/source_hash.hpp"
#include "text/tokens/tokenize.hpp"

namespace spillway {

class TokenCache {
 public:
  // Made where it is missing.
  explicit TokenCache(std::filesystem::path folder) : folder_(std::move(folder)) {}

  struct Listener {
    SourceHashListener hashing;
    TokenizeListener tokenizing;
    std::function<void(const DocumentCounts&)> counted;  // when they were made; may be empty
  };
  // Finds the tokens of a source, checks all of them, and makes those that are missing or damaged.
  // Nothing where a listener asked to stop. Throws as tokenize() does.
  std::optional<TokenCorpus> tokens(const Source& source, const Tokenizer& tokenizer,
                                    const DocumentSettings& documents, int threads,
                                    const Listener& listener = {}) const;

  struct Entry {
    std::string name;  // 16 hexadecimal digits
    bool finished = false;
    std::uint64_t bytes = 0, tokens = 0, documents = 0;  // bytes: of all its files
    std::string made_from;                               // for people; empty where nothing is known
    std::time_t used = 0;
  };
  // Those used last come first.
  std::vector<Entry> entries() const;
  // Waits for a program that writes to it. Throws InputError where there is no such entry,
  // MachineError where it cannot be removed.
  void remove(const std::string& name) const;
  // Those that are not finished and that no program writes to: all of them, or those that are of no
  // use any more.
  void remove_unfinished(bool all) const;

  const std::filesystem::path& folder() const { return folder_; }

 private:
  std::filesystem::path folder_;
};

}  // namespace spillway
