#include "text/tokens/tokenize.hpp"

#include <fmt/format.h>
#include <sys/stat.h>
#include <xxhash.h>

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/errors.hpp"
#include "base/text.hpp"
#include "text/tokens/encoded_part.hpp"
#include "text/tokens/folder_lock.hpp"
#include "text/tokens/token_file_writer.hpp"

namespace spillway {

namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

// Raised when the same text becomes other tokens.
constexpr std::uint64_t rules_version = 1;

// What a file's description says: which parts of the source are in it, and what was counted.
ordered_json json_of(const DocumentCounts& counts) {
  return {{"records", counts.source.records}, {"malformed", counts.source.malformed},
          {"bytes", counts.source.bytes},     {"documents", counts.documents},
          {"tokens", counts.tokens},          {"trained_tokens", counts.trained_tokens},
          {"untrained", counts.untrained},    {"first_malformed", counts.source.first_malformed}};
}

DocumentCounts counts_of(const ordered_json& json) {
  DocumentCounts counts;
  counts.source.records = json.at("records");
  counts.source.malformed = json.at("malformed");
  counts.source.bytes = json.at("bytes");
  counts.documents = json.at("documents");
  counts.tokens = json.at("tokens");
  counts.trained_tokens = json.at("trained_tokens");
  counts.untrained = json.at("untrained");
  counts.source.first_malformed = json.value("first_malformed", "");  // not in older files
  return counts;
}

struct PartsInFile {
  std::size_t first = 0, end = 0;
  DocumentCounts counts;
};

// Of the description of a file whose checksum holds; nothing where it says no such thing.
std::optional<PartsInFile> parts_in(std::string_view description) {
  if (nested_deeper(description, most_nesting)) return {};
  const ordered_json json = ordered_json::parse(description, nullptr, false);
  try {
    return PartsInFile{json.at("parts").at(0).get<std::size_t>(),
                       json.at("parts").at(1).get<std::size_t>(), counts_of(json.at("counts"))};
  } catch (const nlohmann::json::exception&) {
    return {};
  }
}

// Bytes of the source's files in its first parts.
std::vector<std::uint64_t> bytes_before(const Source& source) {
  std::vector<std::uint64_t> sums = {0};
  for (const SourcePart& part : source.parts()) sums.push_back(sums.back() + part.end - part.begin);
  return sums;
}

class Tokenizing {
 public:
  Tokenizing(const Source& source, const Tokenizer& tokenizer, const TokenizeSettings& settings,
             const TokenizeListener& listener)
      : source_(source),
        settings_(settings),
        listener_(listener),
        folder_(settings.folder),
        part_bytes_(bytes_before(source)),
        tokenizer_(tokenizer) {
    header_.vocabulary = static_cast<std::uint64_t>(tokenizer.size());
    header_.token_bytes = header_.vocabulary <= 1 << 16 ? 2 : 4;
    header_.tokenizer = tokenizer.hash();
    header_.identity = token_identity(source, tokenizer, settings);
    for (const Source::File& file : source.files())
      if (file.format != SourceFormat::text) header_.flags |= TokenFileHeader::has_records;
    progress_.all_parts = source.parts().size();
    progress_.all_bytes = part_bytes_.back();
  }

  // Nothing: the folder was removed before it could be locked.
  std::optional<TokenizeResult> run() {
    const FolderLock lock(folder_, listener_.waiting, listener_.stop);
    if (!lock.held()) return result_;
    if (!is_there()) return {};
    remove_unfinished();
    keep_finished();
    if (!result_.finished) encode_rest();
    return result_;
  }

  // Whether the folder's path still leads to what was opened.
  bool is_there() const {
    struct stat opened {
    }, found{};
    return ::fstat(folder_.descriptor(), &opened) == 0 &&
           ::stat(folder_.path().c_str(), &found) == 0 && opened.st_dev == found.st_dev &&
           opened.st_ino == found.st_ino;
  }

 private:
  fs::path path_of(std::uint32_t shard) const { return folder_.path_of(token_file_name(shard)); }

  // What programs that were killed had not finished; the lock says that none is at work.
  void remove_unfinished() {
    std::error_code error;
    for (const fs::directory_entry& entry : fs::directory_iterator(folder_.path(), error)) {
      const std::string name = entry.path().filename().string();
      if (name.starts_with(".") && name.find(".tokens.partial-") != std::string::npos)
        folder_.remove(name);
    }
  }

  // Files of these tokens that are whole stay, up to the first that is not; the others go.
  void keep_finished() {
    bool kept = true;
    for (std::uint32_t shard = 0; folder_.status(token_file_name(shard)); ++shard) {
      kept = kept && keep(shard);
      if (!kept && !folder_.remove(token_file_name(shard)))
        throw MachineError("cannot remove " + path_of(shard).string(), "remove it by hand");
    }
    result_.kept_files = result_.files = shard_;
    first_part_ = next_part_;
    progress_.parts = next_part_;
    progress_.bytes = progress_.kept_bytes = part_bytes_[next_part_];
  }

