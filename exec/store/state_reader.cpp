#include "exec/store/state_reader.hpp"

#include <algorithm>
#include <cstring>

#include "base/errors.hpp"
#include "base/rounding.hpp"
#include "exec/cpu/bf16.hpp"

namespace spillway {

namespace {

constexpr std::uint64_t piece_bytes = std::uint64_t{4} << 20;  // at least a stripe

std::uint64_t record_bytes_of(const std::filesystem::path& file) {
  std::error_code error;
  const std::uintmax_t bytes = std::filesystem::file_size(file, error);
  return error || bytes < store_header_bytes ? 0 : bytes - store_header_bytes;
}

// Before memory is taken for a table of as many chunks as the record speaks of.
void require_stripes(const StoreIdentity& identity,
                     const std::vector<std::filesystem::path>& directories,
                     std::uint64_t generation) {
  const Striping striping{identity.stripe_bytes, static_cast<std::uint32_t>(directories.size()), 0,
                          identity.sets};
  const std::uint64_t bytes = round_up(identity.store_bytes, io_alignment);
  for (std::uint32_t i = 0; i < striping.files; ++i) {
    const std::uint64_t wanted = store_header_bytes + striping.file_bytes(i, bytes);
    const std::string name = stripe_name(i, generation);
    const Directory directory(directories[i]);
    const auto found = directory.status(name);
    if (!found) {
      throw InputError(
          "there is no SSD store to go on with: " + directory.path_of(name).string() +
              " is missing",
          "check that its drive is mounted; the SSD directories of the run are needed, "
          "all and in the same order");
    }
    if (static_cast<std::uint64_t>(found->st_size) == wanted) continue;
    throw MachineError(
        directory.path_of(name).string() + " has " + std::to_string(found->st_size) +
            " bytes, and the commit record speaks of " + std::to_string(wanted),
        "the file is damaged, or its copy was not finished: restore it from a backup");
  }
}

}  // namespace

StateReader::StateReader(const SsdStore& store, const CommitRecord& record,
                         const ChunkTable& chunks)
    : record_(record),
      chunks_(chunks),
      channel_(store),
      piece_(std::max(piece_bytes, record.identity.stripe_bytes), "staging for committed state") {}

// Bytes of a part from `from` on, as many as lie together in memory.
const std::byte* StateReader::load(std::size_t part, std::uint64_t from, std::uint64_t& bytes) {
  const StatePart& where = record_.identity.parts[part];
  const std::uint64_t begin = where.address[static_cast<std::size_t>(record_.copy())];
  const std::uint64_t at = begin + from;
  if (at < piece_begin_ || at >= piece_end_) {
    // The chunk that holds it, and the ones that follow.
    const auto& ends = record_.chunks[part];
    const auto chunk = std::upper_bound(
        ends.begin(), ends.end(), at,
        [](std::uint64_t address, const CommitRecord::Chunk& c) { return address < c.end; });
    SPILLWAY_ASSERT(chunk != ends.end(), "a part is covered by its chunks");
    piece_begin_ = chunk == ends.begin() ? begin : std::prev(chunk)->end;
    piece_end_ = piece_begin_;
    for (auto next = chunk; next != ends.end() && next->end - piece_begin_ <= piece_.size();
         ++next) {
      piece_end_ = next->end;
    }
    const std::uint64_t end = piece_end_;
    piece_end_ = piece_begin_;  // nothing is there while the read may fail
    channel_.read(piece_begin_, piece_.data(), end - piece_begin_);
    piece_end_ = end;
  }
  bytes = std::min(piece_end_, begin + where.bytes()) - at;
  return piece_.data() + (at - piece_begin_);
}

void StateReader::read(std::int64_t unit, int moment, std::uint64_t first, std::uint64_t count,
                       float* to) {
  const auto& parts = record_.identity.parts;
  auto part = std::upper_bound(
      parts.begin(), parts.end(), std::pair(unit, first), [](const auto& key, const StatePart& p) {
        return key < std::pair<std::int64_t, std::uint64_t>(p.unit, p.first_element);
      });
  SPILLWAY_ASSERT(part != parts.begin(), "every element is in a part");
  --part;
  while (count > 0) {
    SPILLWAY_ASSERT(part != parts.end() && part->unit == unit && part->first_element <= first &&
                        first < part->first_element + part->elements,
                    "every element is in a part");
    const std::uint64_t inside = first - part->first_element;
    std::uint64_t bytes = 0;
    const std::uint64_t width = part->width(moment);
    const std::byte* const from = load(static_cast<std::size_t>(part - parts.begin()),
                                       part->begin(moment) + inside * width, bytes);
    const std::uint64_t take = std::min({count, bytes / width, part->elements - inside});
    if (width == sizeof(float)) {
      std::memcpy(to, from, take * sizeof(float));
    } else {
      const auto* const narrow = reinterpret_cast<const bf16*>(from);
      std::transform(narrow, narrow + take, to, [](bf16 value) { return to_float(value); });
    }
    to += take;
    first += take;
    count -= take;
    if (first == part->first_element + part->elements) ++part;
  }
}

bool adopt_checksums(const CommitRecord& record, ChunkTable& chunks) {
  const auto for_each = [&](auto&& take) {
    for (std::size_t i = 0; i < record.chunks.size(); ++i) {
      const StatePart& part = record.identity.parts[i];
      std::size_t chunk = chunks.find(part.address[static_cast<std::size_t>(record.copy())]);
      for (const CommitRecord::Chunk& one : record.chunks[i]) {
        if (chunk >= chunks.count() || chunks.end(chunk) != one.end) return false;
        take(chunk++, one.sum);
      }
    }
    return true;
  };
  if (!for_each([](std::size_t, std::uint64_t) {})) return false;
  return for_each([&](std::size_t chunk, std::uint64_t sum) { chunks.set(chunk, sum); });
}

OpenStore open_store(const CommitRecord& record,
                     const std::vector<std::filesystem::path>& directories,
                     std::uint64_t generation, const SsdStoreOptions& options) {
  const StoreIdentity& identity = record.identity;
  if (directories.size() != identity.directories.size()) {
    throw InputError("the store is striped over " + std::to_string(identity.directories.size()) +
                         " directories, not " + std::to_string(directories.size()),
                     "name all of them, in the order of the run that wrote it");
  }
  require_stripes(identity, directories, generation);
  std::vector<std::uint64_t> boundaries;
  for (std::size_t i = 0; i < record.chunks.size(); ++i) {
    boundaries.push_back(identity.parts[i].address[static_cast<std::size_t>(record.copy())]);
    for (const CommitRecord::Chunk& chunk : record.chunks[i]) boundaries.push_back(chunk.end);
  }
  OpenStore open;
  open.chunks = std::make_unique<ChunkTable>(std::move(boundaries), identity.stripe_bytes,
                                             identity.store_bytes);
  if (!adopt_checksums(record, *open.chunks)) {
    throw InputError(record_file(directories[0], generation).string() +
                         " cuts the state into chunks as no run does",
                     "the file is damaged: restore it from a backup");
  }
  SsdStoreOptions with = options;
  with.stripe_bytes = identity.stripe_bytes;
  with.sets = identity.sets;
  with.reuse = with.keep = true;
  with.generation = generation;
  with.record_bytes = record_bytes_of(record_file(directories[0], generation));
  with.chunks = open.chunks.get();
  open.store = std::make_unique<SsdStore>(directories, identity.store_bytes, with);
  return open;
}

}  // namespace spillway
