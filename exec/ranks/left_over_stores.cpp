#include "exec/ranks/left_over_stores.hpp"

#include <algorithm>
#include <set>
#include <string>
#include <tuple>
#include <utility>

#include "exec/ranks/rank_places.hpp"
#include "exec/store/store_header.hpp"

namespace spillway {

namespace fs = std::filesystem;

namespace {

constexpr int no_rank = -1;

// The number of the rank that a folder is named after.
int rank_of(const fs::path& folder) {
  const std::string name = folder.filename().string(), prefix = "rank-";
  if (!name.starts_with(prefix)) return no_rank;
  const std::string digits = name.substr(prefix.size());
  constexpr std::size_t most_digits = 6;
  if (digits.empty() || digits.size() > most_digits ||
      digits.find_first_not_of("0123456789") != std::string::npos)
    return no_rank;
  return std::stoi(digits);
}

fs::path real(const fs::path& directory) {
  std::error_code error;
  const fs::path found = fs::weakly_canonical(fs::absolute(directory), error);
  const fs::path named = error ? directory : found;
  return named.has_filename() ? named : named.parent_path();
}

struct StoreFileFound {
  int rank;
  fs::path folder, path;
  StoreHeader header;

  // Of a store the record first, the first stripe last.
  auto order() const {
    return std::tuple(rank, header.generation, header.kind != StoreHeader::Kind::commits,
                      -static_cast<std::int64_t>(header.index));
  }
};

std::vector<StoreFileFound> files_of_runs(const std::vector<fs::path>& directories,
                                          const std::vector<RunId>& runs) {
  std::set<fs::path> folders;
  std::error_code none;
  for (const fs::path& directory : directories) {
    const fs::path named = real(directory),
                   above = rank_of(named) == no_rank ? named : named.parent_path();
    folders.insert({named, above});
    for (const auto& entry : fs::directory_iterator(above, none))
      if (rank_of(entry.path()) != no_rank && entry.is_directory(none))
        folders.insert(entry.path());
  }
  std::vector<StoreFileFound> found;
  for (const fs::path& folder : folders) {
    for (const auto& entry : fs::directory_iterator(folder, none)) {
      const std::string name = entry.path().filename().string();
      if (!name.starts_with("spillway-commit") && !name.starts_with("spillway-store-")) continue;
      if (!entry.is_regular_file(none) || entry.is_symlink(none)) continue;
      const std::optional<StoreHeader> header = read_header(entry.path());
      if (header && std::find(runs.begin(), runs.end(), header->run.id) != runs.end())
        found.push_back({rank_of(folder), folder, entry.path(), *header});
    }
  }
  std::sort(found.begin(), found.end(),
            [](const auto& a, const auto& b) { return a.order() < b.order(); });
  return found;
}

}  // namespace

std::vector<fs::path> remove_left_over_stores(const std::vector<fs::path>& directories,
                                              const std::vector<RunId>& runs,
                                              const std::optional<StoresInUse>& in_use) {
  const std::vector<StoreFileFound> found = files_of_runs(directories, runs);
  std::set<fs::path> used;
  std::set<std::pair<int, std::uint64_t>> later;  // by rank and generation
  if (in_use) {
    for (const StoreLocation& store : stores_of_ranks(in_use->first, in_use->ranks))
      for (const fs::path& directory : store.directories) used.insert(real(directory));
    for (const StoreFileFound& file : found) {
      if (file.header.kind != StoreHeader::Kind::commits ||
          file.header.generation <= in_use->first.generation)
        continue;
      const std::optional<CommitRecord> record = read_newest_record(file.path);
      if (record && record->version > in_use->step)
        later.insert({file.rank, file.header.generation});
    }
  }
  std::vector<fs::path> removed;
  for (const StoreFileFound& file : found) {
    if (in_use && file.header.generation == in_use->first.generation && used.contains(file.folder))
      continue;
    if (later.contains({file.rank, file.header.generation})) continue;
    if (remove_store_file(file.path, file.header)) removed.push_back(file.path);
  }
  return removed;
}

}  // namespace spillway
