#include "experiments/sweep/sweep_journal.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <optional>
#include <string_view>
#include <vector>

#include "base/directory.hpp"
#include "base/errors.hpp"
#include "experiments/sweep/journal_owner.hpp"

namespace spillway {

namespace fs = std::filesystem;

namespace {

constexpr std::chrono::seconds sync_every{2};
constexpr std::size_t identity_digits = 32, checksum_digits = 16;
constexpr std::size_t payload_at = identity_digits + 1 + checksum_digits + 1;
constexpr const char* parts_folder = "parts";
constexpr const char* extension = ".journal";

std::string checksum(std::string_view identity, std::string_view json) {
  const std::uint64_t hash =
      XXH3_64bits_withSeed(json.data(), json.size(), XXH3_64bits(identity.data(), identity.size()));
  return fmt::format("{:016x}", hash);
}

// Reads one line, without its end, into `results`; false where it is damaged.
bool read_line(std::string_view line, SweepResults& results) {
  if (line.size() < payload_at || line[identity_digits] != ' ' || line[payload_at - 1] != ' ') {
    return false;
  }
  const std::string_view identity = line.substr(0, identity_digits);
  const std::string_view json = line.substr(payload_at);
  if (line.substr(identity_digits + 1, checksum_digits) != checksum(identity, json)) return false;
  results.emplace(identity, json);
  return true;
}

std::string contents_of(const fs::path& path) {
  constexpr std::uint64_t longest = std::uint64_t{4} << 30;
  return Directory(path.parent_path()).read(path.filename().string(), longest).value_or("");
}

// Whether a file is a journal, as far as it begins like one, be it empty, torn or damaged: nothing
// else is cut or written to.
bool is_journal(std::string_view text) {
  for (std::size_t i = 0; i < std::min(text.size(), payload_at); ++i) {
    const bool is_space = i == identity_digits || i == payload_at - 1;
    if (is_space ? text[i] != ' ' : std::isxdigit(static_cast<unsigned char>(text[i])) == 0)
      return false;
  }
  return true;
}

}  // namespace

bool holds_journals(const fs::path& folder) {
  std::error_code error;
  fs::directory_iterator parts(folder / parts_folder, error);
  return !error && std::all_of(begin(parts), end(parts), [](const fs::directory_entry& entry) {
    return entry.path().extension() == extension;
  });
}

namespace {

// The lines that were dropped.
std::size_t read_lines(const std::string& text, SweepResults& results) {
  std::size_t dropped = 0, begin = 0;
  for (std::size_t end = text.find('\n'); end != std::string::npos;
       begin = end + 1, end = text.find('\n', begin)) {
    if (!read_line(std::string_view(text).substr(begin, end - begin), results)) ++dropped;
  }
  return begin < text.size() ? dropped + 1 : dropped;
}

[[noreturn]] void reject_other_file(const fs::path& path) {
  throw InputError(path.string(), 0, "is not a journal of Spillway's: it is left as it is",
                   "remove it, or name another " + Setting{"out"});
}

// Lustre without its option flock, and others that leave locking out.
bool means_no_locks(int error_number) {
  return error_number == ENOSYS || error_number == EOPNOTSUPP || error_number == ENOLCK;
}

fs::path made_path(const fs::path& folder, const std::string& name) {
  const fs::path parts = folder / parts_folder;
  std::error_code error;
  fs::create_directories(parts, error);
  if (error) {
    throw MachineError::from_errno(parts.string() + ": cannot create the folder", error.value());
  }
  return parts / (name + extension);
}

}  // namespace

SweepResults read_journal(const fs::path& path, std::size_t* damaged) {
  SweepResults results;
  std::error_code error;
  const std::string text = fs::exists(path, error) ? contents_of(path) : "";
  if (!is_journal(text)) reject_other_file(path);
  const std::size_t dropped = read_lines(text, results);
  if (damaged != nullptr) *damaged = dropped;
  return results;
}

SweepResults read_journals(const fs::path& folder, std::size_t* damaged) {
  SweepResults results;
  std::vector<fs::path> paths;
  std::error_code error;
  const fs::path parts = folder / parts_folder;
  if (!fs::exists(parts, error)) return results;
  for (fs::directory_iterator entry(parts, error), end; !error && entry != end;
       entry.increment(error)) {
    if (entry->path().extension() == extension) paths.push_back(entry->path());
  }
  if (error) throw MachineError::from_errno(parts.string() + ": cannot read", error.value());
  std::sort(paths.begin(), paths.end());
  std::size_t dropped = 0;
  for (const fs::path& path : paths) {
    dropped += read_lines(contents_of(path), results);
  }
  if (damaged != nullptr) *damaged = dropped;
  return results;
}

SweepJournal::SweepJournal(const fs::path& folder, const std::string& name)
    : path_(made_path(folder, name)), synced_(std::chrono::steady_clock::now()) {
  if (!open_locked()) open_as_new(name);
}

SweepJournal::SweepJournal(const fs::path& path)
    : path_(path), synced_(std::chrono::steady_clock::now()) {
  if (!open_locked()) fail("cannot lock: the file system has no locks (flock)", ENOTSUP);
}

bool SweepJournal::open_locked() {
  const Directory parts(path_.parent_path());
  const std::string file_name = path_.filename().string();
  std::optional<FileDescriptor> opened = parts.create(file_name, 0666);
  if (!opened) opened = parts.open(file_name, O_RDWR, FileUse::change);
  if (!opened) fail("cannot open", ENOENT);
  file_ = ::fcntl(opened->get(), F_DUPFD_CLOEXEC, 0);
  if (file_ < 0) fail("cannot open", errno);
  if (::flock(file_, LOCK_EX | LOCK_NB) != 0) {
    const int error_number = errno;
    close();
    if (means_no_locks(error_number)) return false;
    if (error_number != EWOULDBLOCK) fail("cannot lock", error_number);
    throw InputError(path_.string(), 0, "another process is writing here",
                     "wait for it, name another " + Setting{"out"} +
                         ", or run shards of a sweep: " + Setting{"shard", "1/2"} + ", " +
                         Setting{"shard", "2/2"});
  }
  cut_torn_line();
  return true;
}

void SweepJournal::open_as_new(const std::string& name) {
  const Directory parts(path_.parent_path());
  std::optional<FileDescriptor> made;
  while (!made) {
    path_ = path_.parent_path() / fmt::format("{}.{}{}", name, random_word(), extension);
    made = parts.create(path_.filename().string(), 0666);
  }
  file_ = ::fcntl(made->get(), F_DUPFD_CLOEXEC, 0);
  if (file_ < 0) fail("cannot open", errno);
}

// From the end of the last whole line on, everything is written anew.
void SweepJournal::cut_torn_line() {
  const std::string text = contents_of(path_);
  if (!is_journal(text)) {
    close();
    reject_other_file(path_);
  }
  const std::size_t end = text.rfind('\n');
  length_ = end == std::string::npos ? 0 : static_cast<std::int64_t>(end) + 1;
  if (::ftruncate(file_, length_) == 0) return;
  const int error_number = errno;
  close();
  fail("cannot cut off a torn line", error_number);
}

void SweepJournal::close() noexcept {
  if (file_ >= 0) ::close(file_);
  file_ = -1;
}

SweepJournal::~SweepJournal() {
  if (file_ >= 0) (void)::fdatasync(file_);
  close();
}

void SweepJournal::fail(const std::string& what, int error_number) const {
  throw MachineError::from_errno(path_.string() + ": " + what, error_number);
}

void SweepJournal::append(const std::string& identity, const std::string& json) {
  SPILLWAY_ASSERT(identity.size() == identity_digits && json.find('\n') == std::string::npos);
  const std::string line = identity + " " + checksum(identity, json) + " " + json + "\n";
  const std::lock_guard lock(mutex_);
  std::string_view rest = line;
  std::int64_t at = length_;
  while (!rest.empty()) {
    const ssize_t written = ::pwrite(file_, rest.data(), rest.size(), at);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) {
      const int error_number = written < 0 ? errno : ENOSPC;
      // Should this fail too, the next run drops the torn line.
      (void)!::ftruncate(file_, length_);
      fail("cannot write", error_number);
    }
    rest.remove_prefix(static_cast<std::size_t>(written));
    at += written;
  }
  length_ = at;
  if (std::chrono::steady_clock::now() - synced_ >= sync_every) sync_locked();
}

void SweepJournal::sync() {
  const std::lock_guard lock(mutex_);
  sync_locked();
}

void SweepJournal::sync_locked() {
  if (::fdatasync(file_) != 0) fail("cannot make the results durable", errno);
  synced_ = std::chrono::steady_clock::now();
}

}  // namespace spillway
