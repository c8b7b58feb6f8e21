// The token files of a folder as one: tokens and documents are numbered through all of them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "text/tokens/token_file.hpp"

namespace spillway {

// "00012.tokens": file 12 of a folder.
std::string token_file_name(std::uint32_t shard);

// All calls are const and thread-safe.
class TokenCorpus {
 public:
  // At least one file, in order.
  explicit TokenCorpus(std::vector<TokenFile> files);

  // A folder that `spillway tokenize` wrote, a file of tokens, or a folder with such files of
  // others (*.bin, sorted by name). Everything is checked but the tokens themselves. Throws
  // InputError, also where a folder is not finished.
  static TokenCorpus open(const std::filesystem::path& path, std::optional<TokenFormat> raw = {});
  // As those of TokenFile, of all files.
  void verify() const;
  void require_below(std::uint64_t vocabulary) const;

  const std::vector<TokenFile>& files() const { return files_; }
  std::uint64_t tokens() const { return first_token_.back(); }
  std::uint64_t documents() const { return first_document_.back(); }
  std::uint64_t trained() const { return trained_; }
  bool all_trained() const { return trained_ == tokens(); }
  // Documents are records of their own, not pieces of running text.
  bool records() const { return records_; }
  // Whether the ends of documents are known: not in files of others.
  bool has_documents() const { return has_documents_; }
  std::uint64_t tokenizer() const { return files_.front().header().tokenizer; }
  std::uint64_t vocabulary() const { return files_.front().header().vocabulary; }
  // Of all tokens, documents and masks.
  std::uint64_t hash() const;

  // Tokens [begin, end) are a document.
  struct Range {
    std::uint64_t begin = 0, end = 0;
    std::uint64_t size() const { return end - begin; }
  };
  Range document(std::uint64_t number) const;
  // Over the borders of documents and files.
  void read(std::uint64_t first, std::span<Token> tokens) const;
  std::uint64_t count_trained(std::uint64_t first, std::uint64_t count) const;
  bool is_trained(std::uint64_t token) const { return count_trained(token, 1) == 1; }

 private:
  std::vector<TokenFile> files_;
  std::vector<std::uint64_t> first_token_, first_document_;  // of each file; then how many in all
  std::uint64_t trained_ = 0;
  bool records_ = false, has_documents_ = true;
};

}  // namespace spillway
