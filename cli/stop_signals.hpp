// Ctrl-C and SIGTERM while training: the first one asks for a stop after the running step, the
// second one ends the program at once; while exporting: the first one removes what is half written.
// A program that was stopped ends with 128 + the signal's number, as shells have it: 130 for
// Ctrl-C, 143 for SIGTERM.
#pragma once

#include <functional>
#include <mutex>
#include <string>
#include <thread>

#include "base/errors.hpp"

namespace spillway::cli {

// The run was stopped by a signal before there was anything to keep.
class Interrupted : public Error {
 public:
  Interrupted(const std::string& what, std::string hint, int exit_code)
      : Error(what, std::move(hint)), exit_code_(exit_code) {}
  int exit_code() const { return exit_code_; }

 private:
  int exit_code_;
};

class StopSignals {
 public:
  // Takes over both signals until it goes.
  StopSignals();
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  // A signal has come.
  static bool came();
  // 128 + the number of the first signal; 0 where none has come.
  static int exit_code();
  // Before training, and while exporting: throws Interrupted if a signal has come, "interrupted
  // DURING", with what is left as a hint.
  static void check(const std::string& during);
  // Whether a run that has been trained before is being prepared: what is left is its last commit.
  static void go_on_with_run(bool goes_on);

  // What the program does, for what the signal handler says: preparing, with things to be put back;
  // planning, with none, so that the first signal ends the program at once; training with or
  // without commits; writing down what was trained; or exporting. Entering `planning` throws
  // Interrupted if a signal has come.
  enum class Phase { preparing, planning, training_with_commits, training, finishing, exporting };
  static void enter(Phase phase);

  // Called on a thread of its own when the first signal comes; at once if it has come already.
  // Empty: nobody is called from the return on.
  void on_stop(std::function<void()> listener);
  // The same for as long as the result is there, whatever ends it.
  class Listening {
   public:
    Listening(StopSignals& signals, std::function<void()> listener) : signals_(signals) {
      signals_.on_stop(std::move(listener));
    }
    ~Listening() { signals_.on_stop({}); }
    Listening(const Listening&) = delete;
    Listening& operator=(const Listening&) = delete;

   private:
    StopSignals& signals_;
  };

 private:
  void watch();

  std::mutex mutex_;
  std::function<void()> listener_;
  bool told_ = false;
  std::thread watcher_;
};

}  // namespace spillway::cli
