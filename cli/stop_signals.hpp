// Ctrl-C and SIGTERM while training: the first one asks for a stop after the running step, the
// second one ends the program at once.
#pragma once

#include <functional>
#include <mutex>
#include <thread>

namespace spillway::cli {

class StopSignals {
 public:
  // Takes over both signals until it goes.
  StopSignals();
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  // A signal has come.
  static bool came();
  // Called on a thread of its own when the first signal comes; at once if it has come already.
  // Empty: nobody is called from the return on.
  void on_stop(std::function<void()> listener);

 private:
  void watch();

  std::mutex mutex_;
  std::function<void()> listener_;
  bool told_ = false;
  std::thread watcher_;
};

}  // namespace spillway::cli
