#include "tests/exec/cpu/hidden_memory.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "base/errors.hpp"
#include "base/file_descriptor.hpp"
#include "exec/run/arena.hpp"

namespace spillway::test {

HiddenMemory::HiddenMemory(std::uint64_t bytes)
    : bytes_(std::max<std::uint64_t>(4096, (bytes + 4095) / 4096 * 4096)) {
  const FileDescriptor file(::memfd_create("hidden device memory", MFD_CLOEXEC));
  if (!file.valid() || ::ftruncate(file.get(), static_cast<off_t>(bytes_)) != 0)
    throw MachineError::from_errno("cannot make the memory of a test's device", errno);
  open_ = map(file.get(), PROT_READ | PROT_WRITE);
  hidden_ = map(file.get(), PROT_NONE);
  for (std::uint64_t i = 0; i < bytes_; ++i) open_[i] = Arena::poison(i);
}

HiddenMemory::~HiddenMemory() {
  ::munmap(hidden_, bytes_);
  ::munmap(open_, bytes_);
}

std::byte* HiddenMemory::map(int file, int protection) const {
  void* const where = ::mmap(nullptr, bytes_, protection, MAP_SHARED, file, 0);
  if (where == MAP_FAILED)
    throw MachineError::from_errno("cannot map the memory of a test's device", errno);
  return static_cast<std::byte*>(where);
}

std::uint64_t HiddenMemory::highest_written() const {
  std::uint64_t end = bytes_;
  while (end > 0 && open_[end - 1] == Arena::poison(end - 1)) --end;
  return end;
}

}  // namespace spillway::test
