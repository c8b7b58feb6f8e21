#include "text/tokens/token_file_writer.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "base/errors.hpp"
#include "text/tokens/token_file_layout.hpp"

namespace spillway {

namespace {

constexpr std::size_t buffer_bytes = std::size_t{1} << 20;

template <class Number>
void append(std::vector<std::byte>& buffer, std::span<const Token> tokens) {
  const std::size_t at = buffer.size();
  buffer.resize(at + tokens.size() * sizeof(Number));
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    const auto token = static_cast<Number>(tokens[i]);
    std::memcpy(buffer.data() + at + i * sizeof token, &token, sizeof token);
  }
}

void set_bits(std::vector<std::uint64_t>& bits, std::uint64_t begin, std::uint64_t end) {
  while (begin < end) {
    const std::uint64_t low = begin % 64, count = std::min<std::uint64_t>(end - begin, 64 - low);
    const std::uint64_t ones = count == 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << count) - 1;
    bits[begin / 64] |= ones << low;
    begin += count;
  }
}

}  // namespace

const ReplaceOnly& only_a_token_file() {
  static const ReplaceOnly only = {
      "a file of tokens of Spillway's", [](std::span<const std::byte> head) {
        return head.size() >= 8 && std::memcmp(head.data(), token_file_magic, 8) == 0;
      }};
  return only;
}

TokenFileWriter::TokenFileWriter(const FilePlace& place, const TokenFileHeader& what)
    : file_(place, 0666, &only_a_token_file()), header_(what), hash_(XXH3_createState()) {
  SPILLWAY_ASSERT(what.token_bytes == 2 || what.token_bytes == 4);
  SPILLWAY_ASSERT(what.vocabulary <= (what.token_bytes == 2 ? 1u << 16 : 1u << 31));
  if (!hash_) throw std::bad_alloc();
  XXH3_64bits_reset(hash_.get());
  header_.tokens = header_.trained = 0;
  file_.write(std::array<std::byte, token_file_header_bytes>{});  // written once all is known
}

void TokenFileWriter::put(std::span<const std::byte> bytes) {
  buffer_.insert(buffer_.end(), bytes.begin(), bytes.end());
  if (buffer_.size() >= buffer_bytes) flush();
}

void TokenFileWriter::flush() {
  file_.write(buffer_);
  buffer_.clear();
}

void TokenFileWriter::add(std::span<const Token> tokens, std::span<const TokenRun> trained) {
  for (const Token token : tokens)
    SPILLWAY_ASSERT(token >= 0 && static_cast<std::uint64_t>(token) < header_.vocabulary);
  const std::uint64_t first = header_.tokens;
  header_.tokens += tokens.size();
  mask_.resize((header_.tokens + 63) / 64);
  for (const TokenRun& run : trained) {
    set_bits(mask_, first + run.first, first + run.end);
    header_.trained += run.end - run.first;
  }
  while (!tokens.empty()) {
    const auto part = tokens.first(std::min(tokens.size(), buffer_bytes / 4));
    const std::size_t before = buffer_.size();
    if (header_.token_bytes == 2)
      append<std::uint16_t>(buffer_, part);
    else
      append<std::uint32_t>(buffer_, part);
    XXH3_64bits_update(hash_.get(), buffer_.data() + before, buffer_.size() - before);
    if (buffer_.size() >= buffer_bytes) flush();
    tokens = tokens.subspan(part.size());
  }
}

void TokenFileWriter::end_document() {
  if (header_.tokens != (ends_.empty() ? 0 : ends_.back())) ends_.push_back(header_.tokens);
}

void TokenFileWriter::commit(const std::string& description, bool last) {
  end_document();
  SPILLWAY_ASSERT(header_.tokens > 0);
  const std::array<std::byte, 8> zeros{};
  const std::size_t padding = (8 - header_.tokens * header_.token_bytes % 8) % 8;
  put(std::span(zeros).first(padding));
  XXH3_64bits_update(hash_.get(), zeros.data(), padding);
  header_.tokens_hash = XXH3_64bits_digest(hash_.get());
  header_.documents = ends_.size();
  put(std::as_bytes(std::span(ends_)));
  header_.ends_hash = XXH3_64bits(ends_.data(), ends_.size() * 8);
  header_.flags &= ~(TokenFileHeader::has_mask | TokenFileHeader::is_last);
  header_.mask_hash = 0;
  if (header_.trained != header_.tokens) {
    header_.flags |= TokenFileHeader::has_mask;
    put(std::as_bytes(std::span(mask_)));
    header_.mask_hash = XXH3_64bits(mask_.data(), mask_.size() * 8);
  }
  if (last) header_.flags |= TokenFileHeader::is_last;
  header_.description_bytes = description.size();
  put(std::as_bytes(std::span(description)));
  header_.description_hash = XXH3_64bits(description.data(), description.size());
  flush();
  const auto head = token_header_bytes(header_);
  ssize_t count = 0;
  do {
    count = ::pwrite(file_.descriptor(), head.data(), head.size(), 0);
  } while (count < 0 && errno == EINTR);
  if (count != static_cast<ssize_t>(head.size()))
    throw MachineError::from_errno(file_.path().string() + ": cannot write", errno);
  file_.commit();
}

}  // namespace spillway
