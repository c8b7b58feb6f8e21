#include "exec/data/dataset.hpp"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "base/errors.hpp"
#include "base/file_descriptor.hpp"
#include "base/units.hpp"
#include "exec/run/available_memory.hpp"
#include "text/source/text_content.hpp"

namespace spillway {

namespace {

namespace fs = std::filesystem;

// Of a file: enough to tell what it is.
constexpr std::size_t first_look = 64 << 10, block_bytes = 4 << 20;

// Appends to `corpus` what an open file holds, and returns what it is where that is no text (unless
// `binary`); what was appended then goes again. At most `most` + 1 bytes are read, so that a file
// that keeps growing cannot fill the memory.
std::string append_file(const FileDescriptor& file, const fs::path& path, std::uint64_t most,
                        bool binary, std::vector<std::uint8_t>& corpus) {
  const std::size_t begin = corpus.size();
  TextContent content;
  std::size_t end = begin;
  while (end - begin <= most) {
    const std::size_t wanted =
        std::min<std::uint64_t>(end == begin ? first_look : block_bytes, most + 1 - (end - begin));
    corpus.resize(end + wanted);
    const ssize_t count = ::read(file.get(), corpus.data() + end, wanted);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) refuse_to_read(path, errno);
    const auto bytes = static_cast<std::size_t>(count);
    if (!binary) content.add({corpus.data() + end, bytes});
    end += bytes;
    if (bytes == 0) break;
    if (!content.not_text().empty()) break;  // the rest need not be read
  }
  const std::string not_text = content.not_text();
  corpus.resize(not_text.empty() ? end : begin);
  return not_text;
}

std::uint64_t size_of(const FileDescriptor& file, const fs::path& path) {
  struct stat status {};
  if (::fstat(file.get(), &status) != 0) refuse_to_read(path, errno);
  return static_cast<std::uint64_t>(status.st_size);
}

}  // namespace

Dataset::Dataset(const std::vector<fs::path>& paths, std::uint64_t seed, std::uint64_t memory_limit,
                 bool binary)
    : seed_(seed) {
  if (paths.empty())
    throw InputError("no training data", "name files or folders: " + Setting{"data"});
  const std::vector<TextFile> found = find_text_files(paths, skipped_);
  std::uint64_t total = 0;
  for (const TextFile& file : found) total += std::min(file.bytes(), memory_limit);
  corpus_.reserve(std::min({total, memory_limit, available_memory() / 2}) + 1);
  for (const TextFile& file : found) read(file, memory_limit, binary);
  if (files_.empty()) {
    const std::string skipped = skipped_.text();
    throw InputError("there is no file in " + paths.front().string() +
                         (skipped.empty() ? "" : " that is text: " + skipped),
                     skipped.empty()
                         ? Message("name a folder with text files")
                         : "name the text in it; " + Setting{"binary_data"} +
                               " takes files that are no text as bytes, and what is hidden is "
                               "taken where it is named");
  }
  if (corpus_.empty()) {
    throw InputError("the training data is empty: " + describe(), "name files with text in them");
  }
}

void Dataset::read(const TextFile& file, std::uint64_t memory_limit, bool binary) {
  std::string not_text;
  const FileDescriptor descriptor = file.open(not_text);
  if (!descriptor.valid()) {
    if (file.named())
      throw InputError(file.path().string() + " is not a file but " + not_text,
                       "name text files or folders");
    return skipped_.add(file.path(), not_text);
  }
  const std::uint64_t begin = corpus_.size(), room = memory_limit - begin;
  const std::uint64_t size = size_of(descriptor, file.path());
  // Of what is too large only the beginning is read: it may be no text at all.
  const std::uint64_t most = size > room ? first_look : room;
  not_text = append_file(descriptor, file.path(), most, binary, corpus_);
  if (!not_text.empty()) {
    if (file.named()) {
      throw InputError(file.path().string() + " is " + not_text + ", not text",
                       "unpack or convert it and name the text; " + Setting{"binary_data"} +
                           " takes it as bytes, as it is");
    }
    return skipped_.add(file.path(), not_text);
  }
  const std::uint64_t bytes =
      std::max<std::uint64_t>(corpus_.size() - begin, size > room ? size : 0);
  files_.push_back({file.path(), begin, bytes});
  if (bytes <= room) return;
  throw InputError(
      fmt::format("the training data has {}{}, the limit is {}",
                  format_bytes(static_cast<double>(begin + bytes)),
                  files_.size() > 1 ? fmt::format(" or more, up to {}", file.path().string())
                                    : " in " + file.path().string(),
                  format_bytes(static_cast<double>(memory_limit))),
      "the text is held in memory: name fewer or smaller files");
}

