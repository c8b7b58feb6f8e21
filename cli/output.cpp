#include "cli/output.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>

#include "base/errors.hpp"
#include "traces/file_sink.hpp"

namespace spillway::cli {

namespace fs = std::filesystem;

void reserve_standard_descriptors() {
  for (const int wanted : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (::fcntl(wanted, F_GETFD) != -1) continue;
    // The lowest free descriptor is the wanted one. Standard output is opened for reading, so that
    // writing to it is still an error.
    const int opened = ::open("/dev/null", wanted == STDOUT_FILENO ? O_RDONLY : O_WRONLY);
    if (opened < 0) return;  // no /dev/null: as the system would have it
  }
}

void fail_output(int error_number) {
  const char* hint = "";
  if (error_number == EPIPE) hint = "the program that reads it has ended";
  if (error_number == EBADF) hint = "it is closed: redirect it to a file, or to /dev/null";
  throw MachineError::from_errno("cannot write to standard output", error_number, hint);
}

void flush_output() {
  errno = 0;
  const bool failed_before = std::ferror(stdout) != 0;
  if (std::fflush(stdout) == 0 && !failed_before) return;
  fail_output(errno != 0 ? errno : EIO);
}

void print_error(const std::string& text) {
  std::fputs(text.c_str(), stderr);
  std::fflush(stderr);
}

void check_output_path(const std::string& option, const std::string& path) {
  if (path.empty()) return;
  std::error_code ignored;
  const fs::path parent = fs::absolute(path).parent_path();
  if (!fs::is_directory(parent, ignored)) {
    throw InputError(
        fmt::format("{} {}: the folder {} does not exist", option, path, parent.string()),
        "create it, or name another file");
  }
  if (fs::is_directory(path, ignored)) {
    throw InputError(fmt::format("{} {}: this is a folder", option, path), "name a file in it");
  }
}

void write_file(const std::string& path, const std::string& text) {
  FileSink sink(path, FileSink::Compression::none);
  sink.write(text);
  sink.commit();
}

}  // namespace spillway::cli
