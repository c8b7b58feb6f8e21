#include "experiments/calibrate/machine_cache.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sstream>
#include <utility>
#include <vector>

#include "base/errors.hpp"
#include "base/file_descriptor.hpp"

namespace spillway {

namespace {

namespace fs = std::filesystem;

constexpr const char* first_line = "# Measured briefly by spillway; may be removed at any time.\n";
constexpr off_t most_bytes = off_t{64} << 20;

std::string hash_of(const std::string& text) {
  return fmt::format("{:016x}", XXH3_64bits(text.data(), text.size()));
}

std::string commented(const std::string& lines) {
  std::istringstream in(lines);
  std::string result;
  for (std::string line; std::getline(in, line);) result += "# " + line + "\n";
  return result;
}

// The folder itself, where it is the user's own and no link.
FileDescriptor open_folder(const fs::path& folder) {
  FileDescriptor opened(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  struct stat status {};
  if (!opened.valid() || ::fstat(opened.get(), &status) != 0) return {};
  if (status.st_uid != ::geteuid()) {
    errno = EPERM;
    return {};
  }
  return opened;
}

bool write_all(int file, const std::string& text) {
  for (std::size_t done = 0; done < text.size();) {
    const ssize_t count = ::write(file, text.data() + done, text.size() - done);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return false;
    done += static_cast<std::size_t>(count);
  }
  return true;
}

// What is in a regular file of the user's own that nobody else may write.
std::optional<std::string> read_own(int file) {
  struct stat status {};
  const bool is_own = ::fstat(file, &status) == 0 && S_ISREG(status.st_mode) &&
                      status.st_uid == ::geteuid() && (status.st_mode & (S_IWGRP | S_IWOTH)) == 0;
  if (!is_own || status.st_size > most_bytes) return {};
  std::string text(static_cast<std::size_t>(status.st_size) + 1, '\0');
  std::size_t size = 0;
  while (size < text.size()) {
    const ssize_t count = ::read(file, text.data() + size, text.size() - size);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return {};
    if (count == 0) break;
    size += static_cast<std::size_t>(count);
  }
  if (size == text.size()) return {};  // it grows
  text.resize(size);
  return text;
}

bool is_name_of_ours(const std::string& name) {
  const std::string pattern = "machine-0123456789abcdef.toml";
  return name.size() == pattern.size() && name.starts_with("machine-") && name.ends_with(".toml") &&
         name.find_first_not_of("0123456789abcdef", 8) == name.find(".toml");
}

// Removes the oldest files of kept machines beyond `most` of them.
void remove_oldest(int folder, std::size_t most) {
  const int descriptor = ::openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  DIR* const directory = descriptor < 0 ? nullptr : ::fdopendir(descriptor);
  if (directory == nullptr) {
    if (descriptor >= 0) ::close(descriptor);
    return;
  }
  std::vector<std::pair<std::int64_t, std::string>> files;  // when they were written
  while (const dirent* const entry = ::readdir(directory)) {
    struct stat status {};
    if (is_name_of_ours(entry->d_name) &&
        ::fstatat(folder, entry->d_name, &status, AT_SYMLINK_NOFOLLOW) == 0)
      files.emplace_back(status.st_mtim.tv_sec * 1'000'000'000 + status.st_mtim.tv_nsec,
                         entry->d_name);
  }
  ::closedir(directory);
  std::sort(files.begin(), files.end());
  for (std::size_t i = 0; i + most < files.size(); ++i)
    ::unlinkat(folder, files[i].second.c_str(), 0);
}

}  // namespace

std::optional<fs::path> user_cache_folder() {
  const char* const cache = std::getenv("XDG_CACHE_HOME");
  // A path that is not absolute does not count, says the specification.
  if (cache != nullptr && *cache == '/') return fs::path(cache) / "spillway";
  const char* const home = std::getenv("HOME");
  if (home != nullptr && *home == '/') return fs::path(home) / ".cache" / "spillway";
  return {};
}

MachineCache::MachineCache(fs::path folder, std::string identity)
    : folder_(std::move(folder)),
      file_(folder_ / fmt::format("machine-{}.toml", hash_of(identity))),
      identity_(std::move(identity)) {}

std::optional<Machine> MachineCache::load() const {
  const FileDescriptor folder = open_folder(folder_);
  if (!folder.valid()) return {};
  const FileDescriptor file(::openat(folder.get(), file_.filename().c_str(),
                                     O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  if (!file.valid()) return {};
  const std::optional<std::string> text = read_own(file.get());
  // The first line, the hash of all that follows it, what was measured, the machine.
  const std::string start = std::string(first_line) + "# ";
  if (!text || !text->starts_with(start)) return {};
  const std::size_t end = text->find('\n', start.size());
  if (end == std::string::npos) return {};
  const std::string rest = text->substr(end + 1);
  if (text->substr(start.size(), end - start.size()) != hash_of(rest)) return {};
  const std::string comments = commented(identity_);
  if (!rest.starts_with(comments) || rest.compare(comments.size(), 1, "#") == 0) return {};
  try {
    return parse_machine(rest, file_.string());
  } catch (const InputError&) {
    return {};
  }
}

std::string MachineCache::keep(const Machine& machine) const {
  const auto failed = [](const fs::path& path) {
    return path.string() + ": " + std::strerror(errno);
  };
  for (const fs::path& folder : {folder_.parent_path(), folder_})
    if (::mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) return failed(folder);
  const FileDescriptor folder = open_folder(folder_);
  if (!folder.valid()) return failed(folder_);
  const std::string rest = commented(identity_) + machine_to_toml(machine);
  const std::string text = first_line + ("# " + hash_of(rest)) + "\n" + rest;
  // Under a name that no other process has, then in the place of what was there before.
  const std::string name = file_.filename().string();
  const std::string next = fmt::format(".{}.{}", name, ::getpid());
  ::unlinkat(folder.get(), next.c_str(), 0);
  const FileDescriptor file(::openat(folder.get(), next.c_str(),
                                     O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (!file.valid()) return failed(folder_ / next);
  if (write_all(file.get(), text) && ::fsync(file.get()) == 0 &&
      ::renameat(folder.get(), next.c_str(), folder.get(), name.c_str()) == 0) {
    remove_oldest(folder.get(), most_files);
    return "";
  }
  const std::string why = failed(file_);
  ::unlinkat(folder.get(), next.c_str(), 0);
  return why;
}

}  // namespace spillway
