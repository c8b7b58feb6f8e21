#include "traces/file_source.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <cerrno>

#include "base/directory.hpp"
#include "base/errors.hpp"

namespace spillway::trace_format {

namespace {

// What is refused before it fills the memory.
constexpr std::size_t most_bytes = std::size_t{2} << 30;  // some eight million spans
constexpr std::size_t any_ratio_up_to = std::size_t{64} << 20;
constexpr std::size_t most_ratio = 200;  // traces are compressed some 15 times, zeros 1000 times

// Why a file of which this much is read is no trace; null: nothing says so yet.
const char* find_excess(const std::string& text, z_off_t file_bytes) {
  if (text.size() > most_bytes) return "holds more than 2 GiB of text";
  if (text.size() > any_ratio_up_to &&
      text.size() / most_ratio > static_cast<std::size_t>(std::max<z_off_t>(file_bytes, 0))) {
    return "decompresses to more than 200 times its size, as no trace does";
  }
  return nullptr;
}

}  // namespace

std::string read_whole_file(const std::string& path, const char* hint) {
  const FileDescriptor opened = open_to_read(path);
  struct stat status {};
  if (::fstat(opened.get(), &status) == 0 && S_ISREG(status.st_mode) &&
      static_cast<std::uint64_t>(status.st_size) > most_bytes) {
    throw InputError(path, 0, "holds more than 2 GiB", hint);
  }
  const int duplicate = ::fcntl(opened.get(), F_DUPFD_CLOEXEC, 0);  // zlib closes what it is given
  const gzFile file = duplicate < 0 ? nullptr : ::gzdopen(duplicate, "rb");
  if (file == nullptr) {
    const int error_number = duplicate < 0 ? errno : ENOMEM;
    if (duplicate >= 0) ::close(duplicate);
    throw MachineError::from_errno(path + ": cannot open the trace", error_number);
  }
  constexpr unsigned piece = 1 << 16;
  ::gzbuffer(file, piece);
  std::string text;
  const char* excess = nullptr;
  int count = 0;
  do {
    const std::size_t size = text.size();
    text.resize(size + piece);
    errno = 0;
    count = ::gzread(file, text.data() + size, piece);
    text.resize(size + static_cast<std::size_t>(std::max(count, 0)));
    excess = find_excess(text, ::gzoffset(file));
  } while (count > 0 && excess == nullptr);
  const int read_error = errno;
  int result = Z_OK;
  const std::string message = ::gzerror(file, &result);
  const int close_result = ::gzclose(file);
  if (excess != nullptr) {
    throw InputError(path, 0, excess, hint);
  }
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
