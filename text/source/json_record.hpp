// Records that are written as JSON objects, one by one.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "text/source/byte_stream.hpp"
#include "text/source/record.hpp"

namespace spillway {

// A longer record is refused: a file without line ends must not fill the memory.
inline constexpr std::size_t most_record_bytes = std::size_t{64} << 20;

// What a JSON object says, by its fields: the first that it has of `messages`; `conversations`;
// `prompt` and `completion`; `instruction` and `output`; `text`. Throws MalformedRecord.
Record parse_json_record(std::string_view json);
// Whether the text is an object with such fields, whatever their values.
bool is_json_record(std::string_view json);

// A message of these two fields alone.
ChatMessage make_message(const std::string& role, const std::string& content);

// The records of a file, one after the other, as text.
class JsonRecords {
 public:
  virtual ~JsonRecords() = default;
  // The next one and where it begins; false: there are no more. The text is valid until the next
  // call. Throws MalformedRecord, of what begins at `offset`; next() then goes on behind the
  // fault, or, where nobody knows where that is, has no more.
  virtual bool next(std::string_view& text, std::uint64_t& offset) = 0;
};

// One a line, those that begin at `begin` .. `end` - 1. Empty lines are none.
std::unique_ptr<JsonRecords> lines_of(const TextFile& file, bool gzip, std::uint64_t begin,
                                      std::uint64_t end);
// The elements of one array.
std::unique_ptr<JsonRecords> elements_of(const TextFile& file, bool gzip);

}  // namespace spillway
