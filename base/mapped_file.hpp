// The bytes of a file as memory: read by the system when they are touched, and dropped again where
// memory is short, so that a file of any size takes none of the program's own.
//
// The file may be renamed or removed meanwhile. A file that is cut while it is mapped ends the
// program with SIGBUS where the bytes that are gone are touched: files of Spillway's own are never
// changed in place.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <utility>

namespace spillway {

class MappedFile {
 public:
  enum class Access : std::uint8_t { in_order, anywhere };

  MappedFile() = default;
  // All of an open regular file, which may be closed then. `path` is for errors. Throws
  // MachineError.
  MappedFile(int descriptor, const std::filesystem::path& path, Access access = Access::anywhere);
  MappedFile(MappedFile&& other) noexcept : bytes_(std::exchange(other.bytes_, {})) {}
  MappedFile& operator=(MappedFile&& other) noexcept {
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~MappedFile();

  std::span<const std::byte> bytes() const { return bytes_; }

 private:
  std::span<const std::byte> bytes_;
};

}  // namespace spillway
