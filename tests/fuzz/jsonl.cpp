// Sources: any bytes as a file. After `j`, JSONL; after `a`, a list in JSON; after `t`, a separator
// up to a line end and a text; after `l`, a list of sources; after anything else, a file whose form
// is looked for.
#include "tests/fuzz/fuzz.hpp"
#include "text/source/source.hpp"

#include <algorithm>

using namespace spillway;

namespace {

// All that a source holds, as text; pieces of a document put together.
std::string contents(const Source& source, SourceCounts& counts) {
  std::string all;
  const auto write = [&](const Record& record) {
    if (const auto* text = std::get_if<TextRecord>(&record.content)) {
      all += (text->begins ? "T" : "") + text->text + (text->ends ? "\x1e" : "");
    } else if (const auto* completion = std::get_if<CompletionRecord>(&record.content)) {
      all += "C" + completion->prompt + "\x1f" + completion->completion + "\x1e";
    } else if (const auto* one = std::get_if<InstructionRecord>(&record.content)) {
      all += "I" + one->instruction + "\x1f" + one->input + "\x1f" + one->output + "\x1e";
    } else {
      const auto& chat = std::get<ChatRecord>(record.content);
      fuzz::require(!chat.messages.empty(), "a chat has messages");
      all += "M";
      for (const ChatMessage& message : chat.messages) {
        fuzz::require(!message.role.empty(), "a message has a role");
        all += message.role + "\x1f" + message.content + "\x1f" + message.json + "\x1f";
      }
      all += chat.tools + "\x1e";
    }
    source.where(record.place);
  };
  for (const SourcePart& part : source.parts()) source.read(part, write, counts);
  return all;
}

}  // namespace

SPILLWAY_FUZZ_TARGET(jsonl) {
  static const fuzz::ScratchFolder folder;
  SourceSettings settings;
  const char form = input.empty() ? ' ' : static_cast<char>(input[0]);
  fuzz::Bytes bytes = input.empty() ? input : input.subspan(1);
  if (form == 'l') {
    fuzz::accepted([&] {
      for (const SourceSettings& source : parse_source_list(fuzz::text_of(bytes), "mix.toml"))
        fuzz::require(source.weight > 0 && !source.paths.empty(), "a source has a weight, a path");
    });
    return;
  }
  if (form == 'j') settings.format = SourceFormat::jsonl;
  if (form == 'a') settings.format = SourceFormat::json;
  if (form == 't') {
    settings.format = SourceFormat::text;
    const std::string text = fuzz::text_of(bytes);
    settings.separator = text.substr(0, text.find('\n'));
    bytes = bytes.subspan(std::min(settings.separator.size() + 1, bytes.size()));
  }
  settings.binary = form == 't';
  settings.paths = {folder.write("data", bytes)};
  std::string whole;
  bool is_good = false;
  fuzz::accepted([&] {
    SourceCounts counts;
    settings.skip_malformed = true;
    whole = contents(Source(settings), counts);
    is_good = counts.malformed == 0;
    fuzz::require(is_good == counts.first_malformed.empty(), "the first malformed record is told");
    for (const std::uint64_t part_bytes : {1u, 7u}) {
      SourceCounts other;
      fuzz::require(contents(Source(settings, part_bytes), other) == whole,
                    "parts of any size hold the same records");
      fuzz::require(other.records == counts.records && other.malformed == counts.malformed,
                    "parts of any size are counted alike");
    }
  });
  settings.skip_malformed = false;
  fuzz::accepted([&] {
    SourceCounts counts;
    fuzz::require(contents(Source(settings), counts) == whole && is_good,
                  "what is not refused has no malformed record");
  });
}
