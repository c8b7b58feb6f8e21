#include "exec/run/available_memory.hpp"

#include <algorithm>
#include <array>
#include <fstream>
#include <limits>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

namespace spillway {

namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t unknown = std::numeric_limits<std::uint64_t>::max();

// The number after `key` in a file of "key value" lines; nothing when absent.
std::optional<std::uint64_t> value_after(const fs::path& file, const std::string& key) {
  std::ifstream in(file);
  std::string word;
  while (in >> word) {
    std::uint64_t value = 0;
    if (word == key && in >> value) return value;
    in.clear();
  }
  return {};
}

// The number that a file consists of; nothing when it is missing or says "max".
std::optional<std::uint64_t> number_in(const fs::path& file) {
  std::ifstream in(file);
  std::uint64_t value = 0;
  if (in >> value) return value;
  return {};
}

// The names under which one version of control groups keeps its numbers.
struct Version {
  std::array<const char*, 2> limits;  // "" where there is no second one
  const char* used;
  std::array<const char*, 2> page_cache;  // keys of memory.stat, of a group and all below it
};
constexpr Version version_2{
    {"memory.max", "memory.high"}, "memory.current", {"inactive_file", "active_file"}};
constexpr Version version_1{{"memory.limit_in_bytes", ""},
                            "memory.usage_in_bytes",
                            {"total_inactive_file", "total_active_file"}};

// Where the kernel shows a tree of control groups: the group `group` lies at `folder`.
struct Mount {
  const Version* version;
  std::string group;
  fs::path folder;
};

// A path of mountinfo, where a space is written \040.
std::string unescaped(const std::string& text) {
  std::string result;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto digit = [&](std::size_t at) { return at < text.size() ? text[at] - '0' : -1; };
    const auto octal = [&](std::size_t at) { return digit(at) >= 0 && digit(at) < 8; };
    if (text[i] == '\\' && octal(i + 1) && octal(i + 2) && octal(i + 3)) {
      result += static_cast<char>(digit(i + 1) * 64 + digit(i + 2) * 8 + digit(i + 3));
      i += 3;
    } else {
      result += text[i];
    }
  }
  return result;
}

bool lists(const std::string& comma_separated, std::string_view wanted) {
  std::istringstream items(comma_separated);
  for (std::string item; std::getline(items, item, ',');) {
    if (item == wanted) return true;
  }
  return false;
}

// "id parent device root folder options ... - type source options", one mount a line.
std::vector<Mount> memory_mounts(const fs::path& root) {
  std::vector<Mount> mounts;
  std::ifstream file(root / "proc/self/mountinfo");
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string id, parent, device, group, folder, word, type, source, options;
    words >> id >> parent >> device >> group >> folder;
    while (words >> word && word != "-") {
    }
    words >> type >> source >> options;
    const bool second = type == "cgroup2";
    if (!second && !(type == "cgroup" && lists(options, "memory"))) continue;
    mounts.push_back({second ? &version_2 : &version_1, unescaped(group),
                      root / fs::path(unescaped(folder)).relative_path()});
  }
  if (mounts.empty()) {
    mounts = {{&version_2, "/", root / "sys/fs/cgroup"},
              {&version_1, "/", root / "sys/fs/cgroup/memory"}};
  }
  return mounts;
}

// What one group leaves of its limits.
std::uint64_t left_in(const fs::path& folder, const Version& version) {
  std::uint64_t limit = unknown;
  for (const char* name : version.limits) {
    if (*name != '\0') limit = std::min(limit, number_in(folder / name).value_or(unknown));
  }
  if (limit == unknown) return unknown;
  const std::uint64_t in_use = number_in(folder / version.used).value_or(0);
  std::uint64_t page_cache = 0;
  for (const char* key : version.page_cache)
    page_cache += value_after(folder / "memory.stat", key).value_or(0);
  const std::uint64_t used = in_use > page_cache ? in_use - page_cache : 0;
  return limit > used ? limit - used : 0;
}

// What the group `group` and those above it leave, as far up as they can be seen.
std::uint64_t left_in_tree(const Mount& mount, const std::string& group) {
  const fs::path base(mount.group);
  fs::path below = fs::path(group).lexically_relative(base);
  // A container may be told of a group that lies outside of what is mounted in it: then the top of
  // what it sees is its own group.
  if (below.empty() || *below.begin() == "..") below = ".";
  std::uint64_t left = unknown;
  fs::path folder = (mount.folder / below).lexically_normal();
  if (!folder.has_filename()) folder = folder.parent_path();
  for (bool own = true;; folder = folder.parent_path(), own = false) {
    // In version 1 a group above counts only where it was told to.
    const bool counts = own || mount.version == &version_2 ||
                        number_in(folder / "memory.use_hierarchy").value_or(1) != 0;
    if (counts) left = std::min(left, left_in(folder, *mount.version));
    if (folder == mount.folder || !folder.has_relative_path()) return left;
  }
}

std::uint64_t left_by_control_groups(const fs::path& root) {
  const std::vector<Mount> mounts = memory_mounts(root);
  std::uint64_t left = unknown;
  std::ifstream membership(root / "proc/self/cgroup");
  for (std::string line; std::getline(membership, line);) {
    // "hierarchy:controllers:/group"; version 2 has hierarchy 0 and names no controllers.
    const std::size_t first = line.find(':');
    const std::size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const Version* version = controllers.empty()            ? &version_2
                             : lists(controllers, "memory") ? &version_1
                                                            : nullptr;
    for (const Mount& mount : mounts) {
      if (mount.version == version)
        left = std::min(left, left_in_tree(mount, line.substr(second + 1)));
    }
  }
  return left;
}

}  // namespace

std::uint64_t available_memory(const fs::path& root) {
  const auto kibibytes = value_after(root / "proc/meminfo", "MemAvailable:");
  return std::min(kibibytes ? *kibibytes * 1024 : unknown, left_by_control_groups(root));
}

}  // namespace spillway
