#include "exec/data/read_ahead.hpp"

#include <fmt/format.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <cerrno>

#include "base/direct_io.hpp"
#include "base/errors.hpp"
#include "base/rounding.hpp"
#include "exec/io/io_transfer.hpp"

namespace spillway {

namespace {

// What follows a block is read with it, so that an element that begins in it is whole.
constexpr std::uint64_t beyond = io_alignment;
constexpr std::uint64_t request_bytes = std::uint64_t{1} << 20;
constexpr unsigned requests_in_flight = 16;

std::uint64_t round_down(std::uint64_t value) { return value / io_alignment * io_alignment; }

// The last bytes of a file, fewer than unbuffered I/O counts in.
void read_tail(const ReadAhead::File& file, std::uint64_t offset, std::byte* to) {
  while (true) {
    const ssize_t count = ::pread(file.descriptor, to, io_alignment, static_cast<off_t>(offset));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) throw MachineError::from_errno("cannot read " + file.name, errno);
    if (static_cast<std::uint64_t>(count) >= file.bytes - offset) return;
    throw MachineError(file.name + " was cut short while it was read", "copy it again");
  }
}

}  // namespace

ReadAhead::ReadAhead(std::vector<File> files, std::vector<Extent> extents, RingFactory make_ring)
    : files_(std::move(files)), extents_(std::move(extents)), make_ring_(std::move(make_ring)) {
  std::size_t blocks = 0;
  for (const Extent& extent : extents_) {
    SPILLWAY_ASSERT(extent.begin < extent.end && extent.end <= files_[extent.file].bytes);
    first_block_.push_back(blocks);
    const std::uint64_t bytes =
        round_down(extent.end + io_alignment - 1) - round_down(extent.begin);
    blocks += (bytes + block_bytes - 1) / block_bytes;
    slot_bytes_ = std::max(slot_bytes_, std::min(bytes, block_bytes) + beyond);
  }
  first_block_.push_back(blocks);
  used_.resize(blocks);
  for (std::size_t block = 0; block < blocks; ++block) bytes_ += block_at(block).bytes;
}

void ReadAhead::tell(std::function<void(std::uint64_t, std::uint64_t)> progress) {
  progress_ = std::move(progress);
}

void ReadAhead::note_use(std::size_t block) {
  if (used_[block]) return;
  used_[block] = true;
  bytes_used_ += block_at(block).bytes;
  if (progress_) progress_(bytes_used_, bytes_);
}

ReadAhead::Block ReadAhead::block_at(std::size_t index) const {
  const auto next = std::upper_bound(first_block_.begin(), first_block_.end() - 1, index);
  const auto which = static_cast<std::size_t>(next - first_block_.begin()) - 1;
  const Extent& extent = extents_[which];
  const std::uint64_t offset =
      round_down(extent.begin) + (index - first_block_[which]) * block_bytes;
  const std::uint64_t end = std::min({offset + block_bytes + beyond, files_[extent.file].bytes,
                                      round_down(extent.end + io_alignment - 1)});
  return {extent.file, offset, end - offset};
}

std::byte* ReadAhead::memory_of(std::size_t block) const {
  return memory_.data() + block % blocks_ahead * slot_bytes_;
}

std::span<const std::byte> ReadAhead::bytes(std::size_t extent, std::uint64_t from) {
  const Extent& of = extents_[extent];
  SPILLWAY_ASSERT(from < of.end - of.begin);
  const std::uint64_t inside = of.begin + from - round_down(of.begin);
  const std::size_t block = first_block_[extent] + inside / block_bytes;
  if (!thread_.joinable()) {
    memory_ = Arena(blocks_ahead * slot_bytes_, "memory to read weights into");
    // Where the file system cannot, it stays as it is.
    for (const File& file : files_) static_cast<void>(try_direct_io(file.descriptor));
    hashes_.resize(first_block_.back());
    wanted_ = block;
    thread_ = std::jthread([this](const std::stop_token& stop) { run(stop); });
  }
  std::unique_lock lock(mutex_);
  if (wanted_ != block) {
    wanted_ = block;
    changed_.notify_all();
  }
  const Slot& slot = slots_[block % blocks_ahead];
  changed_.wait(lock, [&] { return slot.holds && slot.block == block; });
  lock.unlock();  // the slot is not changed before another block is wanted
  if (slot.failure) std::rethrow_exception(slot.failure);
  note_use(block);
  const Block whole = block_at(block);
  const std::uint64_t skip = of.begin + from - whole.offset;
  return {memory_of(block) + skip, std::min(whole.bytes, of.end - whole.offset) - skip};
}

std::uint64_t ReadAhead::hash() {
  std::vector<std::uint64_t> hashes;
  for (std::size_t extent = 0; extent < extents_.size(); ++extent) {
    const std::uint64_t skip = extents_[extent].begin - round_down(extents_[extent].begin);
    for (std::size_t block = first_block_[extent]; block < first_block_[extent + 1]; ++block) {
      const auto known = [&]() -> std::optional<std::uint64_t> {
        const std::lock_guard lock(mutex_);
        return hashes_.empty() ? std::nullopt : hashes_[block];
      };
      if (!known()) {
        const std::uint64_t begin = (block - first_block_[extent]) * block_bytes;
        bytes(extent, begin < skip ? 0 : begin - skip);
      }
      note_use(block);
      hashes.push_back(known().value());
    }
  }
  return XXH3_64bits(hashes.data(), hashes.size() * sizeof(std::uint64_t));
}

// The first block, from the one in use on, that is not there.
bool ReadAhead::find_next(std::size_t& block) const {
  const std::size_t end = std::min(wanted_ + blocks_ahead, first_block_.back());
  for (block = wanted_; block < end; ++block) {
    const Slot& slot = slots_[block % blocks_ahead];
    if (!slot.holds || slot.block != block) return true;
  }
  return false;
}

void ReadAhead::run(const std::stop_token& stop) {
  std::unique_ptr<IoRing> ring;
  std::unique_ptr<IoTransfer> transfer;
  const auto read = [&](std::size_t index) {
    if (!transfer) {
      std::vector<int> descriptors;
      std::vector<std::string> names;
      for (const File& file : files_) {
        descriptors.push_back(file.descriptor);
        names.push_back(file.name);
      }
      ring = make_ring_(descriptors, requests_in_flight);
      transfer = std::make_unique<IoTransfer>(
          *ring, requests_in_flight,
          Striping{request_bytes, static_cast<std::uint32_t>(files_.size())}, std::move(names));
    }
    const Block block = block_at(index);
    std::byte* const memory = memory_of(index);
    const std::uint64_t aligned = round_down(block.bytes);
    if (aligned > 0)
      transfer->transfer_in_file(IoKind::read, static_cast<std::uint32_t>(block.file), block.offset,
                                 memory, aligned);
    if (aligned < block.bytes)
      read_tail(files_[block.file], block.offset + aligned, memory + aligned);
  };
  std::unique_lock lock(mutex_);
  std::size_t block = 0;
  while (changed_.wait(lock, stop, [&] { return find_next(block); })) {
    Slot& slot = slots_[block % blocks_ahead];
    slot = {block, false, nullptr};
    lock.unlock();
    std::exception_ptr failure;
    std::optional<std::uint64_t> hash = hashes_[block];  // only this thread writes them
    try {
      read(block);
      if (!hash) hash = XXH3_64bits(memory_of(block), block_at(block).bytes);
    } catch (...) {
      failure = std::current_exception();
    }
    lock.lock();
    slot = {block, true, failure};
    hashes_[block] = hash;
    changed_.notify_all();
  }
}

}  // namespace spillway
