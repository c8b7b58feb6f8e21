#include "traces/file_sink.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <span>

#include "base/errors.hpp"

namespace spillway {

namespace {

// zlib takes lengths as unsigned int.
constexpr std::size_t largest_write = std::size_t{1} << 30;
constexpr unsigned compression_buffer = 256 * 1024;

}  // namespace

FileSink::FileSink(const FilePlace& place, Compression compression, const ReplaceOnly* only)
    : path_(place.path.string()), file_(place, 0666, only) {
  if (compression == Compression::none) return;
  // zlib closes what it is given; the duplicate leaves the file open, to be synced.
  const int duplicate = ::fcntl(file_.descriptor(), F_DUPFD_CLOEXEC, 0);
  compressor_ = duplicate < 0 ? nullptr : ::gzdopen(duplicate, "wb6");
  if (compressor_ == nullptr) {
    const int error_number = duplicate < 0 ? errno : ENOMEM;
    if (duplicate >= 0) ::close(duplicate);
    fail("cannot start compression", error_number);
  }
  ::gzbuffer(compressor_, compression_buffer);
}

FileSink::~FileSink() {
  if (compressor_ != nullptr) ::gzclose(compressor_);
}

void FileSink::fail(const std::string& what, int error_number) const {
  throw MachineError::from_errno(path_ + ": " + what, error_number);
}

void FileSink::write(std::string_view bytes) {
  if (compressor_ == nullptr) return file_.write(std::as_bytes(std::span(bytes)));
  while (!bytes.empty()) {
    const std::size_t count = std::min(bytes.size(), largest_write);
    errno = 0;
    if (::gzwrite(compressor_, bytes.data(), static_cast<unsigned>(count)) == 0) {
      fail("cannot write", errno != 0 ? errno : EIO);
    }
    bytes.remove_prefix(count);
  }
}

void FileSink::commit() {
  if (compressor_ != nullptr) {
    errno = 0;
    const int result = ::gzclose(compressor_);
    compressor_ = nullptr;  // closed, whatever the result
    if (result != Z_OK) fail("cannot write", errno != 0 ? errno : EIO);
  }
  file_.commit();
}

}  // namespace spillway
