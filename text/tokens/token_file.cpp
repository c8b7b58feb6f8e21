#include "text/tokens/token_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "base/directory.hpp"
#include "base/errors.hpp"
#include "text/tokens/token_file_layout.hpp"

namespace spillway {

namespace {

static_assert(std::endian::native == std::endian::little, "token files are mapped as they are");

constexpr std::size_t llm_c_header = 1024;
constexpr std::uint32_t llm_c_gpt2 = 20240520, llm_c_llama = 20240801;
constexpr std::uint64_t most_description = 1 << 20;

template <class Number>
Number number_at(const std::byte* bytes) {
  Number number;
  std::memcpy(&number, bytes, sizeof number);
  return number;
}

std::uint64_t hash_of(std::span<const std::byte> bytes) {
  return XXH3_64bits(bytes.data(), bytes.size());
}

// The first of `count` tokens that is `vocabulary` or more; count: none is.
template <class Number>
std::uint64_t first_beyond(const std::byte* tokens, std::uint64_t count, std::uint64_t vocabulary) {
  for (std::uint64_t i = 0; i < count; ++i)
    if (number_at<Number>(tokens + i * sizeof(Number)) >= vocabulary) return i;
  return count;
}

std::uint64_t bits_in(const std::byte* mask, std::uint64_t first, std::uint64_t count) {
  std::uint64_t bits = 0;
  const std::uint64_t end = first + count;
  while (first < end) {
    if (first % 64 == 0 && end - first >= 64) {
      bits += static_cast<std::uint64_t>(std::popcount(number_at<std::uint64_t>(mask + first / 8)));
      first += 64;
    } else {
      bits += std::to_integer<std::uint64_t>(mask[first / 8]) >> first % 8 & 1;
      ++first;
    }
  }
  return bits;
}

}  // namespace

const char* name_of(TokenFormat format) {
  switch (format) {
    case TokenFormat::spillway:
      return "tokens of Spillway's";
    case TokenFormat::llm_c:
      return "tokens of llm.c's";
    case TokenFormat::uint16:
      return "bare uint16 tokens";
    case TokenFormat::uint32:
      return "bare uint32 tokens";
  }
  return "";
}

bool begins_as_tokens(std::span<const std::byte> head) {
  if (head.size() >= 8 && std::memcmp(head.data(), token_file_magic, 8) == 0) return true;
  if (head.size() < llm_c_header) return false;
  const auto magic = number_at<std::uint32_t>(head.data());
  return magic == llm_c_gpt2 || magic == llm_c_llama;
}

TokenFile::TokenFile(std::filesystem::path path, std::optional<TokenFormat> raw)
    : path_(std::move(path)) {
  const FileDescriptor file = open_to_read(path_);
  file_ = MappedFile(file.get(), path_);
  const auto bytes = file_.bytes();
  if (raw) {
    format_ = *raw;
    open_raw();
  } else if (bytes.size() >= 8 && std::memcmp(bytes.data(), token_file_magic, 8) == 0) {
    open_own();
  } else if (begins_as_tokens(bytes)) {
    format_ = TokenFormat::llm_c;
    open_llm_c();
  } else {
    throw InputError(path_.string() + " holds no tokens of Spillway's or llm.c's",
                     "say what bare tokens are: " + Setting{"data_format", "uint16"} + " or " +
                         Setting{"data_format", "uint32"});
  }
}

void TokenFile::refuse(const std::string& what) const {
  throw InputError(path_.string() + " is damaged: " + what,
                   "make it again: `spillway tokenize` does, or remove it from the cache");
}

void TokenFile::open_own() {
  const auto bytes = file_.bytes();
  if (bytes.size() < token_file_header_bytes) refuse("it ends within its header");
  const auto version = number_at<std::uint32_t>(bytes.data() + 8);
  if (version != token_file_version) {
    throw InputError(fmt::format("{} has version {} of the layout, this program reads {}",
                                 path_.string(), version, token_file_version),
                     "tokenize the text again");
  }
  if (hash_of(bytes.first(token_file_header_bytes - 8)) !=
      number_at<std::uint64_t>(bytes.data() + token_file_header_bytes - 8))
    refuse("its header does not agree with its checksum");
  header_ = read_token_header(bytes);
  const TokenFileHeader& h = header_;
  if (h.token_bytes != 2 && h.token_bytes != 4)
    refuse(fmt::format("tokens of {} bytes are not possible", h.token_bytes));
  // Each number is at most the file's size, so none of the sums below can overflow.
  const std::uint64_t size = bytes.size();
  if (h.tokens < 1 || h.documents < 1 || h.documents > h.tokens || h.trained > h.tokens ||
      h.tokens > size / h.token_bytes || h.documents > size / 8 ||
      h.description_bytes > std::min(size, most_description))
    refuse("its counts cannot be true");
  if (h.flags >= 2 * TokenFileHeader::has_records) refuse(fmt::format("its flags are {}", h.flags));
  if (h.vocabulary < 1 || h.vocabulary > std::uint64_t{1} << (h.token_bytes == 2 ? 16 : 31))
    refuse(fmt::format("a vocabulary of {} is not possible", h.vocabulary));
  if (!h.masked() && (h.trained != h.tokens || h.mask_hash != 0))
    refuse("it has no mask, and not all tokens are trained on");
  const TokenFileParts parts = parts_of(h);
  if (parts.end != size) refuse(fmt::format("it has {} bytes and should have {}", size, parts.end));
  tokens_ = bytes.data() + parts.tokens;
  ends_ = bytes.data() + parts.ends;
  if (h.masked()) mask_ = bytes.data() + parts.mask;
  description_ = {reinterpret_cast<const char*>(bytes.data() + parts.description),
                  h.description_bytes};
  if (hash_of(bytes.subspan(parts.ends, h.documents * 8)) != h.ends_hash)
    refuse("the ends of its documents do not agree with their checksum");
  if (hash_of(bytes.subspan(parts.description, h.description_bytes)) != h.description_hash)
    refuse("its description does not agree with its checksum");
  std::uint64_t before = 0;
  for (std::uint64_t document = 0; document < h.documents; ++document) {
    const std::uint64_t end = end_at(document);
    if (end <= before) refuse("its documents do not ascend");
    before = end;
  }
  if (before != h.tokens) refuse("its documents do not end where its tokens do");
}

void TokenFile::open_llm_c() {
  const auto bytes = file_.bytes();
  const auto word = [&](int i) { return number_at<std::uint32_t>(bytes.data() + 4 * i); };
  const bool llama = word(0) == llm_c_llama;
  const std::uint32_t expected = llama ? 7 : 1;
  if (word(1) != expected) {
    throw InputError(fmt::format("{} is of version {}, of llm.c's tokens with this magic number "
                                 "version {} is read",
                                 path_.string(), word(1), expected),
                     "write it again by llm.c's present scripts");
  }
  header_.token_bytes = llama ? 4 : 2;
  header_.tokens = header_.trained = word(2);
  header_.documents = 1;
  const std::uint64_t wanted = llm_c_header + header_.tokens * header_.token_bytes;
  if (header_.tokens == 0 || bytes.size() != wanted) {
    throw InputError(fmt::format("{} has {} bytes, with {} tokens of llm.c's it should have {}",
                                 path_.string(), bytes.size(), header_.tokens, wanted),
                     "the file was cut: copy or write it again");
  }
  tokens_ = bytes.data() + llm_c_header;
}

void TokenFile::open_raw() {
  const auto bytes = file_.bytes();
  header_.token_bytes = format_ == TokenFormat::uint16 ? 2 : 4;
  if (bytes.empty() || bytes.size() % header_.token_bytes != 0) {
    throw InputError(fmt::format("{} has {} bytes: that is no number of {}", path_.string(),
                                 bytes.size(), name_of(format_)),
                     "look how it was written");
  }
  if (begins_as_tokens(bytes)) {
    throw InputError(
        fmt::format("{} has a header: it does not hold {}", path_.string(), name_of(format_)),
        "leave " + Setting{"data_format"} + " out");
  }
  header_.tokens = header_.trained = bytes.size() / header_.token_bytes;
  header_.documents = 1;
  tokens_ = bytes.data();
}

std::uint64_t TokenFile::end_at(std::uint64_t document) const {
  return ends_ == nullptr ? header_.tokens : number_at<std::uint64_t>(ends_ + document * 8);
}

void TokenFile::check_tokens(std::uint64_t vocabulary) const {
  const std::uint64_t beyond =
      header_.token_bytes == 2 ? first_beyond<std::uint16_t>(tokens_, header_.tokens, vocabulary)
                               : first_beyond<std::uint32_t>(tokens_, header_.tokens, vocabulary);
  if (beyond == header_.tokens) return;
  Token token = 0;
  read(beyond, {&token, 1});
  const bool raw = format_ == TokenFormat::uint16 || format_ == TokenFormat::uint32;
  throw InputError(
      fmt::format("{} has the token {} at {}, the vocabulary ends at {}", path_.string(),
                  static_cast<std::uint32_t>(token), beyond, vocabulary - 1),
      "the tokens are of another model's tokenizer; a model that begins here can have its "
      "vocabulary: " +
          Setting{"set", "model.vocabulary=N"} +
          (raw ? ", or are not " +
                     Setting{"data_format", header_.token_bytes == 2 ? "uint16" : "uint32"}
               : Message("")));
}

void TokenFile::require_below(std::uint64_t vocabulary) const {
  if (header_.vocabulary == 0 || header_.vocabulary > vocabulary) check_tokens(vocabulary);
}

void TokenFile::verify() const {
  const TokenFileHeader& h = header_;
  if (format_ != TokenFormat::spillway) return;
  const TokenFileParts parts = parts_of(h);
  const auto bytes = file_.bytes();
  if (hash_of(bytes.subspan(parts.tokens, parts.ends - parts.tokens)) != h.tokens_hash)
    refuse("its tokens do not agree with their checksum");
  if (h.masked()) {
    if (hash_of(bytes.subspan(parts.mask, parts.description - parts.mask)) != h.mask_hash)
      refuse("its mask does not agree with its checksum");
    if (count_trained(0, h.tokens) != h.trained)
      refuse("its mask does not hold as many tokens as it says");
  }
  check_tokens(h.vocabulary);
}

std::uint64_t TokenFile::content_hash() const {
  if (format_ != TokenFormat::spillway) return hash_of(file_.bytes());
  const std::array<std::uint64_t, 5> parts = {header_.tokens, header_.tokens_hash,
                                              header_.ends_hash, header_.mask_hash,
                                              header_.token_bytes};
  return XXH3_64bits(parts.data(), sizeof parts);
}

void TokenFile::read(std::uint64_t first, std::span<Token> tokens) const {
  SPILLWAY_ASSERT(first <= header_.tokens && tokens.size() <= header_.tokens - first);
  const std::byte* from = tokens_ + first * header_.token_bytes;
  if (header_.token_bytes == 4) {
    std::memcpy(tokens.data(), from, tokens.size_bytes());
  } else {
    for (std::size_t i = 0; i < tokens.size(); ++i)
      tokens[i] = number_at<std::uint16_t>(from + 2 * i);
  }
}

bool TokenFile::is_trained(std::uint64_t token) const { return count_trained(token, 1) == 1; }

std::uint64_t TokenFile::count_trained(std::uint64_t first, std::uint64_t count) const {
  SPILLWAY_ASSERT(first <= header_.tokens && count <= header_.tokens - first);
  return mask_ == nullptr ? count : bits_in(mask_, first, count);
}

}  // namespace spillway
