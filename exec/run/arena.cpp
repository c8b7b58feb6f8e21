#include "exec/run/arena.hpp"

#include <sys/mman.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/errors.hpp"
#include "base/rounding.hpp"
#include "base/units.hpp"
#include "exec/run/available_memory.hpp"

namespace spillway {

namespace {

constexpr std::uint64_t page_bytes = 4096;
constexpr std::uint64_t huge_page_bytes = std::uint64_t{2} << 20;

constexpr std::array<std::byte, page_bytes> poison_page = [] {
  std::array<std::byte, page_bytes> page{};
  for (std::uint64_t i = 0; i < page_bytes; ++i) page[i] = Arena::poison(i);
  return page;
}();

Message remedy() {
  return "lower " + Setting{"host.memory"} + " and " + Setting{"gpu.memory"} +
         " (the latter only costs host memory on the CPU device), end other programs, or raise the "
         "limits (`ulimit -v`, the container's memory limit)";
}

std::byte* map_aligned(std::uint64_t bytes, const std::string& what) {
  // Map more than needed, then give back both ends around the aligned part.
  const std::uint64_t mapped = bytes + huge_page_bytes;
  void* start = ::mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (start == MAP_FAILED) throw MachineError::from_errno(what, errno, remedy());
  const auto address = reinterpret_cast<std::uintptr_t>(start);
  const std::uintptr_t aligned = round_up(address, huge_page_bytes);
  const std::uint64_t before = aligned - address;
  const std::uint64_t after = mapped - before - bytes;
  if (before > 0) ::munmap(start, before);
  if (after > 0) ::munmap(reinterpret_cast<void*>(aligned + bytes), after);
  return reinterpret_cast<std::byte*>(aligned);
}

void fill(std::byte* from, std::uint64_t bytes) {
  for (std::uint64_t done = 0; done < bytes; done += page_bytes) {
    std::memcpy(from + done, poison_page.data(), page_bytes);
  }
}

// First touch costs a page fault and a clear: threads share it where there is much of it.
constexpr unsigned most_fill_threads = 16;

}  // namespace

Arena::Arena(std::uint64_t bytes, const std::string& purpose, const MemoryProgress& progress) {
  if (bytes == 0) return;
  const std::string what =
      "cannot take " + format_bytes(static_cast<double>(bytes)) + " of " + purpose;
  // Without this check the kernel would promise the memory and end the program while it is touched.
  const std::uint64_t available = available_memory();
  if (bytes > available) {
    throw MachineError(
        what + ": " + format_bytes(static_cast<double>(available)) + " are available", remedy());
  }
  bytes = round_up(bytes, page_bytes);
  data_ = map_aligned(bytes, what);
  bytes_ = bytes;
  ::madvise(data_, bytes_, MADV_HUGEPAGE);  // a wish: refused where huge pages are switched off
  ::madvise(data_, bytes_, MADV_DONTDUMP);  // a core dump of the model states helps nobody
  in_pieces(
      span(), most_fill_threads,
      [](std::span<std::byte> piece) { fill(piece.data(), piece.size()); }, progress);
}

Arena::Arena(Arena&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}

Arena& Arena::operator=(Arena&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

Arena::~Arena() {
  if (data_ != nullptr) ::munmap(data_, bytes_);
}

std::uint64_t Arena::highest_written() const {
  for (std::uint64_t end = bytes_; end > 0; end -= page_bytes) {
    const std::byte* page = data_ + end - page_bytes;
    if (std::memcmp(page, poison_page.data(), page_bytes) == 0) continue;
    std::uint64_t i = page_bytes;
    while (page[i - 1] == poison_page[i - 1]) --i;
    return end - page_bytes + i;
  }
  return 0;
}

}  // namespace spillway
