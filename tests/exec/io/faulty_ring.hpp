// Rings that do, by seed, everything a kernel may: short transfers, EINTR, EAGAIN, requests not
// accepted, completions late and in any order. FaultyRing is over files in memory and has one
// lasting error where the test wants it; tests/exec/io/fault_drive.hpp has a ring over real files.
#pragma once

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>
#include <random>
#include <vector>

#include "exec/io/io_ring.hpp"

namespace spillway::test {

struct Faults {
  // Chances per request.
  double short_transfer = 0, interrupted = 0, again = 0;
  // Chances per submission: refused with EINTR, EAGAIN or EBUSY; only a part accepted.
  double refused = 0, partly_accepted = 0;
};

struct LastingError {
  IoKind kind = IoKind::read;
  std::uint32_t file = 0;
  std::uint64_t offset = 0;  // requests that contain this byte of the file fail
  int error_number = EIO;
};

// What is done with a request once it is the kernel's is execute()'s.
class FaultInjector : public IoRing {
 public:
  FaultInjector(std::uint64_t seed, Faults faults) : faults_(faults), random_(seed) {}

  void queue(const IoRequest& request) override {
    queued_.push_back(request);
    deepest = std::max(deepest, outstanding());
  }

  int submit_and_wait() override {
    if (chance(faults_.refused)) {
      constexpr int reasons[] = {EINTR, EAGAIN, EBUSY};
      return -reasons[random_() % 3];
    }
    std::size_t accepted = queued_.size();
    const bool part = accepted > 0 && chance(faults_.partly_accepted);
    if (part) accepted = random_() % accepted;
    const auto end = queued_.begin() + static_cast<std::ptrdiff_t>(accepted);
    with_kernel_.insert(with_kernel_.end(), queued_.begin(), end);
    queued_.erase(queued_.begin(), end);
    if (part) return static_cast<int>(accepted);  // like the kernel, which then does not wait
    std::shuffle(with_kernel_.begin(), with_kernel_.end(), random_);
    const std::size_t finished = with_kernel_.empty() ? 0 : 1 + random_() % with_kernel_.size();
    for (std::size_t i = 0; i < finished; ++i) {
      completions_.push_back({with_kernel_.back().tag, execute(with_kernel_.back())});
      with_kernel_.pop_back();
    }
    return static_cast<int>(accepted);
  }

  std::size_t reap(std::span<IoCompletion> completions) override {
    const std::size_t count = std::min(completions.size(), completions_.size());
    std::copy_n(completions_.begin(), count, completions.begin());
    completions_.erase(completions_.begin(),
                       completions_.begin() + static_cast<std::ptrdiff_t>(count));
    return count;
  }

  void pause(unsigned) override { ++pauses; }
  void register_memory(std::span<std::byte>) override {}
  const std::vector<std::string>& warnings() const override { return warnings_; }

  // Requests whose memory the kernel may still use.
  std::size_t outstanding() const {
    return queued_.size() + with_kernel_.size() + completions_.size();
  }

  std::size_t deepest = 0;
  std::size_t pauses = 0;
  std::size_t faults_injected = 0;

 protected:
  // Does all of a request: bytes transferred, or -errno. `bytes`: of these, at most.
  virtual std::int32_t transfer(const IoRequest& request, std::size_t bytes) = 0;

  bool chance(double probability) {
    const bool hit = std::uniform_real_distribution<double>(0, 1)(random_) < probability;
    if (hit) ++faults_injected;
    return hit;
  }

 private:
  std::int32_t execute(const IoRequest& request) {
    if (chance(faults_.interrupted)) return -EINTR;
    if (chance(faults_.again)) return -EAGAIN;
    std::size_t bytes = request.bytes;
    // Not 0 for a read: that means the end of the file.
    if (bytes > 0 && chance(faults_.short_transfer))
      bytes = std::max<std::size_t>(random_() % bytes, 1);
    return transfer(request, bytes);
  }

  Faults faults_;
  std::mt19937_64 random_;
  std::vector<IoRequest> queued_, with_kernel_;
  std::vector<IoCompletion> completions_;
  std::vector<std::string> warnings_;
};

class FaultyRing final : public FaultInjector {
 public:
  FaultyRing(std::size_t file_count, std::size_t file_bytes, std::uint64_t seed, Faults faults)
      : FaultInjector(seed, faults), files(file_count, std::vector<std::byte>(file_bytes)) {}

  std::vector<std::vector<std::byte>> files;
  std::optional<LastingError> error;
  std::vector<std::size_t> synced;  // files, in order of completion

 private:
  std::int32_t transfer(const IoRequest& request, std::size_t bytes) override {
    if (error && error->kind == request.kind && error->file == request.file &&
        (request.kind == IoKind::sync || (request.file_offset <= error->offset &&
                                          error->offset < request.file_offset + request.bytes))) {
      return -error->error_number;
    }
    if (request.kind == IoKind::sync) {
      synced.push_back(request.file);
      return 0;
    }
    // Unbuffered I/O takes whole blocks only, also after a short transfer.
    if (request.file_offset % 4096 != 0 || request.bytes % 4096 != 0 || request.bytes == 0 ||
        reinterpret_cast<std::uintptr_t>(request.memory) % 4096 != 0) {
      return -EINVAL;
    }
    std::vector<std::byte>& file = files[request.file];
    if (request.file_offset >= file.size()) return 0;
    bytes = std::min<std::size_t>(bytes, file.size() - request.file_offset);
    std::byte* place = file.data() + request.file_offset;
    request.kind == IoKind::read ? std::memcpy(request.memory, place, bytes)
                                 : std::memcpy(place, request.memory, bytes);
    return static_cast<std::int32_t>(bytes);
  }
};

}  // namespace spillway::test
