#include "exec/store/store_check.hpp"

#include <algorithm>

#include "base/errors.hpp"

namespace spillway {

namespace fs = std::filesystem;

std::vector<StoreLocation> find_stores(const fs::path& directory) {
  std::vector<StoreLocation> found;
  for (const std::uint64_t turn : {std::uint64_t{0}, std::uint64_t{1}}) {
    const fs::path file = record_file(directory, turn);
    std::error_code ignored;
    if (!fs::exists(fs::symlink_status(file, ignored))) continue;
    const std::optional<StoreHeader> header = read_header(file);
    if (!header) continue;
    StoreLocation location{{directory}, header->generation};
    if (const auto record = read_newest_record(file)) {
      const auto& names = record->identity.directories;
      location.directories.assign(names.begin(), names.end());
      location.directories[0] = directory;  // it may have been mounted elsewhere
    }
    found.push_back(std::move(location));
  }
  return found;
}

std::vector<BadChunk> check_store(const ResumePoint& point,
                                  const std::function<void(std::uint64_t, std::uint64_t)>& progress,
                                  const RingFactory& make_ring) {
  const CommitRecord& record = point.record;
  SsdStoreOptions with;
  with.run = point.run;
  with.make_ring = make_ring;
  const OpenStore open =
      open_store(record, point.location.directories, point.location.generation, with);
  SsdStore::Channel channel(*open.store);
  std::uint64_t total = 0, done = 0;
  for (const auto& chunks : record.chunks) {
    if (!chunks.empty())
      total +=
          record.identity.parts[static_cast<std::size_t>(&chunks - record.chunks.data())].bytes();
  }
  std::uint64_t largest = 0;
  for (std::size_t i = 0; i < open.chunks->count(); ++i)
    largest = std::max(largest, open.chunks->end(i) - open.chunks->begin(i));
  const Arena staging(largest, "staging to check the store");
  std::vector<BadChunk> bad;
  for (std::size_t i = 0; i < record.chunks.size(); ++i) {
    const StatePart& part = record.identity.parts[i];
    std::uint64_t begin = part.address[static_cast<std::size_t>(record.copy())];
    for (const CommitRecord::Chunk& chunk : record.chunks[i]) {
      try {
        channel.read(begin, staging.data(), chunk.end - begin);
      } catch (const MachineError& error) {
        const Striping::Place place = open.store->striping().locate(begin);
        bad.push_back({part.unit,
                       store_file(point.location.directories[place.file], place.file,
                                  point.location.generation),
                       place.offset, chunk.end - begin, error.what()});
      }
      done += chunk.end - begin;
      begin = chunk.end;
      progress(done, total);
    }
  }
  return bad;
}

}  // namespace spillway
