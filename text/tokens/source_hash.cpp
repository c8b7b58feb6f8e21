#include "text/tokens/source_hash.hpp"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include <array>
#include <cerrno>
#include <ctime>
#include <map>
#include <memory>
#include <sstream>
#include <vector>

#include "base/directory.hpp"
#include "base/errors.hpp"
#include "base/new_file.hpp"

namespace spillway {

namespace {

constexpr std::size_t block_bytes = std::size_t{4} << 20;
constexpr std::uint64_t most_memory = std::uint64_t{256} << 20;
constexpr std::time_t settled_seconds = 5;
constexpr const char* first_line = "spillway file hashes 1";

// What the file system says of a file; equal: it has not changed.
using FileState = std::array<std::uint64_t, 7>;

FileState state_of(const struct stat& status) {
  const auto number = [](auto value) { return static_cast<std::uint64_t>(value); };
  return {number(status.st_dev),          number(status.st_ino),
          number(status.st_size),         number(status.st_mtim.tv_sec),
          number(status.st_mtim.tv_nsec), number(status.st_ctim.tv_sec),
          number(status.st_ctim.tv_nsec)};
}

class FileHashes {
 public:
  explicit FileHashes(std::filesystem::path path) : path_(std::move(path)) {
    if (path_.empty()) return;
    try {
      read(read_file(path_, most_memory));
    } catch (const Error&) {
      known_.clear();  // there is none yet, or it is of no use
    }
  }

  const std::uint64_t* find(const FileState& state) const {
    const auto found = known_.find(state);
    return found == known_.end() ? nullptr : &found->second;
  }
  void remember(const FileState& state, std::uint64_t hash) { now_[state] = hash; }

  void save() const {
    if (path_.empty() || now_ == known_) return;
    std::string text = std::string(first_line) + "\n";
    for (const auto& [state, hash] : now_)
      text += fmt::format("{} {:016x}\n", fmt::join(state, " "), hash);
    text += fmt::format("{:016x}\n", XXH3_64bits(text.data(), text.size()));
    try {
      NewFile file(path_);
      file.write(std::as_bytes(std::span(text)));
      file.commit();
    } catch (const Error&) {
      // The next call reads the files again.
    }
  }

 private:
  void read(const std::string& text) {
    constexpr std::size_t checksum_bytes = 17;
    if (text.size() < checksum_bytes) return;
    const std::string_view body = std::string_view(text).substr(0, text.size() - checksum_bytes);
    if (text.substr(body.size()) != fmt::format("{:016x}\n", XXH3_64bits(body.data(), body.size())))
      return;
    std::istringstream lines{std::string(body)};
    std::string line;
    if (!std::getline(lines, line) || line != first_line) return;
    while (std::getline(lines, line)) {
      std::istringstream words(line);
      FileState state{};
      std::uint64_t hash = 0;
      for (std::uint64_t& number : state) words >> number;
      if (words >> std::hex >> hash) known_[state] = hash;
    }
  }

  std::filesystem::path path_;
  std::map<FileState, std::uint64_t> known_, now_;
};

struct HashDeleter {
  void operator()(XXH3_state_t* state) const { XXH3_freeState(state); }
};

}  // namespace

std::uint64_t source_hash(const Source& source, const std::filesystem::path& memory,
                          const SourceHashListener& listener) {
  FileHashes hashes(memory);
  std::vector<std::uint64_t> all;
  std::vector<std::byte> block(block_bytes);
  const std::unique_ptr<XXH3_state_t, HashDeleter> state(XXH3_createState());
  if (!state) throw std::bad_alloc();
  std::uint64_t done = 0;
  for (const Source::File& one : source.files()) {
    const std::filesystem::path& path = one.file.path();
    std::string why_not;
    const FileDescriptor file = one.file.open(why_not);
    if (!file.valid()) throw InputError(path.string() + " is not a file but " + why_not);
    struct stat before {};
    if (::fstat(file.get(), &before) != 0) refuse_to_read(path, errno);
    const auto size = static_cast<std::uint64_t>(before.st_size);
    all.push_back(size);
    if (const std::uint64_t* known = hashes.find(state_of(before))) {
      all.push_back(*known);
      hashes.remember(state_of(before), *known);
      done += size;
      continue;
    }
    XXH3_64bits_reset(state.get());
    while (true) {
      if (listener.stop && listener.stop()) return 0;
      const ssize_t count = ::read(file.get(), block.data(), block.size());
      if (count < 0 && errno == EINTR) continue;
      if (count < 0) refuse_to_read(path, errno);
      if (count == 0) break;
      XXH3_64bits_update(state.get(), block.data(), static_cast<std::size_t>(count));
      done += static_cast<std::uint64_t>(count);
      if (listener.progress) listener.progress(done, source.bytes());
    }
    all.push_back(XXH3_64bits_digest(state.get()));
    struct stat after {};
    if (::fstat(file.get(), &after) == 0 && state_of(after) == state_of(before) &&
        after.st_ctim.tv_sec + settled_seconds < std::time(nullptr))
      hashes.remember(state_of(after), all.back());
  }
  hashes.save();
  return XXH3_64bits(all.data(), all.size() * sizeof all.front());
}

}  // namespace spillway
