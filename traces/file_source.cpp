#include "traces/file_source.hpp"

#include <fmt/format.h>
#include <zlib.h>

#include <algorithm>
#include <cerrno>

#include "base/errors.hpp"

namespace spillway::trace_format {

std::string read_whole_file(const std::string& path) {
  errno = 0;
  const gzFile file = ::gzopen(path.c_str(), "rb");
  if (file == nullptr) {
    const int error_number = errno != 0 ? errno : ENOMEM;
    if (error_number == ENOENT) {
      throw InputError(path, 0, "no such trace file", "check the spelling of the path");
    }
    throw MachineError::from_errno(path + ": cannot open the trace", error_number);
  }
  constexpr unsigned piece = 1 << 20;
  ::gzbuffer(file, piece);
  std::string text;
  int count = 0;
  do {
    const std::size_t size = text.size();
    text.resize(size + piece);
    errno = 0;
    count = ::gzread(file, text.data() + size, piece);
    text.resize(size + static_cast<std::size_t>(std::max(count, 0)));
  } while (count > 0);
  const int read_error = errno;
  int result = Z_OK;
  const std::string message = ::gzerror(file, &result);
  const int close_result = ::gzclose(file);
  if (result == Z_ERRNO) {
    throw MachineError::from_errno(path + ": cannot read the trace", read_error);
  }
  if (result != Z_OK || close_result != Z_OK) {
    throw InputError(
        path, 0,
        fmt::format("the compressed data is damaged or cut off ({} bytes came out)", text.size()),
        "record the trace again, or copy the file again");
  }
  return text;
}

}  // namespace spillway::trace_format
