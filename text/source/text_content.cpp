#include "text/source/text_content.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

namespace spillway {

namespace {

using namespace std::string_view_literals;

// How kinds of files begin, or what they have at some place further on.
struct Signature {
  std::size_t offset;
  std::string_view bytes;
  const char* kind;
};

constexpr Signature signatures[] = {
    {0, "PK\x03\x04"sv, "a zip archive"},
    {0, "PK\x05\x06"sv, "a zip archive"},
    {0, "\x1f\x8b"sv, "a gzip archive"},
    {0,
     "\xfd"
     "7zXZ\0"sv,
     "an xz archive"},
    {0, "\x28\xb5\x2f\xfd"sv, "a zstd archive"},
    {0, "\x04\x22\x4d\x18"sv, "an lz4 archive"},
    {4, "\x31\x41\x59\x26\x53\x59"sv, "a bzip2 archive"},
    {0, "7z\xbc\xaf\x27\x1c"sv, "a 7z archive"},
    {0, "Rar!\x1a\x07"sv, "a rar archive"},
    {257, "ustar\0"sv, "a tar archive"},
    {257, "ustar  \0"sv, "a tar archive"},
    {0, "!<arch>\n"sv, "an ar archive"},
    {0, "\xed\xab\xee\xdb"sv, "an rpm package"},
    {0, "MSCF\0"sv, "a cabinet archive"},
    {0,
     "\x7f"
     "ELF"sv,
     "a program"},
    {0, "\xca\xfe\xba\xbe"sv, "a program"},
    {0, "\xcf\xfa\xed\xfe"sv, "a program"},
    {0, "\0asm"sv, "a program"},
    {0, "%PDF-"sv, "a PDF document"},
    {0, "\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"sv, "an Office document"},
    {0, "\x89PNG\r\n\x1a\n"sv, "a picture"},
    {0, "\xff\xd8\xff"sv, "a picture"},
    {0, "GIF87a"sv, "a picture"},
    {0, "GIF89a"sv, "a picture"},
    {8, "WEBPVP8"sv, "a picture"},
    {8, "WAVEfmt "sv, "a sound file"},
    {0, "OggS\0"sv, "a sound file"},
    {0, "fLaC\0"sv, "a sound file"},
    {0, "ID3\x03"sv, "a sound file"},
    {0, "ID3\x04"sv, "a sound file"},
    {4, "ftypisom"sv, "a film"},
    {4, "ftypmp4"sv, "a film"},
    {0, "\x1a\x45\xdf\xa3"sv, "a film"},
    {0, "SQLite format 3\0"sv, "a database"},
    {0, "\x93NUMPY"sv, "an array of numbers"},
    {0, "\x89HDF\r\n\x1a\n"sv, "an array of numbers"},
    {0, "\xff\xfe"sv, "text in UTF-16 (`iconv -f UTF-16 -t UTF-8` converts it)"},
    {0, "\xfe\xff"sv, "text in UTF-16 (`iconv -f UTF-16 -t UTF-8` converts it)"},
};

constexpr std::uint64_t bytes_per_zero = 1000;  // fewer of them is no text
constexpr std::uint64_t odd_per_ten = 3;        // more of them is none

// Characters of ASCII that texts have. The escape character begins colours in logs.
constexpr bool is_plain(std::uint8_t byte) {
  return (byte >= 0x20 && byte < 0x7f) || (byte >= '\b' && byte <= '\r') || byte == 0x1b;
}

}  // namespace

void TextContent::add(std::span<const std::uint8_t> bytes) {
  if (bytes_ < head_.size()) {
    const std::size_t count = std::min<std::size_t>(bytes.size(), head_.size() - bytes_);
    std::copy_n(bytes.begin(), count, head_.begin() + static_cast<std::ptrdiff_t>(bytes_));
  }
  bytes_ += bytes.size();
  constexpr std::size_t run = 64;
  for (std::size_t at = 0; at < bytes.size();) {
    // Nearly all of most texts: runs without anything to look at twice.
    while (to_come_ == 0 && at + run <= bytes.size()) {
      unsigned plain = 1;
      for (std::size_t i = 0; i < run; ++i) plain &= is_plain(bytes[at + i]) ? 1u : 0u;
      if (plain == 0) break;
      at += run;
    }
    const std::size_t end = std::min(at + run, bytes.size());
    for (; at < end; ++at) add_byte(bytes[at]);
  }
}

void TextContent::add_byte(std::uint8_t byte) {
  if (to_come_ > 0) {
    const bool fits = byte >= lowest_ && byte <= highest_;
    lowest_ = 0x80;
    highest_ = 0xbf;
    if (fits) {
      --to_come_;
      ++there_;
      return;
    }
    odd_ += static_cast<std::uint64_t>(there_);
    to_come_ = 0;
  }
  if (byte < 0x80) {
    if (byte == 0) ++zeros_;
    if (!is_plain(byte)) ++odd_;
    return;
  }
  // The first byte of a character; some say more about the second one (no overlong forms, no
  // surrogates, nothing beyond U+10FFFF).
  there_ = 1;
  if (byte >= 0xc2 && byte <= 0xdf) {
    to_come_ = 1;
  } else if (byte >= 0xe0 && byte <= 0xef) {
    to_come_ = 2;
    if (byte == 0xe0) lowest_ = 0xa0;
    if (byte == 0xed) highest_ = 0x9f;
  } else if (byte >= 0xf0 && byte <= 0xf4) {
    to_come_ = 3;
    if (byte == 0xf0) lowest_ = 0x90;
    if (byte == 0xf4) highest_ = 0x8f;
  } else {
    ++odd_;
  }
}

std::string TextContent::not_text() const {
  const std::string_view head(reinterpret_cast<const char*>(head_.data()),
                              std::min<std::size_t>(bytes_, head_.size()));
  for (const Signature& signature : signatures) {
    if (head.size() > signature.offset &&
        head.substr(signature.offset).starts_with(signature.bytes))
      return signature.kind;
  }
  if (zeros_ * bytes_per_zero > bytes_)
    return fmt::format("binary ({} of {} bytes are zero)", zeros_, bytes_);
  if (odd_ * 10 > bytes_ * odd_per_ten)
    return fmt::format("binary ({} of {} bytes are no text in UTF-8)", odd_, bytes_);
  return "";
}

}  // namespace spillway
