// The three kinds of failure a user can meet, and the one that is ours.
//
//   InputError   your input: what is wrong, where (file:line), and a hint        exit code 2
//   FitError     it does not fit: tier, shortfall, what would make it fit        exit code 3
//   MachineError your machine: what failed, the errno or library code, a remedy  exit code 1
//   bug()        our bug: a broken invariant; stays on in release builds         abort
//
// Library code throws, and names settings, not flags (base/message.hpp); only cli/ prints and
// chooses the exit code.
#pragma once

#include <stdexcept>
#include <string>
#include <utility>

#include "base/message.hpp"

namespace spillway {

class Error : public std::runtime_error {
 public:
  // what() spells settings plainly; whoever shows the error may write them otherwise.
  Error(Message what, Message hint)
      : std::runtime_error(what.text()),
        what_(std::move(what)),
        advice_(std::move(hint)),
        hint_(advice_.text()) {}
  const Message& message() const { return what_; }
  // What the user can do about it; may be empty. hint() spells settings plainly.
  const Message& advice() const { return advice_; }
  const std::string& hint() const { return hint_; }

 private:
  Message what_, advice_;
  std::string hint_;
};

class InputError : public Error {
 public:
  explicit InputError(Message what, Message hint = {}) : Error(std::move(what), std::move(hint)) {}
  // `file:line: what`; line 0 leaves the line out, no file all of the place.
  InputError(const std::string& file, int line, const Message& what, Message hint = {});
};

class FitError : public Error {
 public:
  explicit FitError(Message what, Message hint = {}) : Error(std::move(what), std::move(hint)) {}
};

class MachineError : public Error {
 public:
  explicit MachineError(Message what, Message hint = {})
      : Error(std::move(what), std::move(hint)) {}
  // Appends the meaning of `error_number` (an errno) and, where one is known, a remedy.
  static MachineError from_errno(const Message& what, int error_number, Message hint = {});
};

// Reports a broken invariant of Spillway itself and aborts.
[[noreturn]] void bug(const char* condition, const char* file, int line,
                      const std::string& detail = "");

}  // namespace spillway

#define SPILLWAY_ASSERT(condition, ...)                                                           \
  do {                                                                                            \
    if (!(condition)) ::spillway::bug(#condition, __FILE__, __LINE__ __VA_OPT__(, ) __VA_ARGS__); \
  } while (false)
