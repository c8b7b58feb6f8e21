#include "traces/file_sink.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>

#include "base/errors.hpp"

namespace spillway {

namespace {

// zlib takes lengths as unsigned int.
constexpr std::size_t largest_write = std::size_t{1} << 30;
constexpr unsigned compression_buffer = 256 * 1024;

}  // namespace

FileSink::FileSink(const std::string& path, Compression compression) : path_(path) {
  std::error_code ignored;
  target_ = std::filesystem::weakly_canonical(path, ignored).string();
  if (ignored || target_.empty()) target_ = path;

  struct stat status {};
  in_place_ = ::stat(target_.c_str(), &status) == 0 && !S_ISREG(status.st_mode);
  temporary_ = in_place_ ? target_ : target_ + ".partial-" + std::to_string(::getpid());
  file_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (file_ < 0) fail("cannot create the file", errno);

  if (compression == Compression::gzip) {
    // zlib closes what it is given; the duplicate leaves us a descriptor to sync.
    const int duplicate = ::fcntl(file_, F_DUPFD_CLOEXEC, 0);
    compressor_ = duplicate < 0 ? nullptr : ::gzdopen(duplicate, "wb6");
    if (compressor_ == nullptr) {
      const int error_number = duplicate < 0 ? errno : ENOMEM;
      if (duplicate >= 0) ::close(duplicate);
      ::close(file_);
      if (!in_place_) ::unlink(temporary_.c_str());
      fail("cannot start compression", error_number);
    }
    ::gzbuffer(compressor_, compression_buffer);
  }
}

FileSink::~FileSink() {
  if (compressor_ != nullptr) ::gzclose(compressor_);
  if (file_ < 0) return;
  ::close(file_);
  if (!in_place_) ::unlink(temporary_.c_str());
}

void FileSink::fail(const std::string& what, int error_number) const {
  throw MachineError::from_errno(path_ + ": " + what, error_number);
}

void FileSink::write(std::string_view bytes) {
  while (!bytes.empty()) {
    const std::size_t count = std::min(bytes.size(), largest_write);
    if (compressor_ != nullptr) {
      errno = 0;
      if (::gzwrite(compressor_, bytes.data(), static_cast<unsigned>(count)) == 0) {
        fail("cannot write", errno != 0 ? errno : EIO);
      }
      bytes.remove_prefix(count);
    } else {
      const ssize_t written = ::write(file_, bytes.data(), count);
      if (written < 0 && errno != EINTR) fail("cannot write", errno);
      if (written > 0) bytes.remove_prefix(static_cast<std::size_t>(written));
    }
  }
}

void FileSink::finish_compression() {
  if (compressor_ == nullptr) return;
  errno = 0;
  const int result = ::gzclose(compressor_);
  compressor_ = nullptr;  // closed, whatever the result
  if (result != Z_OK) fail("cannot write", errno != 0 ? errno : EIO);
}

void FileSink::sync_and_close() {
  // Pipes and terminals cannot be synced, and need not be.
  if (::fsync(file_) != 0 && !(in_place_ && (errno == EINVAL || errno == EROFS))) {
    fail("cannot make the file durable", errno);
  }
  const int file = file_;
  if (::close(file) != 0 && errno != EINTR) {
    file_ = -1;
    const int error_number = errno;
    if (!in_place_) ::unlink(temporary_.c_str());
    fail("cannot close the file", error_number);
  }
  file_ = -1;
}

void FileSink::commit() {
  SPILLWAY_ASSERT(file_ >= 0, path_ + ": committed twice");
  finish_compression();
  sync_and_close();
  if (in_place_) return;
  if (::rename(temporary_.c_str(), target_.c_str()) != 0) {
    const int error_number = errno;
    ::unlink(temporary_.c_str());
    fail("cannot rename the finished file into place", error_number);
  }
  // The new name itself is durable only when its directory is; a file system that cannot sync a
  // directory has no such promise to give, so a failure here is not the caller's.
  const std::string directory = std::filesystem::path(target_).parent_path().string();
  const int folder =
      ::open(directory.empty() ? "." : directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder < 0) return;
  (void)::fsync(folder);
  ::close(folder);
}

}  // namespace spillway
