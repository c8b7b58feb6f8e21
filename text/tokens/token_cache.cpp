#include "text/tokens/token_cache.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <system_error>

#include "base/errors.hpp"
#include "base/text.hpp"
#include "text/tokens/folder_lock.hpp"

namespace spillway {

namespace {

namespace fs = std::filesystem;

bool is_entry_name(const std::string& name) {
  return name.size() == 16 && name.find_first_not_of("0123456789abcdef") == std::string::npos;
}

// The time of the folder's lock is when it was last used.
constexpr const char* lock_name = ".lock";
constexpr const char* removed_prefix = ".removed-";
constexpr std::time_t long_ago = 7 * 24 * 3600;
constexpr int most_attempts = 20;

// Whoever waits for the folder's lock sees that its name is gone, and makes it anew.
void remove_folder(const fs::path& path) {
  const fs::path away = path.parent_path() / (removed_prefix + path.filename().string() + "-" +
                                              std::to_string(::getpid()));
  std::error_code error;
  fs::rename(path, away, error);
  if (!error) fs::remove_all(away, error);
  if (error) throw MachineError::from_errno("cannot remove " + path.string(), error.value());
}

std::uint64_t bytes_in(const fs::path& folder) {
  std::uint64_t bytes = 0;
  std::error_code error;
  for (const fs::directory_entry& file : fs::directory_iterator(folder, error)) {
    std::error_code gone;
    const std::uintmax_t size = file.is_regular_file(gone) ? file.file_size(gone) : 0;
    if (!gone) bytes += size;
  }
  return bytes;
}

// Which file remembers the hashes of these files.
std::string memory_name(const Source& source) {
  std::string paths;
  for (const fs::path& path : source.settings().paths) {
    std::error_code error;
    const fs::path canonical = fs::weakly_canonical(path, error);
    paths += (error ? path : canonical).string() + '\n';
  }
  return fmt::format("files-{:016x}.txt", XXH3_64bits(paths.data(), paths.size()));
}

std::string made_from(const TokenFile& file) {
  if (nested_deeper(file.description(), most_nesting)) return "";
  const auto json = nlohmann::json::parse(file.description(), nullptr, false);
  try {
    std::vector<std::string> paths = json.at("source");
    return fmt::format("{}, {}", fmt::join(paths, ", "), json.at("tokenizer").get<std::string>());
  } catch (const nlohmann::json::exception&) {
    return "";
  }
}

}  // namespace

std::optional<TokenCorpus> TokenCache::tokens(const Source& source, const Tokenizer& tokenizer,
                                              const DocumentSettings& documents, int threads,
                                              const Listener& listener) const {
  std::error_code error;
  fs::create_directories(folder_, error);
  if (error)
    throw MachineError::from_errno("cannot make the folder " + folder_.string(), error.value());
  TokenizeSettings settings;
  settings.documents = documents;
  settings.threads = threads;
  settings.replace_others = true;
  settings.source_hash = source_hash(source, folder_ / memory_name(source), listener.hashing);
  if (settings.source_hash == 0 && listener.hashing.stop && listener.hashing.stop()) return {};
  settings.folder = folder_ / fmt::format("{:016x}", token_identity(source, tokenizer, settings));
  TokenizeResult result;
  for (int attempts = 1;; ++attempts) {
    try {
      remove_unfinished(false);
      result = tokenize(source, tokenizer, settings, listener.tokenizing);
      break;
    } catch (const Error&) {
      // Another program may have found the folder before it was locked, still empty, and removed
      // it.
      const bool is_gone = !fs::exists(settings.folder, error);
      if (is_gone && attempts < most_attempts) continue;
      remove_unfinished(false);  // a source that is refused leaves an empty folder
      throw;
    } catch (...) {
      remove_unfinished(false);
      throw;
    }
  }
  if (!result.finished) return {};
  if (listener.counted) listener.counted(result.counts);
  ::utimensat(AT_FDCWD, (settings.folder / lock_name).c_str(), nullptr, 0);
  return TokenCorpus::open(settings.folder);
}

std::vector<TokenCache::Entry> TokenCache::entries() const {
  std::vector<Entry> entries;
  std::error_code error;
  for (const fs::directory_entry& one : fs::directory_iterator(folder_, error)) {
    Entry entry;
    entry.name = one.path().filename().string();
    if (!is_entry_name(entry.name)) continue;
    struct stat status {};
    if (::stat((one.path() / lock_name).c_str(), &status) == 0) entry.used = status.st_mtime;
    entry.bytes = bytes_in(one.path());
    for (std::uint32_t shard = 0; fs::exists(one.path() / token_file_name(shard), error); ++shard) {
      try {
        const TokenFile file(one.path() / token_file_name(shard));
        entry.tokens += file.tokens();
        entry.documents += file.documents();
        entry.finished = file.header().last();
        if (shard == 0) entry.made_from = made_from(file);
      } catch (const Error&) {
        entry.finished = false;  // it is damaged, and made again where it is wanted
        break;
      }
    }
    entries.push_back(std::move(entry));
  }
  std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
    return a.used != b.used ? a.used > b.used : a.name < b.name;
  });
  return entries;
}

void TokenCache::remove(const std::string& name) const {
  const fs::path path = folder_ / name;
  std::error_code error;
  if (!is_entry_name(name) || !fs::is_directory(fs::symlink_status(path, error)))
    throw InputError(fmt::format("there are no tokens called {} in {}", name, folder_.string()),
                     "see `spillway data cache`");
  const FolderLock lock(Directory(path), {}, {});
  remove_folder(path);
}

void TokenCache::remove_unfinished(bool all) const {
  const std::time_t now = std::time(nullptr);
  for (const Entry& entry : entries()) {
    if (entry.finished || (!all && entry.tokens > 0 && now - entry.used < long_ago)) continue;
    try {
      const FolderLock lock(Directory(folder_ / entry.name), {}, [] { return true; });
      if (lock.held()) remove_folder(folder_ / entry.name);
    } catch (const Error&) {
      continue;  // somebody else has removed it, or it is not ours to remove
    }
  }
  std::error_code error;
  for (const fs::directory_entry& one : fs::directory_iterator(folder_, error))
    if (one.path().filename().string().starts_with(removed_prefix)) fs::remove_all(one, error);
}

}  // namespace spillway
