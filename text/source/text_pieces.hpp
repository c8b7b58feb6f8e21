// Documents of text files, and pieces of those that are long.
#pragma once

#include <cstdint>
#include <functional>
#include <string_view>

#include "text/source/byte_stream.hpp"
#include "text/source/record.hpp"

namespace spillway {

using TakeText = std::function<void(TextRecord&& text, std::uint64_t offset)>;

// Bytes begin .. end - 1 of a file that is one document, nearly: both ends are moved to behind a
// line end, or, where the next 64 KiB have none, to where a character begins. So pieces that touch
// fit together.
void read_piece(const TextFile& file, std::uint64_t begin, std::uint64_t end, const TakeText& take);

// The documents, as far as they begin at `begin` .. `end` - 1, between separators, and what is
// longer than `piece_bytes` in pieces of about that many. Every byte of an occurrence of the
// separator belongs to it, also where occurrences overlap, and so do line breaks beside it.
// Documents without a character are none. No separator: the file is one document.
void read_separated(const TextFile& file, bool gzip, std::string_view separator,
                    std::uint64_t begin, std::uint64_t end, std::size_t piece_bytes,
                    const TakeText& take);

}  // namespace spillway
