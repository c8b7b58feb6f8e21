#include "text/source/source.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "base/errors.hpp"
#include "text/source/byte_stream.hpp"
#include "text/source/json_record.hpp"
#include "text/source/text_content.hpp"
#include "text/source/text_pieces.hpp"

namespace spillway {

namespace {

namespace fs = std::filesystem;

constexpr std::size_t head_bytes = std::size_t{64} << 10;
constexpr std::string_view gzip_begin = "\x1f\x8b";

bool has_suffix(const fs::path& path, std::string_view suffix) {
  const std::string name = path.filename().string();
  return name.ends_with(suffix) || name.ends_with(std::string(suffix) + ".gz");
}

// Whether the first record of the file is one of those that JSON holds.
bool begins_with_record(const TextFile& file, bool gzip, bool as_array) {
  try {
    const auto records = as_array
                             ? elements_of(file, gzip)
                             : lines_of(file, gzip, 0, std::numeric_limits<std::uint64_t>::max());
    std::string_view text;
    std::uint64_t offset = 0;
    return records->next(text, offset) && is_json_record(text);
  } catch (const InputError&) {
    return false;
  }
}

SourceFormat look_for_format(const TextFile& file, bool gzip, std::string_view head) {
  if (has_suffix(file.path(), ".jsonl") || has_suffix(file.path(), ".ndjson"))
    return SourceFormat::jsonl;
  const std::size_t first = head.find_first_not_of(" \t\r\n");
  if (first == std::string_view::npos) return SourceFormat::text;
  if (head[first] == '{' && begins_with_record(file, gzip, false)) return SourceFormat::jsonl;
  if (head[first] == '[' && begins_with_record(file, gzip, true)) return SourceFormat::json;
  if (file.named() && has_suffix(file.path(), ".json"))
    throw InputError(file.path().string() + " is neither a list of records nor one record a line",
                     "give [{...}, {...}] or lines of {...}; to train on its letters: " +
                         Setting{"data_format", "text"});
  return SourceFormat::text;
}

// The file as it is to be read; nothing: it is skipped.
std::optional<Source::File> look_at(const TextFile& file, const SourceSettings& settings,
                                    SkippedFiles& skipped) {
  std::string not_text;
  if (!file.open(not_text).valid()) {
    if (file.named())
      throw InputError(file.path().string() + " is not a file but " + not_text,
                       "name files or folders");
    skipped.add(file.path(), not_text);
    return {};
  }
  Source::File found{file, settings.format, false};
  std::string head;
  ByteStream(file, false).read(head, head_bytes);
  if (head.starts_with(gzip_begin)) {
    found.gzip = true;
    head.clear();
    ByteStream stream(file, true);
    while (head.size() < head_bytes && stream.read(head, head_bytes - head.size())) continue;
  }
  TextContent content;
  content.add({reinterpret_cast<const std::uint8_t*>(head.data()), head.size()});
  not_text = settings.binary ? "" : content.not_text();
  if (!not_text.empty()) {
    if (file.named())
      throw InputError(file.path().string() + " is " + not_text + ", not text",
                       "unpack or convert it and name the text; " + Setting{"binary_data"} +
                           " takes it as it is");
    skipped.add(file.path(), not_text);
    return {};
  }
  if (found.format == SourceFormat::automatic)
    found.format = look_for_format(file, found.gzip, head);
  return found;
}

}  // namespace

void SourceCounts::add(const SourceCounts& more) {
  records += more.records;
  bytes += more.bytes;
  if (malformed == 0) first_malformed = more.first_malformed;
  malformed += more.malformed;
}

Source::Source(SourceSettings settings, std::uint64_t part_bytes)
    : settings_(std::move(settings)), part_bytes_(part_bytes) {
  SPILLWAY_ASSERT(part_bytes > 0);
  if (settings_.paths.empty())
    throw InputError("no training data", "name files or folders: " + Setting{"data"});
  for (const TextFile& file : find_text_files(settings_.paths, skipped_)) {
    if (auto found = look_at(file, settings_, skipped_)) files_.push_back(std::move(*found));
  }
  if (files_.empty()) {
    const std::string skipped = skipped_.text();
    throw InputError("there is no file in " + settings_.paths.front().string() +
                         (skipped.empty() ? "" : " that is text: " + skipped),
                     "name files, or a folder with text files");
  }
  for (std::size_t i = 0; i < files_.size(); ++i) {
    const File& file = files_[i];
    const std::uint64_t size = file.file.bytes();
    const bool whole = file.gzip || file.format == SourceFormat::json;
    if (whole) {
      parts_.push_back({i, 0, size});
      continue;
    }
    for (std::uint64_t begin = 0; begin < size; begin += part_bytes)
      parts_.push_back({i, begin, std::min(size, begin + part_bytes)});
  }
}

void Source::read(const SourcePart& part, const std::function<void(Record&&)>& take,
                  SourceCounts& counts) const {
  const File& file = files_.at(part.file);
  const std::uint64_t end = file.gzip ? std::numeric_limits<std::uint64_t>::max() : part.end;
  if (file.format == SourceFormat::text) {
    const auto take_text = [&](TextRecord&& text, std::uint64_t offset) {
      counts.records += text.begins ? 1 : 0;
      counts.bytes += text.text.size();
      take({std::move(text), {part.file, offset}});
    };
    if (settings_.separator.empty() && !file.gzip)
      read_piece(file.file, part.begin, part.end, take_text);
    else
      read_separated(file.file, file.gzip, settings_.separator, part.begin, end, part_bytes_,
                     take_text);
    return;
  }
  const auto records = file.format == SourceFormat::json
                           ? elements_of(file.file, file.gzip)
                           : lines_of(file.file, file.gzip, part.begin, end);
  while (true) {
    RecordPlace place{part.file, 0};
    try {
      std::string_view text;
      if (!records->next(text, place.offset)) break;
      Record record = parse_json_record(text);
      record.place = place;
      ++counts.records;
      counts.bytes += text.size();
      take(std::move(record));
    } catch (const MalformedRecord& error) {
      refuse(place, error, counts);
    }
  }
}

void Source::refuse(const RecordPlace& place, const MalformedRecord& error,
                    SourceCounts& counts) const {
  const bool first = counts.malformed++ == 0;
  if (settings_.skip_malformed && !first) return;
  const std::string what = where(place) + ": " + error.what();
  if (!settings_.skip_malformed)
    throw InputError(what, error.hint() + "; " + Setting{"skip_malformed"} +
                               " leaves such records out and counts them");
  counts.first_malformed = what;
}

std::uint64_t Source::bytes() const {
  std::uint64_t sum = 0;
  for (const File& file : files_) sum += file.file.bytes();
  return sum;
}

std::string Source::where(const RecordPlace& place) const {
  const File& file = files_.at(place.file);
  ByteStream stream(file.file, file.gzip);
  std::uint64_t line = 1;
  std::string text;
  while (stream.position() < place.offset) {
    text.clear();
    const std::uint64_t left = place.offset - stream.position();
    if (!stream.read(text, std::min<std::uint64_t>(left, ByteStream::block_bytes))) break;
    line += static_cast<std::uint64_t>(std::count(text.begin(), text.end(), '\n'));
  }
  return fmt::format("{}:{}", file.file.path().string(), line);
}

}  // namespace spillway
