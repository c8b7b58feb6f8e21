#include "tests/exec/io/fault_drive.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <deque>
#include <stdexcept>
#include <thread>

#include "base/errors.hpp"
#include "exec/io/io_threads.hpp"

namespace spillway::test {

namespace {

constexpr std::uint64_t sector = 512;

void write_all(int descriptor, const std::byte* from, std::uint64_t bytes, std::uint64_t offset) {
  while (bytes > 0) {
    const ssize_t written = ::pwrite(descriptor, from, bytes, static_cast<off_t>(offset));
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) throw std::runtime_error("the machine's own disk fails under the test");
    from += written;
    bytes -= static_cast<std::uint64_t>(written);
    offset += static_cast<std::uint64_t>(written);
  }
}

bool applies(Fault fault, IoKind kind) {
  switch (fault) {
    case Fault::no_space:
    case Fault::flipped_write:
      return kind == IoKind::write;
    case Fault::flipped_read:
      return kind == IoKind::read;
    case Fault::short_transfer:
      return kind != IoKind::sync;
    default:
      return true;
  }
}

}  // namespace

const char* to_string(Fault fault) {
  switch (fault) {
    case Fault::io_error:
      return "EIO";
    case Fault::no_space:
      return "ENOSPC";
    case Fault::short_transfer:
      return "a short transfer";
    case Fault::interrupted:
      return "EINTR";
    case Fault::again:
      return "EAGAIN";
    case Fault::flipped_read:
      return "a flipped bit in a read";
    case Fault::flipped_write:
      return "a flipped bit in a write";
    case Fault::power_cut:
      return "a power cut";
  }
  bug("known fault", __FILE__, __LINE__);
}

// A file as the drive has it, with what was written to it since its last sync, oldest first.
struct FaultDrive::File {
  struct Write {
    std::uint64_t offset = 0;
    std::vector<std::byte> data;
    std::uint64_t end() const { return offset + data.size(); }
  };
  dev_t device = 0;
  ino_t inode = 0;
  FileDescriptor descriptor;  // buffered: a torn sector is no whole block
  std::deque<Write> cached;
};

class FaultDrive::Ring final : public FaultInjector {
 public:
  Ring(FaultDrive& drive, std::uint64_t seed, std::span<const int> files)
      : FaultInjector(seed, drive.plan_.chances), drive_(drive) {
    for (const int file : files) files_.push_back(drive.open(file));
  }
  ~Ring() override { drive_.faults_ += faults_injected; }

 private:
  std::int32_t transfer(const IoRequest& request, std::size_t bytes) override {
    return drive_.transfer(*files_[request.file], request, bytes,
                           request.file + 1 == files_.size());
  }

  FaultDrive& drive_;
  std::vector<File*> files_;
};

FaultDrive::FaultDrive(std::uint64_t seed, FaultPlan plan) : plan_(plan), random_(seed) {}
FaultDrive::~FaultDrive() = default;

RingFactory FaultDrive::factory() {
  return [this](std::span<const int> files, unsigned) -> std::unique_ptr<IoRing> {
    std::uint64_t seed = 0;
    {
      const std::lock_guard lock(mutex_);
      seed = random_();
    }
    return std::make_unique<Ring>(*this, seed, files);
  };
}

RingFactory FaultDrive::threads() {
  return [this](std::span<const int> descriptors, unsigned depth) {
    std::vector<File*> files;
    for (const int descriptor : descriptors) files.push_back(open(descriptor));
    return make_io_threads(
        [this, files](const IoRequest& request) {
          return disturbed(*files[request.file], request, request.file + 1 == files.size());
        },
        depth);
  };
}

// What FaultInjector does above the drive where rings are its own.
std::int32_t FaultDrive::disturbed(File& file, const IoRequest& request, bool last_file) {
  std::size_t bytes = request.bytes;
  {
    const std::lock_guard lock(mutex_);
    const auto hit = [&](double probability) {
      const bool now = chance(probability);
      faults_ += now;
      return now;
    };
    if (hit(plan_.chances.interrupted)) return -EINTR;
    if (hit(plan_.chances.again)) return -EAGAIN;
    if (bytes > 0 && hit(plan_.chances.short_transfer))
      bytes = std::max<std::size_t>(random_() % bytes, 1);
  }
  return transfer(file, request, bytes, last_file);
}