std::string Dataset::describe() const {
  if (files_.size() == 1) return files_.front().path.string();
  return fmt::format("{} and {} more files", files_.front().path.string(), files_.size() - 1);
}

void Dataset::require(std::int64_t sequence, std::int64_t vocabulary) const {
  if (sequence < 1) {
    throw InputError(fmt::format("a sequence of {} tokens is not possible", sequence),
                     "choose a " + Setting{"sequence"} + " of 1 or more");
  }
  if (corpus_.size() < static_cast<std::uint64_t>(sequence) + 1) {
    throw InputError(
        fmt::format("the training data has {} bytes, a sequence of {} tokens needs {}: {}",
                    corpus_.size(), sequence, sequence + 1, describe()),
        "name more data, or choose " +
            Setting{"sequence", std::to_string(std::max<std::size_t>(corpus_.size(), 2) - 1)} +
            " or less");
  }
  if (vocabulary > 255) return;
  const auto beyond = std::find_if(corpus_.begin(), corpus_.end(),
                                   [&](std::uint8_t byte) { return byte >= vocabulary; });
  if (beyond == corpus_.end()) return;
  const auto position = static_cast<std::uint64_t>(beyond - corpus_.begin());
  const auto file = std::prev(std::upper_bound(
      files_.begin(), files_.end(), position,
      [](std::uint64_t at, const DatasetFile& candidate) { return at < candidate.first_byte; }));
  throw InputError(
      fmt::format("{} holds the byte {} at offset {}, the model's vocabulary ends at {}",
                  file->path.string(), *beyond, position - file->first_byte, vocabulary - 1),
      "tokens are bytes: choose a model with a vocabulary of 256 or more");
}

std::uint64_t Dataset::hash() const { return XXH3_64bits(corpus_.data(), corpus_.size()); }

void Dataset::tokens(std::uint64_t first, std::span<std::int32_t> tokens) const {
  SPILLWAY_ASSERT(first <= corpus_.size() && tokens.size() <= corpus_.size() - first);
  std::copy_n(corpus_.begin() + static_cast<std::ptrdiff_t>(first), tokens.size(), tokens.begin());
}

void Dataset::batch(std::int64_t step, std::int64_t first_sequence, std::int64_t sequences,
                    std::int64_t sequence_length, std::int32_t* tokens, std::int32_t* targets,
                    std::int32_t*) const {
  require(sequence_length, 256);
  const auto length = static_cast<std::size_t>(sequence_length);
  const std::uint64_t starts = corpus_.size() - length;  // the last one still has a target after it
  for (std::int64_t i = 0; i < sequences; ++i) {
    // A counter-based generator: the hash of the position in the training run is the random number.
    const std::array<std::int64_t, 2> counter = {step, first_sequence + i};
    const std::uint64_t random = XXH3_64bits_withSeed(counter.data(), sizeof counter, seed_);
    const std::uint64_t start = random % starts;
    const std::size_t row = static_cast<std::size_t>(i) * length;
    this->tokens(start, {tokens + row, length});
    this->tokens(start + 1, {targets + row, length});
  }
}

}  // namespace spillway
