#include "exec/store/store_claim.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "base/directory.hpp"
#include "base/errors.hpp"
#include "exec/store/store_check.hpp"
#include "exec/store/store_file.hpp"

namespace spillway {

namespace fs = std::filesystem;

namespace {

bool is_there(const fs::path& file) {
  std::error_code ignored;
  return fs::exists(fs::symlink_status(file, ignored));
}

bool among(const std::vector<RunId>& ids, const RunId& id) {
  return std::find(ids.begin(), ids.end(), id) != ids.end();
}

// The header of a file of one of these runs; nothing where there is no such file.
std::optional<StoreHeader> header_of_run(const fs::path& file, const std::vector<RunId>& ids) {
  if (!is_there(file)) return std::nullopt;
  std::optional<StoreHeader> header = read_header(file);
  if (!header || !among(ids, header->run.id)) return std::nullopt;
  return header;
}

// The directories of a generation's stripes among `places`, in stripe order; nothing unless all are
// there, and a record with the first.
std::optional<StoreLocation> gather(const std::vector<fs::path>& places, std::uint64_t generation,
                                    const std::vector<RunId>& ids) {
  StoreLocation location{{}, generation};
  std::uint32_t count = 1;
  for (std::uint32_t i = 0; i < count; ++i) {
    const auto has_stripe = [&](const fs::path& place) {
      const auto header = header_of_run(store_file(place, i, generation), ids);
      if (!header || header->generation != generation || header->index != i) return false;
      if (i == 0) {
        const auto record = header_of_run(record_file(place, generation), ids);
        if (!record || record->generation != generation) return false;
        count = header->count;
      }
      return true;
    };
    const auto found = std::find_if(places.begin(), places.end(), has_stripe);
    if (found == places.end()) return {};
    location.directories.push_back(*found);
  }
  return location;
}

// The generation of the run's store that lies in one of the places under a name of that turn.
std::optional<std::uint64_t> generation_there(const std::vector<fs::path>& places,
                                              std::uint64_t turn, const std::vector<RunId>& ids) {
  for (const fs::path& place : places) {
    if (const auto header = header_of_run(record_file(place, turn), ids)) return header->generation;
  }
  return {};
}

}  // namespace

StoreLocation find_store(const StoreLocation& written_down, const std::vector<RunId>& ids,
                         const std::vector<fs::path>& given, bool take_over) {
  std::vector<fs::path> places = written_down.directories;
  for (const fs::path& directory : given) {
    std::error_code error;
    const fs::path canonical = fs::canonical(directory, error);
    places.push_back(error ? directory : canonical);
  }
  if (auto found = gather(places, written_down.generation, ids)) return *found;
  // A folder that was put back from a backup knows of a store before the one in its directories.
  for (const std::uint64_t turn : {std::uint64_t{0}, std::uint64_t{1}}) {
    const auto generation = generation_there(places, turn, ids);
    if (!generation || *generation <= written_down.generation) continue;
    const auto found = gather(places, *generation, ids);
    std::int64_t step = 0;
    try {
      if (!found) continue;
      step = find_resume_point(*found).record.version;
    } catch (const InputError&) {
      continue;  // it was being made
    }
    if (take_over || gather(written_down.directories, *generation, ids)) return *found;
    // Elsewhere it may be what a move that was broken off has left, and older than the state.
    throw InputError(
        fmt::format("the store in {} is at step {}, and the run's folder does not know of it: its "
                    "own was in {}",
                    found->directories[0].string(), step, written_down.directories[0].string()),
        "is its drive mounted? If what was there is lost, add " + Setting{"take_over"} +
            " to go on from this one");
  }
  for (const std::uint64_t turn : {std::uint64_t{0}, std::uint64_t{1}}) {
    const auto generation = generation_there(places, turn, ids);
    if (!generation || *generation >= written_down.generation) continue;
    throw InputError(
        fmt::format("the store in {} is an earlier one of this run (number {}) than its folder "
                    "knows of (number {})",
                    written_down.directories[0].string(), *generation, written_down.generation),
        "was it put back from a backup? Put the run's folder of the same backup back as well");
  }
  for (std::size_t i = 0; i < written_down.directories.size(); ++i) {
    const fs::path file = store_file(written_down.directories[i], i, written_down.generation);
    if (header_of_run(file, ids)) continue;
    const std::optional<StoreHeader> other = is_there(file) ? read_header(file) : std::nullopt;
    throw InputError(
        other ? fmt::format("{} belongs to another training, of {}", file.string(),
                            to_text(other->run.home))
              : fmt::format("{} is missing, or no file of a store", file.string()),
        "is its drive mounted? Where it is mounted under another name, give all directories of the "
        "run anew: " +
            Setting{"ssd", "DIR[,DIR]"});
  }
  throw InputError(
      fmt::format("{} is missing, or no file of a store",
                  record_file(written_down.directories[0], written_down.generation).string()),
      "without the commit record there is nothing to go on from: restore it from a backup");
}

namespace {

// Whether the file of a store may belong to another folder than `home`.
bool is_claimed(const fs::path& file, const RunHome& home, const Surroundings& here) {
  const std::optional<StoreHeader> header = read_header(file);
  if (!header) return false;
  switch (relation(header->run.home, home, header->run.id)) {
    case Relation::same:
    case Relation::put_back:
      return false;
    case Relation::copied:
    case Relation::moved:  // or a copy, and the original was renamed
      return true;
    case Relation::unknown:
      // Nobody on another computer can reach a drive of this one.
      return here.is_shared(Directory(file.parent_path()).descriptor());
  }
  SPILLWAY_ASSERT(false);
}

}  // namespace

std::optional<RunHome> claimed_by(const StoreLocation& location, const RunHome& home,
                                  const Surroundings& here) {
  // Every file says for itself whose it is: one may have been put there by somebody else.
  for (const fs::path& file : files_of(location)) {
    if (is_claimed(file, home, here)) return read_header(file)->run.home;
  }
  return {};
}

void give_store(const StoreLocation& location, const std::vector<RunId>& from,
                const RunIdentity& to) {
  std::vector<StoreFile> held;
  const auto hold = [&](const fs::path& path) {
    if (!is_there(path)) return;
    StoreFile file(Directory(path.parent_path()), path.filename().string(),
                   StoreFile::Open::existing);
    const std::optional<StoreHeader> header = file.header();
    if (header && (among(from, header->run.id) || header->run.id == to.id))
      held.push_back(std::move(file));
  };
  for (const std::uint64_t turn : {std::uint64_t{0}, std::uint64_t{1}}) {
    for (std::size_t i = 0; i < location.directories.size(); ++i)
      hold(store_file(location.directories[i], i, turn));
    hold(record_file(location.directories[0], turn));
  }
  for (StoreFile& file : held) {
    StoreHeader header = *file.header();
    header.run = to;
    header.first_directory = location.directories[0].string();
    file.set_header(header);
  }
}

void require_whole(const ResumePoint& point,
                   const std::function<void(std::uint64_t, std::uint64_t)>& progress,
                   const std::string& what, const RingFactory& make_ring) {
  if (point.record.version == 0) return;
  const std::vector<BadChunk> bad = check_store(
      point,
      [&](std::uint64_t done, std::uint64_t total) {
        if (progress) progress(done, total);
      },
      make_ring);
  if (bad.empty()) return;
  throw InputError(fmt::format("{} is not whole: {} piece{} of its state do{} not match the commit "
                               "record, the first in {}",
                               what, bad.size(), bad.size() == 1 ? "" : "s",
                               bad.size() == 1 ? "es" : "", bad.front().file.string()),
                   "was it copied while the run was at work? Copy it again when that has ended");
}

}  // namespace spillway
