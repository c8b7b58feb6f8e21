#include "base/direct_io.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>

namespace spillway {

std::optional<std::string> try_direct_io(int descriptor) {
  const int flags = ::fcntl(descriptor, F_GETFL);
  if (flags < 0 || ::fcntl(descriptor, F_SETFL, flags | O_DIRECT) != 0)
    return std::string(std::strerror(errno));
  // Some file systems take the flag and then refuse the transfer, or need larger blocks than ours.
  alignas(direct_io_alignment) std::array<std::byte, direct_io_alignment> block;
  ssize_t result = -1;
  do {
    result = ::pread(descriptor, block.data(), block.size(), 0);
  } while (result < 0 && errno == EINTR);
  if (result >= 0) return std::nullopt;
  const int error_number = errno;
  ::fcntl(descriptor, F_SETFL, flags);
  return std::string(std::strerror(error_number));
}

}  // namespace spillway