  bool keep(std::uint32_t shard) {
    std::optional<PartsInFile> parts;
    std::optional<TokenFile> file;
    try {
      file.emplace(path_of(shard));
      if (file->header().identity == header_.identity) file->verify();
    } catch (const InputError&) {
      return false;  // damaged: it is made again
    }
    const TokenFileHeader& header = file->header();
    if (header.identity != header_.identity) {
      if (settings_.replace_others) return false;
      throw InputError(folder_.path().string() +
                           " holds tokens of something else: other text, "
                           "another tokenizer or other rules",
                       "name another folder, or remove the files in this one");
    }
    parts = parts_in(file->description());
    if (!parts || header.shard != shard || parts->first != next_part_ ||
        parts->end <= parts->first || parts->end > source_.parts().size() || result_.finished)
      return false;
    next_part_ = parts->end;
    result_.counts.add(parts->counts);
    progress_.tokens += header.tokens;
    progress_.documents += header.documents;
    result_.finished = header.last();
    ++shard_;
    return true;
  }

  void encode_rest() {
    PartEncoder encoder(source_, tokenizer_, settings_.documents, next_part_, settings_.threads);
    tell();
    while (next_part_ < source_.parts().size()) {
      if (listener_.stop && listener_.stop()) return;
      const auto part = encoder.next();
      if (!part) continue;
      // Only now is it known that the file before is not the last one.
      if (writer_ && writer_->tokens() >= settings_.shard_tokens && !part->tokens.empty())
        finish_file(false);
      write(*part);
      ++next_part_;
      tell();
    }
    if (!writer_) throw no_tokens();
    finish_file(true);
    result_.finished = true;
  }

  InputError no_tokens() const {
    return InputError("there is no document in " + source_.settings().paths.front().string() +
                          " that anything can be learned from",
                      "look at it: `spillway data show`");
  }

  void write(const EncodedPart& part) {
    counts_.add(part.counts);
    if (part.tokens.empty()) return;
    if (!writer_) {
      header_.shard = shard_;
      writer_.emplace(FilePlace(folder_, token_file_name(shard_)), header_);
    }
    std::size_t begin = 0, run = 0;
    for (const EncodedPart::Piece& piece : part.pieces) {
      std::vector<TokenRun> trained;
      for (; run < part.trained.size() && part.trained[run].end <= piece.end; ++run)
        trained.push_back({part.trained[run].first - begin, part.trained[run].end - begin});
      writer_->add(std::span(part.tokens).subspan(begin, piece.end - begin), trained);
      if (!piece.goes_on) {
        writer_->end_document();
        ++progress_.documents;
      }
      begin = piece.end;
    }
    progress_.tokens += part.tokens.size();
  }

  // The file that is being written holds the parts up to next_part_.
  void finish_file(bool last) {
    ordered_json paths = ordered_json::array();
    for (const fs::path& path : source_.settings().paths) {
      if (paths.size() < 20) paths.push_back(path.string());
    }
    const ordered_json description = {{"source", paths},
                                      {"files", source_.files().size()},
                                      {"bytes", source_.bytes()},
                                      {"tokenizer", tokenizer_.describe()},
                                      {"template", settings_.documents.chat_template},
                                      {"parts", {first_part_, next_part_}},
                                      {"counts", json_of(counts_)}};
    writer_->commit(description.dump(-1, ' ', false, ordered_json::error_handler_t::replace), last);
    writer_.reset();
    result_.counts.add(counts_);
    result_.files = ++shard_;
    counts_ = {};
    first_part_ = next_part_;
  }

  void tell() {
    progress_.parts = next_part_;
    progress_.bytes = part_bytes_[next_part_];
    if (listener_.progress) listener_.progress(progress_);
  }

  const Source& source_;
  const TokenizeSettings& settings_;
  const TokenizeListener& listener_;
  Directory folder_;
  std::vector<std::uint64_t> part_bytes_;
  const Tokenizer& tokenizer_;
  TokenFileHeader header_;
  TokenizeProgress progress_;
  TokenizeResult result_;
  std::optional<TokenFileWriter> writer_;
  DocumentCounts counts_;  // of the file that is being written
  std::size_t first_part_ = 0, next_part_ = 0;
  std::uint32_t shard_ = 0;
};

}  // namespace

std::uint64_t token_identity(const Source& source, const Tokenizer& tokenizer,
                             const TokenizeSettings& settings) {
  std::vector<std::uint64_t> all = {rules_version,
                                    settings.source_hash,
                                    tokenizer.hash(),
                                    static_cast<std::uint64_t>(tokenizer.size()),
                                    DocumentReader(source, tokenizer, settings.documents).hash(),
                                    settings.shard_tokens};
  const SourceSettings& s = source.settings();
  all.push_back(XXH3_64bits(s.separator.data(), s.separator.size()));
  all.push_back(s.skip_malformed ? 1 : 0);
  for (const Source::File& file : source.files())
    all.push_back(static_cast<std::uint64_t>(file.format) * 2 + (file.gzip ? 1 : 0));
  for (const SourcePart& part : source.parts())
    all.insert(all.end(), {part.file, part.begin, part.end});
  return XXH3_64bits(all.data(), all.size() * sizeof all.front());
}

TokenizeResult tokenize(const Source& source, const Tokenizer& tokenizer,
                        const TokenizeSettings& settings, const TokenizeListener& listener) {
  SPILLWAY_ASSERT(settings.threads > 0 && settings.shard_tokens > 0);
  while (true) {
    std::error_code error;
    fs::create_directories(settings.folder, error);
    if (error)
      throw MachineError::from_errno("cannot make the folder " + settings.folder.string(),
                                     error.value());
    Tokenizing tokenizing(source, tokenizer, settings, listener);
    try {
      if (const auto result = tokenizing.run()) return *result;
    } catch (const MachineError&) {
      if (tokenizing.is_there()) throw;
    }
  }
}

}  // namespace spillway
