#include "exec/io/io_transfer.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>
#include <utility>

#include "base/errors.hpp"
#include "base/rounding.hpp"

namespace spillway {

namespace {

// About one second of pauses: a kernel that is out of memory for longer will not recover by
// waiting.
constexpr unsigned most_stalls = 1000;

const char* name_of(IoKind kind) {
  switch (kind) {
    case IoKind::read:
      return "read";
    case IoKind::write:
      return "write";
    case IoKind::sync:
      return "sync";
  }
  bug("known kind", __FILE__, __LINE__);
}

std::string hint_for(int error_number) {
  switch (error_number) {
    case EINVAL:
    case EOPNOTSUPP:
      return "the file system may not support unbuffered I/O on 4096-byte blocks: name a directory "
             "on another one";
    case EFAULT:
      return "the memory cannot be used for I/O by this kernel";
    case EAGAIN:
      return "the kernel stayed short of resources for a second: end other programs";
    default:
      return "";  // MachineError::from_errno knows the others
  }
}

}  // namespace

Striping::Place Striping::locate(std::uint64_t offset) const {
  FileSet set{0, files};
  std::uint32_t first = 0;
  std::uint64_t end = std::numeric_limits<std::uint64_t>::max();
  for (std::size_t s = 0; s < sets.size() && sets[s].from <= offset; ++s) {
    if (s > 0) first += set.files;
    set = sets[s];
    end = s + 1 < sets.size() ? sets[s + 1].from : std::numeric_limits<std::uint64_t>::max();
  }
  // Stripes of all sets are cut at the same addresses, so that chunks are.
  const std::uint64_t stripe = offset / stripe_bytes - set.from / stripe_bytes;
  const std::uint64_t inside = offset % stripe_bytes;
  return {first + static_cast<std::uint32_t>(stripe % set.files),
          begin + stripe / set.files * stripe_bytes + inside,
          std::min(stripe_bytes - inside, end - offset)};
}

std::uint64_t Striping::file_bytes(std::uint32_t file, std::uint64_t total) const {
  std::uint32_t of_set = files;
  for (std::size_t s = 0; s < sets.size(); ++s) {
    of_set = sets[s].files;
    const std::uint64_t end = s + 1 < sets.size() ? sets[s + 1].from : total;
    if (file < of_set) {
      total = end - sets[s].from / stripe_bytes * stripe_bytes;
      break;
    }
    file -= of_set;
  }
  const std::uint64_t whole_stripes = total / stripe_bytes;
  const std::uint64_t rest = total % stripe_bytes;
  const std::uint64_t rounds = whole_stripes / of_set;
  const std::uint64_t extra = whole_stripes % of_set;  // files before this one hold a stripe more
  return rounds * stripe_bytes + (file < extra ? stripe_bytes : file == extra ? rest : 0);
}

IoTransfer::IoTransfer(IoRing& ring, unsigned queue_depth, Striping striping,
                       std::vector<std::string> names, ChunkTable* chunks)
    : ring_(ring),
      striping_(striping),
      names_(std::move(names)),
      chunks_(chunks),
      slots_(std::make_unique<Slot[]>(queue_depth)),
      completions_(queue_depth) {
  SPILLWAY_ASSERT(queue_depth > 0 && striping.files <= names_.size());
  free_slots_.reserve(queue_depth);
  for (std::uint32_t slot = queue_depth; slot > 0; --slot) free_slots_.push_back(slot - 1);
}

void IoTransfer::transfer(IoKind kind, std::uint64_t offset, std::byte* memory,
                          std::uint64_t bytes) {
  SPILLWAY_ASSERT(offset % io_alignment == 0 && bytes % io_alignment == 0 &&
                      reinterpret_cast<std::uintptr_t>(memory) % io_alignment == 0,
                  fmt::format("offset {}, {} bytes, memory {}", offset, bytes,
                              static_cast<const void*>(memory)));
  file_ = -1;
  kind_ = kind;
  offset_ = offset;
  memory_ = memory;
  left_ = bytes;
  checked_ = chunks_ != nullptr && bytes > 0;
  if (checked_) chunk_ = chunks_->at(offset);
  run();
}

void IoTransfer::transfer_in_file(IoKind kind, std::uint32_t file, std::uint64_t offset,
                                  std::byte* memory, std::uint64_t bytes) {
  SPILLWAY_ASSERT(file < names_.size() && offset % io_alignment == 0 && bytes % io_alignment == 0 &&
                  reinterpret_cast<std::uintptr_t>(memory) % io_alignment == 0);
  file_ = file;
  kind_ = kind;
  offset_ = offset;
  memory_ = memory;
  left_ = bytes;
  checked_ = false;
  run();
}

void IoTransfer::gather(std::span<const Piece> pieces, std::span<std::byte> memory) {
  SPILLWAY_ASSERT(reinterpret_cast<std::uintptr_t>(memory.data()) % io_alignment == 0 &&
                  memory.size() >= completions_.size() * piece_memory);
  kind_ = IoKind::read;
  checked_ = false;
  pieces_ = pieces;
  piece_done_ = 0;
  piece_memory_ = memory.data();
  left_ = 0;
  for (const Piece& piece : pieces) left_ += piece.bytes;
  run();
}

void IoTransfer::sync(std::uint32_t first, std::uint32_t count) {
  SPILLWAY_ASSERT(first + count <= names_.size());
  kind_ = IoKind::sync;
  offset_ = first;
  left_ = count;
  checked_ = false;
  run();
}

void IoTransfer::run() {
  if (broken_) {
    throw MachineError("this I/O channel failed before and cannot be used again",
                       "start the run again");
  }
  failure_.happened = false;
  while (true) {
    while (!failure_.happened && !free_slots_.empty() && left_ > 0) {
      const std::uint32_t index = free_slots_.back();
      Slot& slot = slots_[index];
      slot.request.tag = index;
      slot.wanted = 0;
      pieces_.empty() ? next_request(slot) : next_of_piece(slot, index);
      free_slots_.pop_back();
      ++in_flight_;
      queue(index);
      // The drive works on this one while the checksum of the next is taken.
      if (checked_ && kind_ == IoKind::write) ring_.submit_now();
    }
    if (in_flight_ == 0) break;
    submit();
    worst_stall_ = 0;
    const std::size_t count = ring_.reap(completions_);
    for (std::size_t i = 0; i < count; ++i) complete(completions_[i]);
    if (worst_stall_ > 0) ring_.pause(worst_stall_);
  }
  pieces_ = {};
  if (failure_.happened) throw_failure();
}

// The blocks of the next bytes of a piece, of which something is left.
void IoTransfer::next_of_piece(Slot& slot, std::uint32_t index) {
  while (piece_done_ == pieces_.front().bytes) {
    pieces_ = pieces_.subspan(1);
    piece_done_ = 0;
  }
  const Piece& piece = pieces_.front();
  SPILLWAY_ASSERT(piece.file < names_.size());
  const std::uint64_t begin = piece.offset + piece_done_, skipped = begin % io_alignment;
  const std::uint64_t most = piece_memory - io_alignment;
  const std::uint64_t wanted = std::min(piece.bytes - piece_done_, most);
  slot.stalls = 0;
  slot.checked = slot.again = false;
  slot.to = piece.to + piece_done_;
  slot.wanted = static_cast<std::uint32_t>(wanted);
  slot.skipped = static_cast<std::uint32_t>(skipped);
  IoRequest& request = slot.request;
  request.kind = IoKind::read;
  request.file = piece.file;
  request.file_offset = begin - skipped;
  request.memory = piece_memory_ + index * piece_memory;
  request.bytes = static_cast<std::uint32_t>(round_up(skipped + wanted, io_alignment));
  slot.whole = request;
  piece_done_ += wanted;
  left_ -= wanted;
}

// Whether all of a piece's bytes are there, `moved` more than before: the last block of a file ends
// with it.
bool IoTransfer::has_piece(const Slot& slot, std::uint32_t moved) const {
  const auto before = static_cast<std::uint64_t>(slot.request.memory - slot.whole.memory);
  return before + moved >= std::uint64_t{slot.skipped} + slot.wanted;
}

// Cuts the next request off the run, of which something is left.
void IoTransfer::next_request(Slot& slot) {
  IoRequest& request = slot.request;
  request.kind = kind_;
  slot.stalls = 0;
  slot.again = false;
  slot.checked = checked_;
  if (kind_ == IoKind::sync) {
    request.file = static_cast<std::uint32_t>(offset_++);
    request.bytes = 0;
    --left_;
    return;
  }
  const Striping::Place place = file_ < 0 ? striping_.locate(offset_)
                                          : Striping::Place{static_cast<std::uint32_t>(file_),
                                                            offset_, std::uint64_t{1} << 20};
  request.file = place.file;
  request.file_offset = place.offset;
  request.memory = memory_;
  std::uint64_t bytes = std::min(left_, place.contiguous);
  if (checked_) {
    bytes = chunks_->end(chunk_) - offset_;
    SPILLWAY_ASSERT(
        bytes <= left_ && bytes <= place.contiguous,
        fmt::format("transfers are whole chunks: {} of {} at {}, {} left, {} in the stripe", bytes,
                    kind_ == IoKind::read ? "read" : "write", offset_, left_, place.contiguous));
    slot.chunk = chunk_++;
    if (kind_ == IoKind::write) chunks_->set(slot.chunk, ChunkTable::checksum({memory_, bytes}));
  }
  request.bytes = static_cast<std::uint32_t>(bytes);
  slot.whole = request;
  offset_ += request.bytes;
  memory_ += request.bytes;
  left_ -= request.bytes;
}

// Whether what was read is what was written. If not, the chunk is asked for once more.
bool IoTransfer::matches(Slot& slot) {
  const std::uint64_t expected = chunks_->sum(slot.chunk);
  if (expected == 0 || failure_.happened) return true;
  if (ChunkTable::checksum({slot.whole.memory, slot.whole.bytes}) == expected) {
    if (slot.again) read_again_.fetch_add(1, std::memory_order_relaxed);
    return true;
  }
  if (slot.again) {
    fail(slot.whole, wrong_checksum);
    return true;
  }
  slot.again = true;
  slot.request = slot.whole;
  return false;
}

void IoTransfer::queue(std::uint32_t slot) {
  slots_[slot].handover.store(1, std::memory_order_release);
  ring_.queue(slots_[slot].request);
}

void IoTransfer::submit() {
  const int result = ring_.submit_and_wait();
  if (result >= 0 || result == -EINTR) {
    submit_failures_ = 0;
    return;  // what was not accepted stays queued in the ring for the next round
  }
  // EAGAIN: no memory for a request now. EBUSY: completions must be reaped first, which the caller
  // does.
  const bool may_pass = result == -EAGAIN || result == -EBUSY;
  if (may_pass && ++submit_failures_ <= most_stalls) return ring_.pause(submit_failures_);
  broken_ = true;
  throw MachineError::from_errno("the kernel does not accept requests for " + names_.front(),
                                 -result, hint_for(-result));
}

void IoTransfer::complete(const IoCompletion& completion) {
  Slot& slot = slots_[completion.tag];
  SPILLWAY_ASSERT(slot.handover.load(std::memory_order_acquire) == 1, "completed twice");
  slot.handover.store(0, std::memory_order_relaxed);
  IoRequest& request = slot.request;
  if (completion.result == -EINTR || completion.result == -EAGAIN) {
    return retry_or_fail(slot, completion.tag, -completion.result);
  }
  if (completion.result < 0) {
    fail(request, -completion.result);
    return finish(completion.tag);
  }
  const auto moved = static_cast<std::uint32_t>(completion.result);
  SPILLWAY_ASSERT(moved <= request.bytes, "more was transferred than asked for");
  if (slot.wanted > 0 && has_piece(slot, moved)) {
    std::memcpy(slot.to, slot.whole.memory + slot.skipped, slot.wanted);
    return finish(completion.tag);
  }
  if (moved == request.bytes) {
    if (slot.checked && request.kind == IoKind::read && !matches(slot)) {
      return queue(completion.tag);
    }
    return finish(completion.tag);
  }
  if (moved == 0 && request.kind == IoKind::read) {
    fail(request, file_ended);
    return finish(completion.tag);
  }
  // Go on from a block boundary, so that unbuffered I/O stays possible; the cut block is moved
  // again.
  const std::uint32_t progress = moved - moved % std::uint32_t{io_alignment};
  if (progress > 0) slot.stalls = 0;
  request.memory += progress;
  request.file_offset += progress;
  request.bytes -= progress;
  retry_or_fail(slot, completion.tag, EAGAIN);
}

void IoTransfer::retry_or_fail(Slot& slot, std::uint32_t index, int error_number) {
  if (failure_.happened) return finish(index);
  if (++slot.stalls > most_stalls) {
    fail(slot.request, error_number);
    return finish(index);
  }
  // The first retry is at once: it is the normal way to go on after a short transfer.
  if (slot.stalls > 1) worst_stall_ = std::max(worst_stall_, slot.stalls - 1);
  queue(index);
}

void IoTransfer::finish(std::uint32_t slot) {
  free_slots_.push_back(slot);
  --in_flight_;
}

void IoTransfer::fail(const IoRequest& request, int error_number) {
  if (failure_.happened) return;  // the first error tells most
  failure_ = {true, request, error_number};
}

void IoTransfer::throw_failure() const {
  const IoRequest& request = failure_.request;
  const std::string& file = names_[request.file];
  if (failure_.error_number == wrong_checksum) {
    throw ChecksumError(
        fmt::format("{}: the {} bytes at offset {} are not what was written there", file,
                    request.bytes, request.file_offset),
        "the drive, its cable or the memory corrupts data: check it (smartctl -a, memtest); "
        "`spillway store inspect` says whether the last commit is whole, to go on from with " +
            Setting{"resume"});
  }
  if (failure_.error_number == file_ended) {
    throw MachineError(fmt::format("{} ends before offset {}, where {} bytes should be read", file,
                                   request.file_offset, request.bytes),
                       "the file was cut short while in use: leave the file alone during a run");
  }
  const std::string what =
      request.kind == IoKind::sync
          ? fmt::format("sync of {} failed", file)
          : fmt::format("{} of {} bytes at offset {} of {} failed", name_of(request.kind),
                        request.bytes, request.file_offset, file);
  throw MachineError::from_errno(what, failure_.error_number, hint_for(failure_.error_number));
}

}  // namespace spillway
