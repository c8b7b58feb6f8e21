#include "exec/run/run_lock.hpp"

#include <fcntl.h>
#include <fmt/chrono.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <ctime>

#include "base/errors.hpp"

namespace spillway {

namespace {

// "HOST\nprocess 123 since ...": the host alone in the first line.
std::string holder_text(const Surroundings& here) {
  return fmt::format("{}\nprocess {} since {:%Y-%m-%d %H:%M:%S}\n", here.host, ::getpid(),
                     fmt::localtime(std::time(nullptr)));
}

std::string read_start(int descriptor) {
  std::array<char, 1024> text{};
  const ssize_t got = ::pread(descriptor, text.data(), text.size(), 0);
  return {text.data(), static_cast<std::size_t>(got > 0 ? got : 0)};
}

std::string one_line(std::string text) {
  for (char& c : text) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = ' ';
  }
  while (text.ends_with(' ')) text.pop_back();
  return text;
}

bool is_elsewhere(const std::string& holder, const Surroundings& here, int file) {
  return !holder.empty() && holder.substr(0, holder.find('\n')) != here.host &&
         here.is_shared(file);
}

// Whoever looks whether a run is at work (run_at_work) holds the lock for a moment.
bool lock_soon(int file) {
  for (int attempt = 0; attempt < 20; ++attempt) {
    if (::flock(file, LOCK_EX | LOCK_NB) == 0) return true;
    if (errno != EWOULDBLOCK) return false;
    ::usleep(2000);
  }
  errno = EWOULDBLOCK;
  return false;
}

}  // namespace

RunLock::RunLock(const Directory& folder, const Surroundings& here, bool take_over, bool anew) {
  std::optional<FileDescriptor> file = folder.create(file_name, 0600);
  if (!file && !anew) file = folder.open(file_name, O_RDWR, FileUse::change);
  if (!file) {
    throw MachineError(folder.path_of(file_name).string() + " keeps being removed",
                       "is another run at work in this folder?");
  }
  const std::string holder = read_start(file->get());
  if (!lock_soon(file->get())) {
    if (errno != EWOULDBLOCK) {
      throw MachineError::from_errno("cannot lock " + folder.path_of(file_name).string(), errno,
                                     "a run's folder needs a file system with flock");
    }
    throw MachineError(
        fmt::format("the run in {} is at work: {}", folder.path().string(), one_line(holder)),
        "wait until it ends");
  }
  if (is_elsewhere(holder, here, file->get()) && !take_over) {
    throw MachineError(
        fmt::format("the run in {} is at work on another computer, or ended there without saying "
                    "so: {}",
                    folder.path().string(), one_line(holder)),
        "where that run has surely ended, add " + Setting{"take_over"});
  }
  const std::string text = holder_text(here);
  if (::ftruncate(file->get(), 0) != 0 ||
      ::pwrite(file->get(), text.data(), text.size(), 0) != static_cast<ssize_t>(text.size())) {
    throw MachineError::from_errno("cannot write " + folder.path_of(file_name).string(), errno);
  }
  file_ = std::move(*file);
}

RunLock::~RunLock() {
  if (file_.valid()) static_cast<void>(::ftruncate(file_.get(), 0));
}

AtWork run_at_work(const Directory& folder, const Surroundings& here) {
  const auto file = folder.open(RunLock::file_name, O_RDONLY, FileUse::read);
  if (!file) return AtWork::no;
  // A run that ends as it should leaves the file empty.
  const std::string holder = read_start(file->get());
  if (holder.empty()) return AtWork::no;
  if (::flock(file->get(), LOCK_SH | LOCK_NB) != 0) return AtWork::here;
  return is_elsewhere(holder, here, file->get()) ? AtWork::elsewhere : AtWork::no;
}

}  // namespace spillway
