#include "cli/stop_signals.hpp"

#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <string_view>
#include <utility>

#include "base/errors.hpp"

namespace spillway::cli {

namespace {

// What a signal handler may touch: an eventfd that the watcher reads, and a flag.
std::atomic<int> wake_descriptor{-1};
std::atomic<bool> signalled{false};

void wake(std::uint64_t count) {
  static_cast<void>(!::write(wake_descriptor.load(), &count, sizeof(count)));
}

void on_signal(int signal) {
  constexpr std::string_view message =
      "\ninterrupted: training ends after the running step, once that is committed; once more ends "
      "it at "
      "once, back to its last commit\n";
  const int error_number = errno;
  signalled = true;
  std::signal(SIGINT, SIG_DFL);
  std::signal(SIGTERM, SIG_DFL);
  static_cast<void>(signal);
  static_cast<void>(!::write(STDERR_FILENO, message.data(), message.size()));
  wake(1);
  errno = error_number;
}

}  // namespace

StopSignals::StopSignals() {
  wake_descriptor = ::eventfd(0, EFD_CLOEXEC);
  if (wake_descriptor < 0) throw MachineError::from_errno("cannot make an eventfd", errno);
  watcher_ = std::thread([this] { watch(); });
  std::signal(SIGINT, on_signal);
  std::signal(SIGTERM, on_signal);
}

StopSignals::~StopSignals() {
  on_stop({});
  std::signal(SIGINT, SIG_DFL);
  std::signal(SIGTERM, SIG_DFL);
  constexpr std::uint64_t end = 1u << 20;  // more than any number of signals
  wake(end);
  watcher_.join();
  ::close(wake_descriptor.exchange(-1));
}

bool StopSignals::came() { return signalled.load(); }

void StopSignals::on_stop(std::function<void()> listener) {
  const std::lock_guard lock(mutex_);
  listener_ = std::move(listener);
  if (listener_ && signalled && !told_) {
    told_ = true;
    listener_();
  }
}

void StopSignals::watch() {
  while (true) {
    std::uint64_t count = 0;
    const ssize_t got = ::read(wake_descriptor.load(), &count, sizeof(count));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 || count >= (1u << 20)) return;
    const std::lock_guard lock(mutex_);
    if (!listener_ || told_) continue;
    told_ = true;
    listener_();
  }
}

}  // namespace spillway::cli
