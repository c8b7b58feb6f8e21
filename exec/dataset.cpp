#include "exec/dataset.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/errors.hpp"
#include "base/units.hpp"
#include "exec/file_descriptor.hpp"

namespace spillway {

namespace {

namespace fs = std::filesystem;

const char* hint_for(const std::error_code& error) {
  if (error == std::errc::permission_denied)
    return "check the permissions of the file and its folders";
  return "check the spelling of the path";
}

[[noreturn]] void refuse(const fs::path& path, const std::error_code& error) {
  throw InputError("cannot read " + path.string() + ": " + error.message(), hint_for(error));
}

// All regular files at and below `path`.
void collect(const fs::path& path, std::vector<fs::path>& files) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (!fs::exists(status)) {
    refuse(path, error ? error : std::make_error_code(std::errc::no_such_file_or_directory));
  }
  if (fs::is_regular_file(status)) {
    files.push_back(path.lexically_normal());
    return;
  }
  if (!fs::is_directory(status)) {
    throw InputError(path.string() + " is neither a file nor a folder",
                     "name text files or folders");
  }
  fs::path current = path;  // to name the folder that cannot be entered
  fs::recursive_directory_iterator entry(path, error);
  for (; !error && entry != fs::recursive_directory_iterator(); entry.increment(error)) {
    current = entry->path();
    std::error_code ignored;  // a dangling link is no regular file
    if (entry->is_regular_file(ignored)) files.push_back(current.lexically_normal());
  }
  if (error) refuse(current, error);
}

// Appends the file to `corpus`; at most `most` bytes, so a file that keeps growing cannot fill the
// memory. Returns false when there were more.
bool append_file(const fs::path& path, std::uint64_t most, std::vector<std::uint8_t>& corpus) {
  const FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file.valid()) refuse(path, std::error_code(errno, std::generic_category()));
  struct stat status {};
  if (::fstat(file.get(), &status) != 0) {
    refuse(path, std::error_code(errno, std::generic_category()));
  }
  const std::size_t begin = corpus.size();
  std::size_t end = begin;
  std::size_t room =
      static_cast<std::size_t>(status.st_size) + 1;  // + 1 to meet the end of the file
  while (true) {
    room = std::min<std::uint64_t>(room, most + 1 - (end - begin));
    if (room == 0) return false;
    corpus.resize(end + room);
    const ssize_t count = ::read(file.get(), corpus.data() + end, room);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) refuse(path, std::error_code(errno, std::generic_category()));
    end += static_cast<std::size_t>(count);
    if (count == 0) break;
    room = std::max<std::size_t>(room - static_cast<std::size_t>(count), 1 << 16);
  }
  corpus.resize(end);
  return true;
}

std::uint64_t size_of(const fs::path& path) {
  std::error_code error;
  const std::uint64_t bytes = fs::file_size(path, error);
  if (error) refuse(path, error);
  return bytes;
}

}  // namespace

Dataset::Dataset(const std::vector<fs::path>& paths, std::uint64_t seed, std::uint64_t memory_limit)
    : seed_(seed) {
  if (paths.empty()) throw InputError("no training data", "name files or folders with --data");
  std::vector<fs::path> found;
  for (const fs::path& path : paths) collect(path, found);
  std::sort(found.begin(), found.end());
  found.erase(std::unique(found.begin(), found.end()), found.end());
  if (found.empty()) {
    throw InputError("there is no file in " + paths.front().string(),
                     "name a folder with text files");
  }
  const auto refuse_size = [&](double bytes) {
    throw InputError(fmt::format("the training data has {}{}, the limit is {}", format_bytes(bytes),
                                 found.size() > 1 ? fmt::format(" in {} files", found.size())
                                                  : " in " + found.front().string(),
                                 format_bytes(static_cast<double>(memory_limit))),
                     "the text is held in memory: name fewer or smaller files");
  };
  std::uint64_t total = 0;
  for (const fs::path& path : found) total += size_of(path);
  if (total > memory_limit) refuse_size(static_cast<double>(total));
  corpus_.reserve(total + 1);
  for (const fs::path& path : found) {
    const std::uint64_t begin = corpus_.size();
    if (!append_file(path, memory_limit - begin, corpus_)) {
      refuse_size(static_cast<double>(corpus_.size()));
    }
    files_.push_back({path, begin, corpus_.size() - begin});
  }
  if (corpus_.empty()) {
    throw InputError("the training data is empty: " + describe(), "name files with text in them");
  }
}

std::string Dataset::describe() const {
  if (files_.size() == 1) return files_.front().path.string();
  return fmt::format("{} and {} more files", files_.front().path.string(), files_.size() - 1);
}

void Dataset::require(std::int64_t sequence, std::int64_t vocabulary) const {
  if (sequence < 1) {
    throw InputError(fmt::format("a sequence of {} tokens is not possible", sequence),
                     "choose a --sequence of 1 or more");
  }
  if (corpus_.size() < static_cast<std::uint64_t>(sequence) + 1) {
    throw InputError(
        fmt::format("the training data has {} bytes, a sequence of {} tokens needs {}: {}",
                    corpus_.size(), sequence, sequence + 1, describe()),
        fmt::format("name more data, or choose --sequence {} or less",
                    std::max<std::size_t>(corpus_.size(), 2) - 1));
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

void Dataset::tokens(std::uint64_t first, std::span<std::int32_t> tokens) const {
  SPILLWAY_ASSERT(first <= corpus_.size() && tokens.size() <= corpus_.size() - first);
  std::copy_n(corpus_.begin() + static_cast<std::ptrdiff_t>(first), tokens.size(), tokens.begin());
}

void Dataset::batch(std::int64_t step, std::int64_t first_sequence, std::int64_t sequences,
                    std::int64_t sequence_length, std::int32_t* tokens,
                    std::int32_t* targets) const {
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
