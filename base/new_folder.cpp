#include "base/new_folder.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <random>
#include <string_view>
#include <system_error>
#include <vector>

#include "base/errors.hpp"

namespace spillway {

namespace fs = std::filesystem;

namespace {

constexpr std::string_view mark = ".partial-";
constexpr std::size_t random_digits = 16;

fs::path parent_of(const fs::path& path) {
  return path.has_parent_path() ? path.parent_path() : fs::path(".");
}

std::string without_number(std::string name) {
  while (!name.empty() && name.back() >= '0' && name.back() <= '9') name.pop_back();
  return name;
}

// NAME of .NAME.partial-0123456789abcdef; empty where it is none.
std::string name_in(const std::string& temporary) {
  const std::size_t tail = mark.size() + random_digits;
  if (temporary.size() <= tail + 1 || temporary.front() != '.') return "";
  const std::size_t end = temporary.size() - tail;
  const bool random = std::all_of(temporary.end() - random_digits, temporary.end(), [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f');
  });
  return random && temporary.compare(end, mark.size(), mark) == 0 ? temporary.substr(1, end - 1)
                                                                  : "";
}

}  // namespace

NewFolder::NewFolder(const fs::path& path) : path_(path) {
  std::error_code error;
  if (fs::exists(fs::symlink_status(path_, error)))
    throw InputError(path_.string() + " is there already", "name a new folder");
  const fs::path parent = parent_of(path_);
  if (!fs::is_directory(parent, error))
    throw InputError(
        fmt::format("cannot create {}: there is no folder {}", path_.string(), parent.string()),
        "create that folder, or name another one");
  remove_unfinished_folders(Directory(parent), path_.filename().string());
  std::random_device random;
  while (!directory_) {
    const fs::path name = parent / fmt::format(".{}{}{:08x}{:08x}", path_.filename().string(), mark,
                                               random(), random());
    if (::mkdir(name.c_str(), 0777) != 0) {
      if (errno == EEXIST) continue;
      throw MachineError::from_errno("cannot create " + path_.string(), errno);
    }
    Directory made(Directory(parent), name.filename().string());
    // Another program that cleans up may have been faster: then the folder is gone.
    if (::flock(made.descriptor(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) continue;
    if (!Directory(parent).leads_to(name.filename().string(), made.descriptor())) continue;
    temporary_ = name;
    directory_.emplace(std::move(made));
  }
}

NewFolder::~NewFolder() {
  std::error_code ignored;
  if (!temporary_.empty()) fs::remove_all(temporary_, ignored);
}

void NewFolder::commit() {
  directory_->sync();
  // A folder of that name, made meanwhile, is replaced only if it is empty.
  if (std::rename(temporary_.c_str(), path_.c_str()) != 0)
    throw MachineError::from_errno(
        fmt::format("cannot rename {} to {}", temporary_.string(), path_.string()), errno);
  temporary_.clear();
  Directory(parent_of(path_)).sync();
}

void remove_unfinished_folders(const Directory& parent, const std::string& name) noexcept {
  try {
    std::vector<std::string> found;
    for (const fs::directory_entry& entry : fs::directory_iterator(parent.path())) {
      const std::string temporary = entry.path().filename().string();
      const std::string of = name_in(temporary);
      if (!of.empty() && without_number(of) == without_number(name)) found.push_back(temporary);
    }
    for (const std::string& temporary : found) {
      const auto status = parent.status(temporary);
      if (!status || !S_ISDIR(status->st_mode) || status->st_uid != ::geteuid()) continue;
      const Directory left(parent, temporary);
      if (::flock(left.descriptor(), LOCK_EX | LOCK_NB) != 0) continue;  // being written
      std::error_code ignored;
      fs::remove_all(parent.path_of(temporary), ignored);
    }
  } catch (const std::exception&) {
    // What could not be looked at stays; nobody waits for the room.
  }
}

}  // namespace spillway
