// How a long run shows how far it is: one line rewritten on a terminal, plain lines now and then
// elsewhere.
#pragma once

#include <chrono>
#include <string>

namespace spillway::cli {

class Progress {
 public:
  // `enabled` false: says nothing. Writes to standard error.
  explicit Progress(bool enabled);
  ~Progress();

  // Shows `line`; off a terminal at most every few seconds, unless `important`.
  void show(const std::string& line, bool important = false);
  // Ends the rewritten line, so that what is printed next starts on a line of its own.
  void finish();

 private:
  bool enabled_;
  bool terminal_;
  bool open_ = false;
  std::size_t shown_width_ = 0;
  std::chrono::steady_clock::time_point last_;
};

// "1:02:03", "4:05", "0:07"
std::string format_clock(double seconds);

}  // namespace spillway::cli
