#include "exec/store/commit_record.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "base/directory.hpp"
#include "base/errors.hpp"
#include "base/rounding.hpp"
#include "exec/io/io_transfer.hpp"
#include "exec/store/byte_stream.hpp"
#include "exec/store/store_header.hpp"

namespace spillway {

namespace {

constexpr std::array<char, 16> magic = {'S', 'P', 'I', 'L', 'L', 'W', 'A', 'Y',
                                        ' ', 'C', 'O', 'M', 'M', 'I', 'T', '\0'};
constexpr std::size_t checksum_at = magic.size();
constexpr std::size_t length_at = checksum_at + sizeof(std::uint64_t);
constexpr std::size_t body_at = length_at + sizeof(std::uint64_t);
// All moments are fp32, or `format_with_moments`, where the record says how wide they are; or
// `format_with_sets`, where it says that and which directories are of which set of drives.
constexpr std::uint32_t format = 2, format_with_moments = 3, format_with_sets = 4;

void write_body(ByteWriter& out, const StoreIdentity& identity, const ChunkTable& chunks,
                std::int64_t version, std::int64_t epoch) {
  const MomentWidth moments =
      identity.parts.empty() ? MomentWidth::fp32 : identity.parts[0].moments;
  const bool with_sets = !identity.sets.empty(), narrow = moments != MomentWidth::fp32;
  out.put(with_sets ? format_with_sets : narrow ? format_with_moments : format);
  out.put(version);
  out.put(epoch);
  out.put(identity.stripe_bytes);
  out.put(identity.store_bytes);
  out.text(identity.training);
  if (narrow || with_sets) out.put(static_cast<std::uint8_t>(moment_bytes(moments)));
  if (with_sets) {
    out.put(std::uint64_t{identity.sets.size()});
    for (const FileSet& set : identity.sets) {
      out.put(set.from);
      out.put(std::uint64_t{set.files});
    }
  }
  out.put(std::uint64_t{identity.directories.size()});
  for (const std::string& directory : identity.directories) out.text(directory);
  out.put(std::uint64_t{identity.parts.size()});
  for (const StatePart& part : identity.parts) {
    SPILLWAY_ASSERT(part.moments == moments);
    out.put(part.unit);
    out.put(part.first_element);
    out.put(part.elements);
    out.put(static_cast<std::uint8_t>(part.tier));
    out.put(part.offset);
    out.put(part.address);
    if (version == 0) {
      out.put(std::uint64_t{0});
      continue;
    }
    const std::uint64_t begin = part.address[static_cast<std::size_t>(epoch & 1)];
    const std::size_t first = chunks.at(begin);
    std::size_t end = first;
    while (chunks.begin(end) < begin + part.bytes()) ++end;
    out.put(std::uint64_t{end - first});
    for (std::size_t chunk = first; chunk < end; ++chunk) {
      out.put(chunks.end(chunk));
      out.put(chunks.sum(chunk));
    }
  }
}

// Whether all directories are of one of the sets, and their addresses ascend.
bool are_sound(const std::vector<FileSet>& sets, const StoreIdentity& identity) {
  if (sets.empty()) return true;
  std::uint64_t files = 0, at = 0;
  for (const FileSet& set : sets) {
    if (set.files == 0 || set.files > most_directories || set.from < at ||
        set.from > identity.store_bytes || set.from % io_alignment != 0)
      return false;
    files += set.files;
    at = set.from;
  }
  return sets.size() <= most_drive_sets && sets.front().from == 0 &&
         files == identity.directories.size();
}

// Whether what a record says of places holds together: a checksum proves only that it is as it was
// written.
bool is_sound(const CommitRecord& record) {
  const StoreIdentity& identity = record.identity;
  constexpr std::int64_t most_steps = std::int64_t{1} << 53;
  constexpr std::uint64_t most_chunks = std::uint64_t{1} << 26;  // 64 TB in stripes of 1 MiB
  if (record.version < 0 || record.version > most_steps || record.epoch < 0 ||
      record.epoch > most_steps || identity.stripe_bytes == 0 ||
      identity.stripe_bytes % io_alignment != 0 || identity.directories.empty() ||
      identity.directories.size() > most_directories ||
      identity.store_bytes / identity.stripe_bytes > most_chunks ||
      !are_sound(identity.sets, identity)) {
    return false;
  }
  for (std::size_t i = 0; i < identity.parts.size(); ++i) {
    const StatePart& part = identity.parts[i];
    const std::uint64_t begin = part.address[static_cast<std::size_t>(record.copy())];
    if (part.elements > identity.store_bytes / state_bytes(part.moments) ||
        begin % io_alignment != 0 || begin > identity.store_bytes ||
        part.bytes() > identity.store_bytes - begin) {
      return false;
    }
    std::uint64_t at = begin;
    for (const CommitRecord::Chunk& chunk : record.chunks[i]) {
      if (chunk.end <= at || chunk.end > identity.store_bytes || chunk.end % io_alignment != 0)
        return false;
      at = chunk.end;
    }
    if (record.version > 0 &&
        (at < begin + part.bytes() || at - begin - part.bytes() >= io_alignment))
      return false;
  }
  return true;
}

// Of a slot, from its first `body_at` bytes: where its record ends; there, where it has none.
std::uint64_t bytes_in_use(std::span<const std::byte> start) {
  std::uint64_t length = 0;
  std::memcpy(&length, start.data() + length_at, sizeof(length));
  const bool is_record = std::memcmp(start.data(), magic.data(), magic.size()) == 0;
  return is_record && length < std::uint64_t{1} << 40 ? body_at + length : body_at;
}

std::uint64_t checksum_of(std::span<const std::byte> slot, std::size_t body_bytes) {
  return ChunkTable::checksum(slot.subspan(length_at, sizeof(std::uint64_t) + body_bytes));
}

}  // namespace

std::uint64_t record_slot_bytes(const StoreIdentity& identity, const ChunkTable& chunks) {
  std::size_t largest = 0;
  for (const std::int64_t epoch : {0, 1}) {
    ByteWriter count({});
    write_body(count, identity, chunks, 1, epoch);
    largest = std::max(largest, count.size());
  }
  return round_up(body_at + largest, io_alignment);
}

void encode_record(const StoreIdentity& identity, const ChunkTable& chunks, std::int64_t version,
                   std::int64_t epoch, std::span<std::byte> slot) {
  SPILLWAY_ASSERT(slot.size() > body_at);
  ByteWriter out(slot.subspan(body_at));
  write_body(out, identity, chunks, version, epoch);
  const std::uint64_t length = out.size();
  std::fill(slot.begin() + static_cast<std::ptrdiff_t>(body_at + length), slot.end(), std::byte{0});
  std::memcpy(slot.data(), magic.data(), magic.size());
  std::memcpy(slot.data() + length_at, &length, sizeof(length));
  const std::uint64_t sum = checksum_of(slot, out.size());
  std::memcpy(slot.data() + checksum_at, &sum, sizeof(sum));
}

std::optional<CommitRecord> decode_record(std::span<const std::byte> slot) {
  if (slot.size() < body_at || std::memcmp(slot.data(), magic.data(), magic.size()) != 0) return {};
  std::uint64_t sum = 0, length = 0;
  std::memcpy(&sum, slot.data() + checksum_at, sizeof(sum));
  std::memcpy(&length, slot.data() + length_at, sizeof(length));
  if (length > slot.size() - body_at || checksum_of(slot, length) != sum) return {};

  ByteReader in(slot.subspan(body_at, length));
  const auto found = in.get<std::uint32_t>();
  if (found < format || found > format_with_sets) {
    throw InputError(fmt::format("a commit record of format {}; this version reads {} to {}", found,
                                 format, format_with_sets),
                     "use the version of Spillway that wrote it");
  }
  CommitRecord record;
  record.version = in.get<std::int64_t>();
  record.epoch = in.get<std::int64_t>();
  StoreIdentity& identity = record.identity;
  identity.stripe_bytes = in.get<std::uint64_t>();
  identity.store_bytes = in.get<std::uint64_t>();
  identity.training = in.text();
  MomentWidth moments = MomentWidth::fp32;
  if (found >= format_with_moments) {
    const auto width = in.get<std::uint8_t>();
    if (width == moment_bytes(MomentWidth::bf16))
      moments = MomentWidth::bf16;
    else if (found == format_with_moments || width != moment_bytes(MomentWidth::fp32))
      return {};
  }
  if (found == format_with_sets) {
    identity.sets.resize(in.count(2 * sizeof(std::uint64_t)));
    for (FileSet& set : identity.sets) {
      set.from = in.get<std::uint64_t>();
      const auto files = in.get<std::uint64_t>();
      if (files > most_directories) return {};
      set.files = static_cast<std::uint32_t>(files);
    }
    if (identity.sets.empty()) return {};
  }
  identity.directories.resize(in.count(sizeof(std::uint64_t)));
  for (std::string& directory : identity.directories) directory = in.text();
  constexpr std::size_t least_part_bytes = 53;  // of what follows, without chunks
  identity.parts.resize(in.count(least_part_bytes));
  for (StatePart& part : identity.parts) {
    part.unit = in.get<std::int32_t>();
    part.first_element = in.get<std::uint64_t>();
    part.elements = in.get<std::uint64_t>();
    part.moments = moments;
    const auto tier = in.get<std::uint8_t>();
    if (tier >= tier_count) return {};
    part.tier = static_cast<Tier>(tier);
    part.offset = in.get<std::uint64_t>();
    part.address = in.get<std::array<std::uint64_t, 2>>();
    std::vector<CommitRecord::Chunk>& chunks = record.chunks.emplace_back();
    chunks.resize(in.count(2 * sizeof(std::uint64_t)));
    for (CommitRecord::Chunk& chunk : chunks) {
      chunk.end = in.get<std::uint64_t>();
      chunk.sum = in.get<std::uint64_t>();
    }
  }
  if (!in.good() || !is_sound(record)) return {};
  return record;
}

std::vector<CommitRecord> read_records(const std::filesystem::path& file) {
  const auto descriptor =
      Directory(file.parent_path()).open(file.filename().string(), O_RDONLY, FileUse::read);
  if (!descriptor) {
    throw InputError("there is no commit record " + file.string(),
                     "name the folder of a run that commits (any " + Setting{"durability"} +
                         " but off), or its first SSD directory");
  }
  struct stat status {};
  if (::fstat(descriptor->get(), &status) != 0) {
    throw MachineError::from_errno("cannot look at " + file.string(), errno);
  }
  constexpr std::uint64_t most_bytes = std::uint64_t{2} << 30;  // for 60 TB of state
  const auto size = static_cast<std::uint64_t>(status.st_size);
  if (size <= store_header_bytes || size > most_bytes) return {};
  // Checksums cannot be compressed: a large file that takes next to no space is not of ours.
  constexpr std::uint64_t large = std::uint64_t{64} << 20, least_share = 64, block_bytes = 512;
  const std::uint64_t allocated = static_cast<std::uint64_t>(status.st_blocks) * block_bytes;
  if (size > large && allocated < size / least_share) return {};
  const std::uint64_t slot_bytes = (size - store_header_bytes) / 2;
  std::vector<CommitRecord> records;
  std::vector<std::byte> slot;
  for (const std::uint64_t index : {std::uint64_t{0}, std::uint64_t{1}}) {
    // The beginning says how long the record is: a file may be large and hold nothing.
    slot.assign(std::min<std::uint64_t>(slot_bytes, body_at), std::byte{0});
    std::uint64_t done = 0;
    while (done < slot.size()) {
      const ssize_t got =
          ::pread(descriptor->get(), slot.data() + done, slot.size() - done,
                  static_cast<off_t>(store_header_bytes + index * slot_bytes + done));
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) throw MachineError::from_errno("cannot read " + file.string(), errno);
      if (got == 0) break;
      done += static_cast<std::uint64_t>(got);
      if (done == body_at) slot.resize(std::min(slot_bytes, bytes_in_use(slot)));
    }
    std::optional<CommitRecord> record = decode_record(std::span(slot).first(done));
    if (!record) continue;
    const bool is_newer = records.empty() || record->epoch > records.front().epoch;
    records.insert(is_newer ? records.begin() : records.end(), std::move(*record));
  }
  return records;
}

std::optional<CommitRecord> read_newest_record(const std::filesystem::path& file) {
  std::vector<CommitRecord> records = read_records(file);
  if (records.empty()) return std::nullopt;
  return std::move(records.front());
}

}  // namespace spillway
