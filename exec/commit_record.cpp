#include "exec/commit_record.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstring>

#include "base/errors.hpp"
#include "exec/file_descriptor.hpp"
#include "exec/io_transfer.hpp"

namespace spillway {

namespace {

static_assert(std::endian::native == std::endian::little, "records are little-endian");

constexpr std::array<char, 16> magic = {'S', 'P', 'I', 'L', 'L', 'W', 'A', 'Y',
                                        ' ', 'C', 'O', 'M', 'M', 'I', 'T', '\0'};
constexpr std::size_t checksum_at = magic.size();
constexpr std::size_t length_at = checksum_at + sizeof(std::uint64_t);
constexpr std::size_t body_at = length_at + sizeof(std::uint64_t);
constexpr std::uint32_t format = 1;

// Appends to a slot, or only counts where there is none.
class Writer {
 public:
  explicit Writer(std::span<std::byte> slot) : slot_(slot) {}
  template <typename T>
  void put(const T& value) {
    bytes(&value, sizeof(value));
  }
  void text(const std::string& value) {
    put(std::uint64_t{value.size()});
    bytes(value.data(), value.size());
  }
  std::size_t size() const { return size_; }

 private:
  void bytes(const void* from, std::size_t count) {
    if (!slot_.empty()) {
      SPILLWAY_ASSERT(size_ + count <= slot_.size(), "the record outgrew its slot");
      std::memcpy(slot_.data() + size_, from, count);
    }
    size_ += count;
  }
  std::span<std::byte> slot_;
  std::size_t size_ = 0;
};

// Reads a body whose checksum matched: what does not add up is our bug, or a later format.
class Reader {
 public:
  explicit Reader(std::span<const std::byte> body) : body_(body) {}
  template <typename T>
  T get() {
    T value;
    SPILLWAY_ASSERT(at_ + sizeof(value) <= body_.size(), "a record that ends early");
    std::memcpy(&value, body_.data() + at_, sizeof(value));
    at_ += sizeof(value);
    return value;
  }
  std::string text() {
    const auto size = static_cast<std::size_t>(get<std::uint64_t>());
    SPILLWAY_ASSERT(size <= body_.size() - at_, "a record that ends early");
    std::string value(reinterpret_cast<const char*>(body_.data()) + at_, size);
    at_ += size;
    return value;
  }

 private:
  std::span<const std::byte> body_;
  std::size_t at_ = 0;
};

void write_body(Writer& out, const StoreIdentity& identity, const ChunkTable& chunks,
                std::int64_t version, std::int64_t epoch) {
  out.put(format);
  out.put(version);
  out.put(epoch);
  out.put(identity.stripe_bytes);
  out.put(identity.store_bytes);
  out.text(identity.training);
  out.put(std::uint64_t{identity.directories.size()});
  for (const std::string& directory : identity.directories) out.text(directory);
  out.put(std::uint64_t{identity.parts.size()});
  for (const StatePart& part : identity.parts) {
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

std::uint64_t checksum_of(std::span<const std::byte> slot, std::size_t body_bytes) {
  return ChunkTable::checksum(slot.subspan(length_at, sizeof(std::uint64_t) + body_bytes));
}

}  // namespace

std::uint64_t record_slot_bytes(const StoreIdentity& identity, const ChunkTable& chunks) {
  std::size_t largest = 0;
  for (const std::int64_t epoch : {0, 1}) {
    Writer count({});
    write_body(count, identity, chunks, 1, epoch);
    largest = std::max(largest, count.size());
  }
  return (body_at + largest + io_alignment - 1) / io_alignment * io_alignment;
}

void encode_record(const StoreIdentity& identity, const ChunkTable& chunks, std::int64_t version,
                   std::int64_t epoch, std::span<std::byte> slot) {
  SPILLWAY_ASSERT(slot.size() > body_at);
  Writer out(slot.subspan(body_at));
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

  Reader in(slot.subspan(body_at, length));
  if (const auto found = in.get<std::uint32_t>(); found != format) {
    throw InputError(
        fmt::format("a commit record of format {}; this version reads {}", found, format),
        "use the version of Spillway that wrote it");
  }
  CommitRecord record;
  record.version = in.get<std::int64_t>();
  record.epoch = in.get<std::int64_t>();
  StoreIdentity& identity = record.identity;
  identity.stripe_bytes = in.get<std::uint64_t>();
  identity.store_bytes = in.get<std::uint64_t>();
  identity.training = in.text();
  identity.directories.resize(in.get<std::uint64_t>());
  for (std::string& directory : identity.directories) directory = in.text();
  identity.parts.resize(in.get<std::uint64_t>());
  for (StatePart& part : identity.parts) {
    part.unit = in.get<std::int32_t>();
    part.first_element = in.get<std::uint64_t>();
    part.elements = in.get<std::uint64_t>();
    part.tier = static_cast<Tier>(in.get<std::uint8_t>());
    part.offset = in.get<std::uint64_t>();
    part.address = in.get<std::array<std::uint64_t, 2>>();
    std::vector<CommitRecord::Chunk>& chunks = record.chunks.emplace_back();
    chunks.resize(in.get<std::uint64_t>());
    for (CommitRecord::Chunk& chunk : chunks) {
      chunk.end = in.get<std::uint64_t>();
      chunk.sum = in.get<std::uint64_t>();
    }
  }
  return record;
}

std::optional<CommitRecord> read_newest_record(const std::filesystem::path& file) {
  const FileDescriptor descriptor(::open(file.c_str(), O_RDONLY | O_CLOEXEC));
  if (!descriptor.valid()) {
    if (errno == ENOENT) {
      throw InputError(
          "there is no commit record " + file.string(),
          "name the folder of a run that commits (any --durability but off), or its first "
          "SSD directory");
    }
    throw MachineError::from_errno("cannot open " + file.string(), errno);
  }
  struct stat status {};
  if (::fstat(descriptor.get(), &status) != 0) {
    throw MachineError::from_errno("cannot look at " + file.string(), errno);
  }
  std::vector<std::byte> bytes(static_cast<std::size_t>(status.st_size));
  for (std::size_t done = 0; done < bytes.size();) {
    const ssize_t got = ::pread(descriptor.get(), bytes.data() + done, bytes.size() - done,
                                static_cast<off_t>(done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw MachineError::from_errno("cannot read " + file.string(), errno);
    if (got == 0) break;
    done += static_cast<std::size_t>(got);
  }
  const std::span<const std::byte> all(bytes);
  std::optional<CommitRecord> newest;
  for (const std::size_t slot : {std::size_t{0}, bytes.size() / 2}) {
    std::optional<CommitRecord> record = decode_record(all.subspan(slot, bytes.size() / 2));
    if (record && (!newest || record->epoch > newest->epoch)) newest = std::move(record);
  }
  return newest;
}

}  // namespace spillway
