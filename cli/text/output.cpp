#include "cli/text/output.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <string_view>

#include "base/errors.hpp"
#include "base/text.hpp"
#include "traces/file_sink.hpp"

namespace spillway::cli {

namespace {

// How much of the end of `text` is the beginning of a character of UTF-8 whose rest is still to
// come.
std::size_t unfinished_bytes(std::string_view text) {
  for (std::size_t back = 1; back <= std::min<std::size_t>(3, text.size()); ++back) {
    const auto byte = static_cast<unsigned char>(text[text.size() - back]);
    if (byte < 0x80) return 0;
    if (byte < 0xc0) continue;
    const std::size_t wanted = byte >= 0xf0 ? 4 : byte >= 0xe0 ? 3 : 2;
    return wanted > back ? back : 0;
  }
  return 0;
}

bool outlives_reader = false;

// The stream that takes the place of `stdout`: spells out what a terminal would not show.
class GuardedOutput {
 public:
  static FILE* open() {
    static GuardedOutput output;
    cookie_io_functions_t functions{};
    functions.write = [](void* self, const char* bytes, std::size_t count) -> ssize_t {
      const bool written = static_cast<GuardedOutput*>(self)->write({bytes, count});
      return written ? static_cast<ssize_t>(count) : 0;
    };
    return ::fopencookie(&output, "w", functions);
  }

 private:
  bool write(std::string_view bytes) {
    held_ += bytes;
    const std::size_t whole = held_.size() - unfinished_bytes(held_);
    const bool written = write_all(printable_lines(std::string_view(held_).substr(0, whole)));
    held_.erase(0, whole);
    return written;
  }

  static bool write_all(std::string_view text) {
    while (!text.empty()) {
      const ssize_t count = ::write(STDOUT_FILENO, text.data(), text.size());
      if (count < 0 && errno == EINTR) continue;
      if (count < 0) return errno == EPIPE && outlives_reader;
      text.remove_prefix(static_cast<std::size_t>(count));
    }
    return true;
  }

  std::string held_;  // the beginning of a character
};

}  // namespace

void reserve_standard_descriptors() {
  for (const int wanted : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (::fcntl(wanted, F_GETFD) != -1) continue;
    // The lowest free descriptor is the wanted one. Standard output is opened for reading, so that
    // writing to it is still an error.
    const int opened = ::open("/dev/null", wanted == STDOUT_FILENO ? O_RDONLY : O_WRONLY);
    if (opened < 0) return;  // no /dev/null: as the system would have it
  }
}

void guard_standard_output() {
  FILE* const guarded = GuardedOutput::open();
  if (guarded == nullptr) throw MachineError::from_errno("cannot open standard output", errno);
  std::setvbuf(guarded, nullptr, isatty(STDOUT_FILENO) != 0 ? _IOLBF : _IOFBF, BUFSIZ);
  stdout = guarded;
}

void fail_output(int error_number) {
  if (error_number == EPIPE) throw ReaderGone{};
  const char* hint = "";
  if (error_number == EBADF) hint = "it is closed: redirect it to a file, or to /dev/null";
  throw MachineError::from_errno("cannot write to standard output", error_number, hint);
}

void outlive_reader() { outlives_reader = true; }

void flush_output() {
  errno = 0;
  const bool failed_before = std::ferror(stdout) != 0;
  if (std::fflush(stdout) == 0 && !failed_before) return;
  fail_output(errno != 0 ? errno : EIO);
}

void print_error(const std::string& text) { print_error_as_is(printable_lines(text)); }

void print_error_as_is(const std::string& text) {
  std::fputs(text.c_str(), stderr);
  std::fflush(stderr);
}

std::string to_text(const nlohmann::ordered_json& json) {
  return json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

void check_output_path(const std::string& option, const std::string& path,
                       const ReplaceOnly* only) {
  if (path.empty()) return;
  try {
    require_new_file(path, only);
  } catch (const InputError& error) {
    throw InputError(fmt::format("{} {}: ", option, path) + error.message(), error.advice());
  }
}

void write_file(const FilePlace& place, const std::string& text, const ReplaceOnly* only) {
  FileSink sink(place, FileSink::Compression::none, only);
  sink.write(text);
  sink.commit();
}

}  // namespace spillway::cli
