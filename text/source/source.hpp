// Files that people train on, as records: texts, prompts with completions, chats.
//
// The files of a source are cut into parts, which depend on the sizes of the files alone. A part is
// what one thread reads at a time, and what a stopped tokenizer goes on with: the records of a
// source are those of its parts, in the order of the parts. No file is held in memory as a whole.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "text/source/record.hpp"
#include "text/source/text_files.hpp"

namespace spillway {

enum class SourceFormat {
  automatic,  // each file by its first record
  text,
  jsonl,  // one JSON object a line
  json,   // one array of JSON objects
};

// What a user says about a source.
struct SourceSettings {
  // Files and folders; those whose content is gzip are read uncompressed.
  std::vector<std::filesystem::path> paths = {};
  // So many times each document is seen in an epoch; 0.5: every other document in each epoch.
  double weight = 1;
  SourceFormat format = SourceFormat::automatic;
  // Of text: stands between documents ("<|endoftext|>", "\n\n\n"). Empty: a file is a document.
  std::string separator = {};
  // Malformed records are counted and left out instead of refused.
  bool skip_malformed = false;
  // Files that are not text are taken as they are, instead of skipped in folders and refused where
  // they are named.
  bool binary = false;
  bool operator==(const SourceSettings&) const = default;
};

// Records whose first byte is one of begin .. end - 1 of a file.
struct SourcePart {
  std::size_t file = 0;
  std::uint64_t begin = 0, end = 0;
  bool operator==(const SourcePart&) const = default;
};

struct SourceCounts {
  std::uint64_t records = 0;
  std::uint64_t malformed = 0;  // left out (skip_malformed)
  std::string first_malformed;  // why, with file:line; empty: none
  std::uint64_t bytes = 0;      // of the records, uncompressed
  void add(const SourceCounts& more);
};

class Source {
 public:
  // Bytes of a part, nearly: a part ends where a record does.
  static constexpr std::uint64_t default_part_bytes = std::uint64_t{16} << 20;

  // Finds the files and looks at their first records. Throws InputError: a path that is missing or
  // neither file nor folder, a named file that is not text, no file at all, an unknown form.
  explicit Source(SourceSettings settings, std::uint64_t part_bytes = default_part_bytes);

  const SourceSettings& settings() const { return settings_; }
  const std::vector<SourcePart>& parts() const { return parts_; }
  // The records of a part, in order. Throws InputError with file:line where a record is malformed,
  // and where a file is no longer the one that was found. Thread-safe.
  void read(const SourcePart& part, const std::function<void(Record&&)>& take,
            SourceCounts& counts) const;

  // A record of `place` cannot be used: counts it, or, unless such records are skipped, throws
  // InputError with file:line.
  void refuse(const RecordPlace& place, const MalformedRecord& error, SourceCounts& counts) const;

  struct File {
    TextFile file;
    SourceFormat format = SourceFormat::text;
    bool gzip = false;
  };
  const std::vector<File>& files() const { return files_; }
  const SkippedFiles& skipped() const { return skipped_; }
  std::uint64_t bytes() const;  // of all files, as they lie on the drive
  // "chats.jsonl:17". Reads the file up to there.
  std::string where(const RecordPlace& place) const;

 private:
  SourceSettings settings_;
  std::uint64_t part_bytes_;
  std::vector<File> files_;
  std::vector<SourcePart> parts_;
  SkippedFiles skipped_;
};

// "PATH" or "PATH=WEIGHT": what lies there, or, for a named file that ends in .toml, the sources
// that the file lists:
//
//   [[source]]
//   path = "chats.jsonl"          # or paths = [...]; relative to the file's folder
//   weight = 2
//   format = "jsonl"              # text, jsonl, json, automatic
//   separator = "<|endoftext|>"   # of text
//   skip_malformed = true         # or binary = true
//
// Throws InputError.
std::vector<SourceSettings> parse_sources(const std::string& text);
std::vector<SourceSettings> parse_source_list(const std::string& toml,
                                              const std::filesystem::path& name);
// "text", "jsonl", "json", "automatic".
SourceFormat parse_source_format(const std::string& name);

}  // namespace spillway
