#include "base/mapped_file.hpp"

#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>

#include "base/errors.hpp"

namespace spillway {

MappedFile::MappedFile(int descriptor, const std::filesystem::path& path, Access access) {
  struct stat status {};
  if (::fstat(descriptor, &status) != 0)
    throw MachineError::from_errno("cannot read " + path.string(), errno);
  const auto size = static_cast<std::size_t>(status.st_size);
  if (size == 0) return;  // nothing can be mapped
  void* const memory = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, descriptor, 0);
  if (memory == MAP_FAILED) {
    throw MachineError::from_errno("cannot map " + path.string(), errno,
                                   errno == ENOMEM ? "there are too many files, or too little room "
                                                     "for addresses (ulimit -v): join the files"
                                                   : "");
  }
  bytes_ = {static_cast<const std::byte*>(memory), size};
  // Advice only: where the system does not take it, reading is slower.
  ::madvise(memory, size, access == Access::in_order ? MADV_SEQUENTIAL : MADV_RANDOM);
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

}  // namespace spillway
