// How a long run shows how far it is: one line rewritten on a terminal, plain lines now and then
// elsewhere.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <mutex>
#include <string>
#include <thread>

namespace spillway::cli {

class Progress {
 public:
  // `enabled` false: says nothing. Writes to standard error.
  explicit Progress(bool enabled);
  ~Progress();

  // Shows `line`; off a terminal at most every few seconds, unless `important`.
  void show(const std::string& line, bool important = false);
  // Characters that a line may have; off a terminal there is no limit.
  std::size_t width() const;
  // Ends the rewritten line, so that what is printed next starts on a line of its own.
  void finish();
  // Takes the rewritten line away.
  void clear();

 private:
  bool enabled_;
  bool terminal_;
  bool open_ = false;
  std::size_t shown_width_ = 0;
  std::chrono::steady_clock::time_point last_;
};

// What the program is doing and for how long, while it does: said once it takes longer than two
// seconds, on a thread of its own, so that one long call shows, too. Gone without a trace from a
// terminal once this goes.
class Activity {
 public:
  explicit Activity(std::string what);
  ~Activity();
  Activity(const Activity&) = delete;
  Activity& operator=(const Activity&) = delete;

  // From now on it does something else.
  void say(std::string what);

 private:
  void watch();

  std::mutex mutex_;
  std::condition_variable ended_;
  bool over_ = false;
  std::string what_;
  std::thread watcher_;
};

// "34/325 points, 10 %, 12.3 a second, 0:24 left": `things` that take about as long each, after
// `seconds`.
std::string done_text(std::size_t done, std::size_t all, double seconds, const char* things);

}  // namespace spillway::cli
