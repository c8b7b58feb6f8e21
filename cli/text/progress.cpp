#include "cli/text/progress.hpp"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <limits>
#include <utility>

#include "base/text.hpp"
#include "cli/text/output.hpp"
#include "experiments/watch/training_line.hpp"

namespace spillway::cli {

namespace {

constexpr std::chrono::milliseconds redraw_every{100};
constexpr std::chrono::seconds plain_line_every{5};
constexpr std::chrono::seconds worth_a_word{2};

std::size_t terminal_width() {
  winsize size{};
  if (ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
  return 80;
}

}  // namespace

Progress::Progress(bool enabled)
    : enabled_(enabled),
      terminal_(isatty(STDERR_FILENO) != 0),
      last_(std::chrono::steady_clock::now() - std::chrono::hours(1)) {}

Progress::~Progress() { finish(); }

void Progress::show(const std::string& line, bool important) {
  if (!enabled_) return;
  const auto now = std::chrono::steady_clock::now();
  const auto pause =
      terminal_ ? std::chrono::steady_clock::duration(redraw_every) : plain_line_every;
  if (!important && now - last_ < pause) return;
  last_ = now;
  if (terminal_) {
    const std::string text = printable(line).substr(0, width());
    print_error_as_is(fmt::format("\r{:<{}}", text, shown_width_));
    shown_width_ = text.size();
    open_ = true;
  } else {
    print_error(line + "\n");
  }
}

std::size_t Progress::width() const {
  return terminal_ ? terminal_width() - 1 : std::numeric_limits<std::size_t>::max();
}

void Progress::finish() {
  if (!open_) return;
  print_error("\n");
  open_ = false;
  shown_width_ = 0;
}

void Progress::clear() {
  if (!open_) return;
  print_error_as_is(fmt::format("\r{:{}}\r", "", shown_width_));
  open_ = false;
  shown_width_ = 0;
}

Activity::Activity(std::string what) : what_(std::move(what)), watcher_([this] { watch(); }) {}

Activity::~Activity() {
  {
    const std::lock_guard lock(mutex_);
    over_ = true;
  }
  ended_.notify_one();
  watcher_.join();
}

void Activity::say(std::string what) {
  const std::lock_guard lock(mutex_);
  what_ = std::move(what);
}

void Activity::watch() {
  const auto began = std::chrono::steady_clock::now();
  Progress progress(true);
  std::unique_lock lock(mutex_);
  for (auto pause = std::chrono::milliseconds(worth_a_word);
       !ended_.wait_for(lock, pause, [this] { return over_; }); pause = redraw_every) {
    const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - began;
    progress.show(fmt::format("{} ... {}", what_, format_clock(passed.count())));
  }
  progress.clear();
}

std::string done_text(std::size_t done, std::size_t all, double seconds, const char* things) {
  std::string line = fmt::format(
      "{}/{} {}, {:.0f} %", done, all, things,
      100.0 * static_cast<double>(done) / static_cast<double>(std::max<std::size_t>(all, 1)));
  if (done > 0 && done < all && seconds > 0) {
    const double per_second = static_cast<double>(done) / seconds;
    line += fmt::format(", {:.3g} a second, {} left", per_second,
                        format_clock(static_cast<double>(all - done) / per_second));
  }
  return line;
}

}  // namespace spillway::cli
