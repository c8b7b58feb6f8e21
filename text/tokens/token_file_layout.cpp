#include "text/tokens/token_file_layout.hpp"

#include <xxhash.h>

#include <cstring>

namespace spillway {

namespace {

constexpr std::uint64_t padded(std::uint64_t bytes) { return (bytes + 7) / 8 * 8; }

// Calls visit(field, bytes from the start) for each number of the header.
template <class Header, class Visit>
void for_each_field(Header& h, const Visit& visit) {
  visit(h.token_bytes, 12);
  visit(h.tokens, 16);
  visit(h.documents, 24);
  visit(h.trained, 32);
  visit(h.vocabulary, 40);
  visit(h.tokenizer, 48);
  visit(h.identity, 56);
  visit(h.shard, 64);
  visit(h.flags, 68);
  visit(h.description_bytes, 72);
  visit(h.tokens_hash, 80);
  visit(h.ends_hash, 88);
  visit(h.mask_hash, 96);
  visit(h.description_hash, 104);
}

}  // namespace

TokenFileParts parts_of(const TokenFileHeader& header) {
  TokenFileParts parts;
  parts.tokens = token_file_header_bytes;
  parts.ends = parts.tokens + padded(header.tokens * header.token_bytes);
  parts.mask = parts.ends + header.documents * 8;
  parts.description = parts.mask + (header.masked() ? padded((header.tokens + 7) / 8) : 0);
  parts.end = parts.description + header.description_bytes;
  return parts;
}

TokenFileHeader read_token_header(std::span<const std::byte> file) {
  TokenFileHeader header;
  for_each_field(header, [&](auto& field, std::size_t at) {
    std::memcpy(&field, file.data() + at, sizeof field);
  });
  return header;
}

std::array<std::byte, token_file_header_bytes> token_header_bytes(const TokenFileHeader& header) {
  std::array<std::byte, token_file_header_bytes> bytes{};
  std::memcpy(bytes.data(), token_file_magic, 8);
  std::memcpy(bytes.data() + 8, &token_file_version, 4);
  for_each_field(header, [&](const auto& field, std::size_t at) {
    std::memcpy(bytes.data() + at, &field, sizeof field);
  });
  const std::uint64_t hash = XXH3_64bits(bytes.data(), bytes.size() - 8);
  std::memcpy(bytes.data() + bytes.size() - 8, &hash, 8);
  return bytes;
}

}  // namespace spillway
