#include "exec/io/io_uring.hpp"

#include <fmt/format.h>
#include <liburing.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <thread>

#include "base/file_descriptor.hpp"

namespace spillway {

namespace {

// The kernel takes at most 1 GiB per registered buffer (io_uring_register(2)).
constexpr std::uint64_t largest_registration = std::uint64_t{1} << 30;
constexpr unsigned registration_slots = 4096;  // 4 TiB of memory

struct Registration {
  const std::byte* begin;
  const std::byte* end;
  int index;
};

// Sets up a ring with the newest flags that the kernel knows. Returns 0 or -errno.
int set_up_ring(unsigned depth, io_uring& ring) {
  constexpr unsigned candidates[] = {IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN,
                                     IORING_SETUP_COOP_TASKRUN, 0};
  int result = -EINVAL;
  for (const unsigned flags : candidates) {
    result = io_uring_queue_init(depth, &ring, flags);
    if (result != -EINVAL) break;  // EINVAL: a kernel that does not know these flags
  }
  return result;
}

class IoUring final : public IoRing {
 public:
  IoUring(std::span<const int> files, unsigned depth) : files_(files.begin(), files.end()) {
    if (const int failed = set_up_ring(depth, ring_); failed < 0)
      throw io_uring_setup_error(-failed);
    const int result =
        io_uring_register_files(&ring_, files_.data(), static_cast<unsigned>(files_.size()));
    files_registered_ = result == 0;
    if (result < 0) warn("files could not be registered with io_uring", -result);
  }
  ~IoUring() override {
    // Closing a ring lets go of its files later, in the background; the store's locks should go
    // now.
    if (files_registered_) io_uring_unregister_files(&ring_);
    io_uring_queue_exit(&ring_);
  }
  IoUring(const IoUring&) = delete;
  IoUring& operator=(const IoUring&) = delete;

  void queue(const IoRequest& request) override;
  int submit_and_wait() override { return io_uring_submit_and_wait(&ring_, 1); }
  void submit_now() override { io_uring_submit(&ring_); }
  std::size_t reap(std::span<IoCompletion> completions) override;
  void register_memory(std::span<std::byte> memory) override;
  const std::vector<std::string>& warnings() const override { return warnings_; }

 private:
  int registration_of(const IoRequest& request) const;
  void warn(const std::string& what, int error_number) {
    warnings_.push_back(what + " (" + std::strerror(error_number) +
                        "); transfers cost more CPU time");
  }

  io_uring ring_{};
  std::vector<int> files_;
  bool files_registered_ = false;
  bool table_made_ = false;
  std::vector<Registration> registrations_;
  std::vector<std::string> warnings_;
};

// The registered buffer that holds all of the request's memory, or -1.
int IoUring::registration_of(const IoRequest& request) const {
  for (const Registration& registration : registrations_) {
    if (request.memory >= registration.begin &&
        request.memory + request.bytes <= registration.end) {
      return registration.index;
    }
  }
  return -1;
}

void IoUring::queue(const IoRequest& request) {
  io_uring_sqe* entry = io_uring_get_sqe(&ring_);
  SPILLWAY_ASSERT(entry != nullptr, "more requests queued than the ring is deep");
  const int file = files_registered_ ? static_cast<int>(request.file) : files_[request.file];
  const int buffer = request.kind == IoKind::sync ? -1 : registration_of(request);
  switch (request.kind) {
    case IoKind::read:
      if (buffer >= 0) {
        io_uring_prep_read_fixed(entry, file, request.memory, request.bytes, request.file_offset,
                                 buffer);
      } else {
        io_uring_prep_read(entry, file, request.memory, request.bytes, request.file_offset);
      }
      break;
    case IoKind::write:
      if (buffer >= 0) {
        io_uring_prep_write_fixed(entry, file, request.memory, request.bytes, request.file_offset,
                                  buffer);
      } else {
        io_uring_prep_write(entry, file, request.memory, request.bytes, request.file_offset);
      }
      break;
    case IoKind::sync:
      io_uring_prep_fsync(entry, file, IORING_FSYNC_DATASYNC);
      break;
  }
  if (files_registered_) io_uring_sqe_set_flags(entry, IOSQE_FIXED_FILE);
  io_uring_sqe_set_data64(entry, request.tag);
}

std::size_t IoUring::reap(std::span<IoCompletion> completions) {
  std::size_t count = 0;
  io_uring_cqe* entry = nullptr;
  while (count < completions.size() && io_uring_peek_cqe(&ring_, &entry) == 0) {
    completions[count++] = {static_cast<std::uint32_t>(io_uring_cqe_get_data64(entry)), entry->res};
    io_uring_cqe_seen(&ring_, entry);
  }
  return count;
}

void IoUring::register_memory(std::span<std::byte> memory) {
  if (!table_made_) {
    const int result = io_uring_register_buffers_sparse(&ring_, registration_slots);
    if (result < 0) return warn("memory could not be registered with io_uring", -result);
    table_made_ = true;
  }
  while (!memory.empty() && registrations_.size() < registration_slots) {
    const auto piece = memory.first(std::min<std::size_t>(memory.size(), largest_registration));
    const iovec vector{piece.data(), piece.size()};
    const __u64 tag = 0;
    const auto index = static_cast<unsigned>(registrations_.size());
    const int result = io_uring_register_buffers_update_tag(&ring_, index, &vector, &tag, 1);
    if (result < 0) {
      const char* what =
          result == -ENOMEM ? "memory could not be registered with io_uring: `ulimit -l` is too low"
                            : "memory could not be registered with io_uring";
      return warn(what, -result);
    }
    registrations_.push_back({piece.data(), piece.data() + piece.size(), static_cast<int>(index)});
    memory = memory.subspan(piece.size());
  }
}

// A ring that is let go of whatever happens.
struct TrialRing {
  io_uring ring{};
  bool set_up = false;
  ~TrialRing() {
    if (set_up) io_uring_queue_exit(&ring);
  }
};

constexpr std::size_t trial_bytes = 8;

// Hands over the ring's one request and waits for it. Returns its result, or -errno of the call
// that failed; nothing where neither came within `limit`.
std::optional<int> complete_one(io_uring& ring, std::chrono::milliseconds limit) {
  const auto deadline = std::chrono::steady_clock::now() + limit;
  while (true) {
    const auto left = deadline - std::chrono::steady_clock::now();
    if (left.count() <= 0) return std::nullopt;
    __kernel_timespec time{};
    time.tv_sec = std::chrono::duration_cast<std::chrono::seconds>(left).count();
    time.tv_nsec = (left % std::chrono::seconds(1)).count();
    io_uring_cqe* entry = nullptr;
    const int called = io_uring_submit_and_wait_timeout(&ring, &entry, 1, &time, nullptr);
    if (entry != nullptr) {
      const int result = entry->res;
      io_uring_cqe_seen(&ring, entry);
      return result;
    }
    const bool may_pass = called >= 0 || called == -EINTR || called == -EAGAIN ||
                          called == -EBUSY || called == -ETIME;
    if (!may_pass) return called;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));  // whatever returned at once
  }
}

