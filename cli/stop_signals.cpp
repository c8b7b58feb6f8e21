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

// What a signal handler may touch: an eventfd that the watcher reads, the signal that came first,
// and what the program does.
std::atomic<int> wake_descriptor{-1};
std::atomic<int> signalled{0};
std::atomic<StopSignals::Phase> phase{StopSignals::Phase::preparing};
std::atomic<bool> goes_on_with_run{false};

void wake(std::uint64_t count) {
  static_cast<void>(!::write(wake_descriptor.load(), &count, sizeof(count)));
}

constexpr std::string_view message_in(StopSignals::Phase now) {
  switch (now) {
    case StopSignals::Phase::preparing:
      return "\ninterrupted: this ends before training begins; once more ends it at once\n";
    case StopSignals::Phase::planning:
      return goes_on_with_run ? "\nspillway: interrupted before the first step\n"
                                "  hint: the run is as it was at its last commit\n"
                              : "\nspillway: interrupted before the first step\n"
                                "  hint: nothing was trained\n";
    case StopSignals::Phase::training_with_commits:
      return "\ninterrupted: training ends after the running step, once that is committed; once "
             "more ends it at once, back to its last commit\n";
    case StopSignals::Phase::training:
      return "\ninterrupted: training ends after the running step; once more ends it at once, and "
             "what this run has trained is lost\n";
    case StopSignals::Phase::finishing:
      return "\ninterrupted: training has ended, what it gave is being written; once more ends "
             "this "
             "at once\n";
    case StopSignals::Phase::exporting:
      return "\n";
  }
  return "";
}

void on_signal(int signal) {
  const int error_number = errno;
  signalled = signal;
  std::signal(SIGINT, SIG_DFL);
  std::signal(SIGTERM, SIG_DFL);
  const std::string_view message = message_in(phase);
  static_cast<void>(!::write(STDERR_FILENO, message.data(), message.size()));
  if (phase == StopSignals::Phase::planning) ::_exit(128 + signal);
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

bool StopSignals::came() { return signalled.load() != 0; }

int StopSignals::exit_code() { return came() ? 128 + signalled.load() : 0; }

void StopSignals::check(const std::string& during) {
  if (!came()) return;
  const char* const left = phase == Phase::exporting ? "nothing is left behind"
                           : goes_on_with_run        ? "the run is as it was at its last commit"
                                              : "nothing was trained, and nothing is left behind";
  throw Interrupted("interrupted " + during, left, exit_code());
}

void StopSignals::go_on_with_run(bool goes_on) { goes_on_with_run = goes_on; }

void StopSignals::enter(Phase now) {
  phase = now;
  if (now == Phase::planning) check("before the first step");
}

void StopSignals::on_stop(std::function<void()> listener) {
  const std::lock_guard lock(mutex_);
  listener_ = std::move(listener);
  if (listener_ && came() && !told_) {
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
