// A file of tokens, read as memory: Spillway's own, and those of llm.c and nanoGPT.
//
// Spillway's own, version 1. All numbers are little endian; parts follow each other without gaps,
// each but the last padded with zeros to a multiple of 8 bytes.
//
//   at  bytes  header
//    0      8  "SPILLTOK"
//    8      4  version: 1
//   12      4  bytes of a token: 2 or 4
//   16      8  tokens, at least 1
//   24      8  documents, at least 1
//   32      8  tokens that are trained on
//   40      8  vocabulary: every token is below it
//   48      8  hash of the tokenizer (Tokenizer::hash())
//   56      8  identity of the corpus: of what was tokenized, by which tokenizer and rules
//   64      4  number of this file in its folder, from 0
//   68      4  1: the last file of its folder | 2: not all tokens are trained on, there is a mask
//              | 4: documents are records of their own (JSONL), not pieces of running text
//   72      8  bytes of the description
//   80      8  XXH3 of the tokens, padding included
//   88      8  XXH3 of the ends of documents
//   96      8  XXH3 of the mask; 0: there is none
//  104      8  XXH3 of the description
//  112      8  0
//  120      8  XXH3 of the header up to here
//  128         tokens
//              ends of documents: 8 bytes each, the number of tokens up to the document's end;
//              ascending, and the last one is the number of tokens
//              mask, where there is one: a bit for each token, lowest bit first; 1: trained on
//              description: JSON, what was tokenized and where the next file goes on
//
// A token is trained on when it counts as a target: its prediction adds to the loss.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/mapped_file.hpp"
#include "text/tokenizer/tokenizer.hpp"

namespace spillway {

struct TokenFileHeader {
  static constexpr std::uint32_t is_last = 1, has_mask = 2, has_records = 4;

  std::uint32_t token_bytes = 2;
  std::uint64_t tokens = 0, documents = 0, trained = 0;
  std::uint64_t vocabulary = 0;  // 0: not known (files of others)
  std::uint64_t tokenizer = 0;   // 0: not known
  std::uint64_t identity = 0;
  std::uint32_t shard = 0, flags = 0;
  std::uint64_t description_bytes = 0;
  std::uint64_t tokens_hash = 0, ends_hash = 0, mask_hash = 0, description_hash = 0;

  bool last() const { return (flags & is_last) != 0; }
  bool masked() const { return (flags & has_mask) != 0; }
  bool records() const { return (flags & has_records) != 0; }
};

// What the file is taken for.
enum class TokenFormat : std::uint8_t {
  spillway,
  llm_c,   // header of 256 words with magic 20240520 (uint16) or 20240801 (uint32)
  uint16,  // nothing but tokens, as nanoGPT writes them
  uint32,
};
const char* name_of(TokenFormat format);

// All calls are const and thread-safe.
class TokenFile {
 public:
  // Opens a file of Spillway's or llm.c's, or one without a header where `raw` says that the user
  // knows it to be one. Checks everything but the tokens and the mask themselves. Throws InputError
  // naming the file and what is wrong with it.
  explicit TokenFile(std::filesystem::path path, std::optional<TokenFormat> raw = {});

  // Reads all of it: checksums, the number of tokens that are trained on, and that every token is
  // below the vocabulary, where the file says what it is. Throws InputError.
  void verify() const;
  // That every token is below `vocabulary`; reads nothing where the header says enough.
  void require_below(std::uint64_t vocabulary) const;

  TokenFormat format() const { return format_; }
  const TokenFileHeader& header() const { return header_; }
  const std::filesystem::path& path() const { return path_; }
  std::string_view description() const { return description_; }
  std::uint64_t tokens() const { return header_.tokens; }
  std::uint64_t documents() const { return header_.documents; }
  // The content, without reading it where the file has checksums; else XXH3 of all of it.
  std::uint64_t content_hash() const;

  // Tokens [begin, end) are a document.
  std::uint64_t document_begin(std::uint64_t document) const {
    return document == 0 ? 0 : end_at(document - 1);
  }
  std::uint64_t document_end(std::uint64_t document) const { return end_at(document); }

  void read(std::uint64_t first, std::span<Token> tokens) const;
  bool is_trained(std::uint64_t token) const;
  // Tokens of [first, first + count) that are trained on.
  std::uint64_t count_trained(std::uint64_t first, std::uint64_t count) const;

 private:
  void open_own();
  void open_llm_c();
  void open_raw();
  std::uint64_t end_at(std::uint64_t document) const;
  [[noreturn]] void refuse(const std::string& what) const;
  void check_tokens(std::uint64_t vocabulary) const;

  std::filesystem::path path_;
  TokenFormat format_ = TokenFormat::spillway;
  MappedFile file_;
  TokenFileHeader header_;
  const std::byte* tokens_ = nullptr;
  const std::byte* ends_ = nullptr;  // null: all is one document
  const std::byte* mask_ = nullptr;  // null: all are trained on
  std::string_view description_;
};

// Whether a file begins as one of Spillway's tokens, or of llm.c's.
bool begins_as_tokens(std::span<const std::byte> head);

}  // namespace spillway