IoUringRefusal refused(int error_number) {
  return {std::strerror(error_number), io_uring_setup_error(error_number)};
}

}  // namespace

std::unique_ptr<IoRing> make_io_uring(std::span<const int> files, unsigned depth) {
  return std::make_unique<IoUring>(files, depth);
}

std::optional<IoUringRefusal> try_io_uring(unsigned depth, std::chrono::milliseconds limit) {
  // A file in memory: whether a drive works is not asked here.
  const FileDescriptor file(::memfd_create("spillway-io-uring-trial", MFD_CLOEXEC));
  if (!file.valid() || ::ftruncate(file.get(), trial_bytes) != 0) {
    const int error_number = errno;
    return IoUringRefusal{
        fmt::format("no file in memory to try it on, {}", std::strerror(error_number)),
        MachineError::from_errno("cannot make a file in memory to try io_uring on", error_number)};
  }
  TrialRing trial;
  if (const int failed = set_up_ring(depth, trial.ring); failed < 0) return refused(-failed);
  trial.set_up = true;
  // Stays for ever: a request that completes late, after all, may still write to it.
  static std::array<std::byte, trial_bytes> memory;
  io_uring_sqe* const entry = io_uring_get_sqe(&trial.ring);
  SPILLWAY_ASSERT(entry != nullptr);
  io_uring_prep_read(entry, file.get(), memory.data(), trial_bytes, 0);
  const std::optional<int> result = complete_one(trial.ring, limit);
  if (!result) {
    return IoUringRefusal{
        "it completes nothing",
        MachineError(fmt::format("io_uring takes requests here, and completed none within {} s",
                                 std::chrono::duration<double>(limit).count()),
                     "a sandbox or a kernel without all of it: threads with pread and pwrite do "
                     "the same work")};
  }
  if (*result < 0) return refused(-*result);
  return std::nullopt;
}

MachineError io_uring_setup_error(int error_number) {
  const char* hint = "";
  switch (error_number) {
    case ENOSYS:
      hint =
          "this kernel has no io_uring (Linux 5.6 or later is needed), or a container's seccomp "
          "profile hides it: allow io_uring_setup, io_uring_enter and io_uring_register there";
      break;
    case EPERM:
    case EACCES:
      hint =
          "io_uring is switched off here: check `sysctl kernel.io_uring_disabled` (0 allows it) "
          "and, in a container, the seccomp profile (it must allow io_uring_setup, io_uring_enter "
          "and "
          "io_uring_register)";
      break;
    case ENOMEM:
      hint = "raise the locked-memory limit (`ulimit -l`) or lower the queue depth";
      break;
    default:
      break;
  }
  return MachineError::from_errno("cannot use io_uring", error_number, hint);
}

}  // namespace spillway