FaultDrive::File* FaultDrive::open(int descriptor) {
  struct stat status {};
  if (::fstat(descriptor, &status) != 0) throw std::runtime_error("fstat failed");
  const std::lock_guard lock(mutex_);
  for (const auto& file : files_) {
    if (file->device == status.st_dev && file->inode == status.st_ino) return file.get();
  }
  auto file = std::make_unique<File>();
  file->device = status.st_dev;
  file->inode = status.st_ino;
  const std::string path = fmt::format("/proc/self/fd/{}", descriptor);
  file->descriptor = FileDescriptor(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (!file->descriptor.valid()) throw std::runtime_error("cannot open " + path);
  files_.push_back(std::move(file));
  return files_.back().get();
}

bool FaultDrive::chance(double probability) {
  return probability > 0 && std::uniform_real_distribution<double>(0, 1)(random_) < probability;
}

bool FaultDrive::strikes(Fault fault, const Target& target) {
  if (!applies(fault, target.kind)) return false;
  const auto is_where = [&](FaultPlan::Where where) {
    switch (where) {
      case FaultPlan::Where::sync:
        return target.kind == IoKind::sync;
      case FaultPlan::Where::last_file:
        return target.last_file;
      case FaultPlan::Where::last_file_sync:
        return target.last_file && target.kind == IoKind::sync;
      default:
        return true;
    }
  };
  const bool now = plan_.once && plan_.once->fault == fault && !struck_ &&
                   target.number >= plan_.once->at_request && is_where(plan_.once->where);
  if (now) struck_ = true;
  double probability = 0;
  if (fault == Fault::io_error) probability = plan_.io_error;
  if (fault == Fault::no_space) probability = plan_.no_space;
  if (fault == Fault::flipped_read) probability = plan_.flipped_read;
  if (fault == Fault::flipped_write) probability = plan_.flipped_write;
  const bool hit = now || chance(probability);
  if (hit) ++faults_;
  return hit;
}

std::int32_t FaultDrive::transfer(File& file, const IoRequest& request, std::size_t bytes,
                                  bool last_file) {
  std::unique_lock lock(mutex_);
  const Target target{requests_++, request.kind, last_file};
  std::chrono::microseconds latency{0};
  if (const auto most = static_cast<std::uint64_t>(plan_.most_latency.count()); most > 0)
    latency = std::chrono::microseconds(random_() % most);
  if (request.kind == IoKind::sync) latency += plan_.sync_latency;
  if (latency.count() > 0) {
    lock.unlock();
    std::this_thread::sleep_for(latency);
    lock.lock();
  }
  if (powerless_) return -EIO;
  if (strikes(Fault::power_cut, target)) {
    lock.unlock();
    cut_power();
  }
  if (strikes(Fault::interrupted, target)) return -EINTR;
  if (strikes(Fault::again, target)) return -EAGAIN;
  if (strikes(Fault::io_error, target)) return -EIO;
  if (strikes(Fault::no_space, target)) return -ENOSPC;
  if (request.kind == IoKind::sync) {
    destage(file, file.cached.size());
    return 0;
  }
  // Unbuffered I/O takes whole blocks only, also after a short transfer.
  if (request.file_offset % 4096 != 0 || request.bytes % 4096 != 0 || request.bytes == 0 ||
      reinterpret_cast<std::uintptr_t>(request.memory) % 4096 != 0) {
    return -EINVAL;
  }
  if (strikes(Fault::short_transfer, target)) bytes = std::max<std::size_t>(random_() % bytes, 1);
  if (request.kind == IoKind::write)
    return write(file, request, bytes, strikes(Fault::flipped_write, target));
  const std::int32_t result = read(file, request, bytes);
  if (result > 0 && strikes(Fault::flipped_read, target)) {
    request.memory[random_() % static_cast<std::uint64_t>(result)] ^=
        std::byte(1u << (random_() % 8));
  }
  return result;
}

// The file, and over it what is in the cache, oldest first.
std::int32_t FaultDrive::read(File& file, const IoRequest& request, std::size_t bytes) {
  const ssize_t result = ::pread(file.descriptor.get(), request.memory, bytes,
                                 static_cast<off_t>(request.file_offset));
  if (result < 0) return -errno;
  const std::uint64_t begin = request.file_offset;
  const std::uint64_t end = begin + static_cast<std::uint64_t>(result);
  for (const File::Write& write : file.cached) {
    const std::uint64_t from = std::max(begin, write.offset), to = std::min(end, write.end());
    if (from >= to) continue;
    std::memcpy(request.memory + (from - begin), write.data.data() + (from - write.offset),
                to - from);
  }
  return static_cast<std::int32_t>(result);
}

std::int32_t FaultDrive::write(File& file, const IoRequest& request, std::size_t bytes,
                               bool flipped) {
  // A store writes into files that are as long as they will be: beyond their end is a mistake.
  struct stat status {};
  if (::fstat(file.descriptor.get(), &status) != 0) return -errno;
  if (request.file_offset + bytes > static_cast<std::uint64_t>(status.st_size)) return -EFBIG;
  File::Write write{request.file_offset, {request.memory, request.memory + bytes}};
  if (flipped) write.data[random_() % bytes] ^= std::byte(1u << (random_() % 8));
  if (!plan_.volatile_cache) {
    write_all(file.descriptor.get(), write.data.data(), bytes, write.offset);
    return static_cast<std::int32_t>(bytes);
  }
  file.cached.push_back(std::move(write));
  cached_bytes_ += bytes;
  while (cached_bytes_ > plan_.cache_bytes) {
    const auto most = std::max_element(
        files_.begin(), files_.end(),
        [](const auto& a, const auto& b) { return a->cached.size() < b->cached.size(); });
    destage(**most, 1);
  }
  return static_cast<std::int32_t>(bytes);
}

void FaultDrive::destage(File& file, std::size_t count) {
  for (; count > 0; --count) {
    const File::Write& oldest = file.cached.front();
    write_all(file.descriptor.get(), oldest.data.data(), oldest.data.size(), oldest.offset);
    cached_bytes_ -= oldest.data.size();
    file.cached.pop_front();
  }
}

// A drive orders writes to one sector: of those that survive, the last one is there. Between
// sectors it keeps no order, so that any of them may survive.
void FaultDrive::write_survivors(File& file, double survives, double torn) {
  for (const File::Write& write : file.cached) {
    if (!chance(survives)) continue;
    const std::uint64_t sectors = (write.data.size() + sector - 1) / sector;
    const bool is_torn = chance(torn), from_front = random_() % 2 == 0;
    const std::uint64_t cut = random_() % (sectors + 1);
    for (std::uint64_t s = 0; s < sectors; ++s) {
      if (is_torn && (from_front ? s >= cut : random_() % 2 == 0)) continue;
      const std::uint64_t from = s * sector;
      write_all(file.descriptor.get(), write.data.data() + from,
                std::min<std::uint64_t>(sector, write.data.size() - from), write.offset + from);
    }
  }
  file.cached.clear();
}

void FaultDrive::lose_power_locked() {
  if (powerless_) return;
  powerless_ = true;
  constexpr double survival[] = {0, 0.1, 0.5, 0.9, 1}, tearing[] = {0, 0, 0.1, 0.5, 1};
  const double survives = survival[random_() % std::size(survival)];
  const double torn = tearing[random_() % std::size(tearing)];
  for (const auto& file : files_) write_survivors(*file, survives, torn);
  cached_bytes_ = 0;
}

void FaultDrive::lose_power() {
  const std::lock_guard lock(mutex_);
  lose_power_locked();
}

void FaultDrive::cut_power() {
  const std::lock_guard lock(mutex_);  // held to the end: nothing is written any more
  lose_power_locked();
  ::raise(SIGKILL);
  std::abort();
}

std::uint64_t FaultDrive::volatile_bytes() const {
  const std::lock_guard lock(mutex_);
  return cached_bytes_;
}

}  // namespace spillway::test
