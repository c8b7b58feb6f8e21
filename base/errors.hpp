// The three kinds of failure a user can meet, and the one that is ours.
//
//   InputError   your input: what is wrong, where (file:line), and a hint        exit code 2
//   FitError     it does not fit: tier, shortfall, what would make it fit        exit code 3
//   MachineError your machine: what failed, the errno or library code, a remedy  exit code 1
//   bug()        our bug: a broken invariant; stays on in release builds         abort
//
// Library code throws; only cli/ prints and chooses the exit code.
#pragma once

#include <stdexcept>
#include <string>

namespace spillway {

class Error : public std::runtime_error {
 public:
  Error(const std::string& what, std::string hint)
      : std::runtime_error(what), hint_(std::move(hint)) {}
  // What the user can do about it; may be empty.
  const std::string& hint() const { return hint_; }

 private:
  std::string hint_;
};

class InputError : public Error {
 public:
  explicit InputError(const std::string& what, std::string hint = "")
      : Error(what, std::move(hint)) {}
  // `file:line: what`; line 0 leaves the line out.
  InputError(const std::string& file, int line, const std::string& what, std::string hint = "");
};

class FitError : public Error {
 public:
  explicit FitError(const std::string& what, std::string hint = "")
      : Error(what, std::move(hint)) {}
};

class MachineError : public Error {
 public:
  explicit MachineError(const std::string& what, std::string hint = "")
      : Error(what, std::move(hint)) {}
  // Appends the meaning of `error_number` (an errno) and, where one is known, a remedy.
  static MachineError from_errno(const std::string& what, int error_number, std::string hint = "");
};

// Reports a broken invariant of Spillway itself and aborts.
[[noreturn]] void bug(const char* condition, const char* file, int line,
                      const std::string& detail = "");

}  // namespace spillway

#define SPILLWAY_ASSERT(condition, ...)                                                           \
  do {                                                                                            \
    if (!(condition)) ::spillway::bug(#condition, __FILE__, __LINE__ __VA_OPT__(, ) __VA_ARGS__); \
  } while (false)
