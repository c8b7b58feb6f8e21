#include "exec/data/dataset.hpp"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <memory>
#include <new>

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

// What all bytes of a file are, where they are no text.
std::string kind_of(std::span<const std::byte> bytes) {
  TextContent content;
  while (!bytes.empty() && content.not_text().empty()) {
    const auto block = bytes.first(std::min(bytes.size(), block_bytes));
    content.add({reinterpret_cast<const std::uint8_t*>(block.data()), block.size()});
    bytes = bytes.subspan(block.size());
  }
  return content.not_text();
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
  memory_.reserve(std::min({total, memory_limit, available_memory() / 2}) + 1);
  for (const TextFile& file : found) read(file, memory_limit, binary);
  trained_bytes_ = bytes_;
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
  if (bytes_ == 0) {
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
  const std::uint64_t room = memory_limit - memory_.size(), begin = memory_.size();
  const bool in_memory = size_of(descriptor, file.path()) <= room;
  Content content{{}, begin};
  if (in_memory) {
    not_text = append_file(descriptor, file.path(), room, binary, memory_);
    if (memory_.size() > memory_limit) {
      throw InputError(
          fmt::format("{} keeps growing, or does not say how long it is", file.path().string()),
          "copy it, and name the copy");
    }
  } else {
    content.mapped = MappedFile(descriptor.get(), file.path());
    if (!binary) not_text = kind_of(content.mapped.bytes());
  }
  if (!not_text.empty()) {
    if (file.named()) {
      throw InputError(file.path().string() + " is " + not_text + ", not text",
                       "unpack or convert it and name the text; " + Setting{"binary_data"} +
                           " takes it as bytes, as it is");
    }
    return skipped_.add(file.path(), not_text);
  }
  const std::uint64_t bytes = in_memory ? memory_.size() - begin : content.mapped.bytes().size();
  files_.push_back({file.path(), bytes_, bytes});
  contents_.push_back(std::move(content));
  bytes_ += bytes;
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
  if (trained_bytes_ < static_cast<std::uint64_t>(sequence) + 1) {
    throw InputError(
        fmt::format("the training data has {} bytes, a sequence of {} tokens needs {}: {}",
                    trained_bytes_, sequence, sequence + 1, describe()),
        "name more data, or choose " +
            Setting{"sequence", std::to_string(std::max<std::uint64_t>(trained_bytes_, 2) - 1)} +
            " or less");
  }
  if (vocabulary > 255) return;
  std::uint64_t position = 0;
  int beyond = -1;
  for_each_piece(0, [&](std::span<const std::uint8_t> piece) {
    const auto found = std::find_if(piece.begin(), piece.end(),
                                    [&](std::uint8_t byte) { return byte >= vocabulary; });
    position += static_cast<std::uint64_t>(found - piece.begin());
    if (found != piece.end()) beyond = *found;
    return found == piece.end();
  });
  if (beyond < 0) return;
  const DatasetFile& file = file_at(position);
  throw InputError(
      fmt::format("{} holds the byte {} at offset {}, the model's vocabulary ends at {}",
                  file.path.string(), beyond, position - file.first_byte, vocabulary - 1),
      "tokens are bytes: choose a model with a vocabulary of 256 or more");
}

const DatasetFile& Dataset::file_at(std::uint64_t byte) const {
  return *std::prev(std::upper_bound(
      files_.begin(), files_.end(), byte,
      [](std::uint64_t at, const DatasetFile& candidate) { return at < candidate.first_byte; }));
}

void Dataset::for_each_piece(
    std::uint64_t first, const std::function<bool(std::span<const std::uint8_t>)>& visit) const {
  if (first >= bytes_) return;
  for (auto i = static_cast<std::size_t>(&file_at(first) - files_.data()); i < files_.size(); ++i) {
    const DatasetFile& file = files_[i];
    const Content& content = contents_[i];
    const auto* const begin =
        content.mapped.bytes().empty()
            ? memory_.data() + content.in_memory
            : reinterpret_cast<const std::uint8_t*>(content.mapped.bytes().data());
    const std::uint64_t skipped = first - std::min(first, file.first_byte);
    const std::span all(begin, file.bytes);
    if (!visit(all.subspan(std::min(skipped, file.bytes)))) return;
  }
}

std::uint64_t Dataset::hash() const {
  const std::lock_guard lock(hash_mutex_);
  if (!hash_) hash_ = hash_all();
  return *hash_;
}

std::uint64_t Dataset::hash_all() const {
  const std::unique_ptr<XXH3_state_t, XXH_errorcode (*)(XXH3_state_t*)> state(XXH3_createState(),
                                                                              XXH3_freeState);
  if (!state) throw std::bad_alloc();
  XXH3_64bits_reset(state.get());
  for_each_piece(0, [&](std::span<const std::uint8_t> piece) {
    XXH3_64bits_update(state.get(), piece.data(), piece.size());
    return true;
  });
  if (trained_bytes_ != bytes_)
    XXH3_64bits_update(state.get(), &trained_bytes_, sizeof trained_bytes_);
  return XXH3_64bits_digest(state.get());
}

void Dataset::hold_out(double fraction) {
  const auto held =
      static_cast<std::uint64_t>(std::max(1.0, std::floor(static_cast<double>(bytes_) * fraction)));
  if (held >= bytes_)
    throw InputError(fmt::format("the training data has {} bytes: nothing can be held out", bytes_),
                     "name more data");
  trained_bytes_ = bytes_ - held;
  hash_.reset();
}

void Dataset::tokens(std::uint64_t first, std::span<std::int32_t> tokens) const {
  SPILLWAY_ASSERT(first <= bytes_ && tokens.size() <= bytes_ - first);
  for_each_piece(first, [&](std::span<const std::uint8_t> piece) {
    const std::size_t count = std::min(piece.size(), tokens.size());
    std::copy_n(piece.begin(), count, tokens.begin());
    tokens = tokens.subspan(count);
    return !tokens.empty();
  });
}

void Dataset::batch(std::int64_t step, std::int64_t first_sequence, std::int64_t sequences,
                    std::int64_t sequence_length, std::int32_t* tokens, std::int32_t* targets,
                    std::int32_t*) const {
  require(sequence_length, 256);
  const auto length = static_cast<std::size_t>(sequence_length);
  const std::uint64_t starts = trained_bytes_ - length;  // the last one still has a target after it
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

std::int64_t HeldOutBytes::sequences(std::int64_t sequence_length) const {
  return static_cast<std::int64_t>((size() - 1) / static_cast<std::uint64_t>(sequence_length));
}

std::int64_t HeldOutBytes::batches(std::int64_t sequence_length) const {
  return (sequences(sequence_length) + sequences_per_step_ - 1) / sequences_per_step_;
}

void HeldOutBytes::require(std::int64_t sequence_length, std::int64_t vocabulary) const {
  if (first_ == 0) dataset_->require(sequence_length, vocabulary);
  if (size() > static_cast<std::uint64_t>(sequence_length)) return;
  throw InputError(fmt::format("{} bytes are held out, a sequence of {} tokens needs {}", size(),
                               sequence_length, sequence_length + 1),
                   "hold out more: " + Setting{"validation", "10%"});
}

void HeldOutBytes::batch(std::int64_t step, std::int64_t first_sequence, std::int64_t sequences,
                         std::int64_t sequence_length, std::int32_t* tokens, std::int32_t* targets,
                         std::int32_t*) const {
  const auto length = static_cast<std::size_t>(sequence_length);
  for (std::int64_t i = 0; i < sequences; ++i) {
    const std::int64_t number = step * sequences_per_step_ + first_sequence + i;
    const std::size_t row = static_cast<std::size_t>(i) * length;
    if (number >= this->sequences(sequence_length)) {
      std::fill_n(tokens + row, length, 0);
      std::fill_n(targets + row, length, no_target);
      continue;
    }
    const std::uint64_t first = first_ + static_cast<std::uint64_t>(number) * length;
    dataset_->tokens(first, {tokens + row, length});
    dataset_->tokens(first + 1, {targets + row, length});
  }
}

std::int64_t HeldOutBytes::counted_tokens(std::int64_t step, std::int64_t sequences,
                                          std::int64_t sequence_length) const {
  const std::int64_t left = this->sequences(sequence_length) - step * sequences_per_step_;
  return std::clamp<std::int64_t>(left, 0, sequences) * sequence_length;
}

}  // namespace spillway
