#include "exec/store/store_header.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "base/directory.hpp"
#include "base/errors.hpp"
#include "exec/store/byte_stream.hpp"
#include "exec/store/chunk_table.hpp"

namespace spillway {

namespace {

constexpr std::array<char, 16> magic = {'S', 'P', 'I', 'L', 'L', 'W', 'A',  'Y',
                                        ' ', 'S', 'T', 'O', 'R', 'E', '\0', '\0'};
constexpr std::size_t slot_bytes = store_header_bytes / 2;
constexpr std::size_t checksum_at = magic.size();
constexpr std::size_t length_at = checksum_at + sizeof(std::uint64_t);
constexpr std::size_t body_at = length_at + sizeof(std::uint64_t);
constexpr std::uint32_t format = 1;
// A path of more bytes than this is cut in the header: it is only shown, or not found again.
constexpr std::size_t longest_text = 1024;

std::string cut(const std::string& text) { return text.substr(0, longest_text); }

// A buffer that unbuffered I/O accepts.
struct Slots {
  alignas(4096) std::array<std::byte, store_header_bytes> bytes{};
  std::span<std::byte> slot(std::size_t index) {
    return std::span(bytes).subspan(index * slot_bytes, slot_bytes);
  }
};

}  // namespace

void encode_header(const StoreHeader& header, std::span<std::byte> slot) {
  SPILLWAY_ASSERT(slot.size() == slot_bytes);
  std::fill(slot.begin(), slot.end(), std::byte{0});
  ByteWriter out(slot.subspan(body_at));
  out.put(format);
  out.put(header.sequence);
  out.text(header.run.id);
  out.text(cut(header.run.home.host));
  out.text(cut(header.run.home.path));
  out.put(header.run.home.file_system);
  out.put(header.run.home.inode);
  out.put(header.generation);
  out.put(static_cast<std::uint32_t>(header.kind));
  out.put(header.index);
  out.put(header.count);
  out.put(static_cast<std::uint8_t>(header.durable));
  out.text(cut(header.first_directory));
  out.put(header.inode);
  const std::uint64_t length = out.size();
  std::memcpy(slot.data(), magic.data(), magic.size());
  std::memcpy(slot.data() + length_at, &length, sizeof length);
  const std::uint64_t sum = ChunkTable::checksum(slot.subspan(length_at, sizeof length + length));
  std::memcpy(slot.data() + checksum_at, &sum, sizeof sum);
}

std::optional<StoreHeader> decode_header(std::span<const std::byte> slot) {
  if (slot.size() < slot_bytes || std::memcmp(slot.data(), magic.data(), magic.size()) != 0)
    return {};
  std::uint64_t sum = 0, length = 0;
  std::memcpy(&sum, slot.data() + checksum_at, sizeof sum);
  std::memcpy(&length, slot.data() + length_at, sizeof length);
  if (length > slot.size() - body_at ||
      ChunkTable::checksum(slot.subspan(length_at, sizeof length + length)) != sum) {
    return {};
  }
  ByteReader in(slot.subspan(body_at, length));
  if (in.get<std::uint32_t>() != format) return {};
  StoreHeader header;
  header.sequence = in.get<std::uint64_t>();
  header.run.id = in.text();
  header.run.home.host = in.text();
  header.run.home.path = in.text();
  header.run.home.file_system = in.get<std::uint64_t>();
  header.run.home.inode = in.get<std::uint64_t>();
  header.generation = in.get<std::uint64_t>();
  const auto kind = in.get<std::uint32_t>();
  header.index = in.get<std::uint32_t>();
  header.count = in.get<std::uint32_t>();
  header.durable = in.get<std::uint8_t>() != 0;
  header.first_directory = in.text();
  header.inode = in.get<std::uint64_t>();
  constexpr std::uint64_t most = std::uint64_t{1} << 62;  // so that counting on does not wrap
  if (!in.good() || kind > 1 || !is_run_id(header.run.id) || header.sequence > most ||
      header.generation > most || header.count == 0 || header.count > most_directories) {
    return {};
  }
  header.kind = static_cast<StoreHeader::Kind>(kind);
  return header;
}

std::optional<StoreHeader> read_header(int descriptor, const std::filesystem::path& path) {
  Slots slots;
  std::size_t done = 0;
  while (done < slots.bytes.size()) {
    const ssize_t got = ::pread(descriptor, slots.bytes.data() + done, slots.bytes.size() - done,
                                static_cast<off_t>(done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw MachineError::from_errno("cannot read " + path.string(), errno);
    if (got == 0) break;
    done += static_cast<std::size_t>(got);
  }
  const std::optional<StoreHeader> first = decode_header(slots.slot(0)),
                                   second = decode_header(slots.slot(1));
  if (!first || (second && second->sequence > first->sequence)) return second;
  return first;
}

void write_header(int descriptor, const std::filesystem::path& path, StoreHeader header) {
  struct stat status {};
  if (::fstat(descriptor, &status) != 0) {
    throw MachineError::from_errno("cannot look at " + path.string(), errno);
  }
  const std::optional<StoreHeader> before = read_header(descriptor, path);
  header.sequence = before ? before->sequence + 1 : 0;
  header.inode = status.st_ino;
  Slots slots;
  const std::size_t index = header.sequence % 2;
  const std::span<std::byte> slot = slots.slot(index);
  encode_header(header, slot);
  std::size_t done = 0;
  while (done < slot.size()) {
    const ssize_t put = ::pwrite(descriptor, slot.data() + done, slot.size() - done,
                                 static_cast<off_t>(index * slot_bytes + done));
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) throw MachineError::from_errno("cannot write " + path.string(), errno);
    done += static_cast<std::size_t>(put);
  }
  if (::fdatasync(descriptor) != 0) {
    throw MachineError::from_errno("cannot sync " + path.string(), errno);
  }
}

std::optional<StoreHeader> read_header(const std::filesystem::path& path) {
  const auto file =
      Directory(path.parent_path()).open(path.filename().string(), O_RDONLY, FileUse::read);
  if (!file) return {};
  return read_header(file->get(), path);
}

}  // namespace spillway
