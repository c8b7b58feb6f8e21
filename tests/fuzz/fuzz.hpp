// What the targets of this folder share.
//
// A target is one function of any bytes. It may refuse them by an error that a user may meet
// (base/errors.hpp), and has found a bug when anything else happens: another exception, an
// assertion, a signal, a leak, memory or time without a bound, or a property that does not hold.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

#include "base/errors.hpp"

namespace spillway::fuzz {

using Bytes = std::span<const std::uint8_t>;

inline std::string text_of(Bytes bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

inline Bytes bytes_of(std::string_view text) {
  return {reinterpret_cast<const std::uint8_t*>(text.data()), text.size()};
}

// True: `body` ended by itself. False: it threw InputError, MachineError or FitError.
template <class Body>
bool accepted(const Body& body) {
  try {
    body();
    return true;
  } catch (const Error&) {
    return false;
  }
}

// Reports a property that does not hold, and aborts.
[[noreturn]] void fail(std::string_view property);
inline void require(bool holds, std::string_view property) {
  if (!holds) fail(property);
}

// A folder in memory for what can only be read from a file; gone at the end of the process.
class ScratchFolder {
 public:
  ScratchFolder();
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;
  ~ScratchFolder();
  // Writes a file of these bytes, in place of one of that name, and returns its path.
  std::filesystem::path write(const std::string& name, Bytes bytes) const;
  std::filesystem::path path() const { return path_; }

 private:
  std::filesystem::path path_;
};

// Takes numbers off the front of the input; zeros once it is used up.
class Choices {
 public:
  explicit Choices(Bytes bytes) : rest_(bytes) {}
  std::uint64_t below(std::uint64_t count);  // of 1 to 8 bytes, as many as `count` needs
  bool one_in(std::uint64_t count) { return below(count) == count - 1; }
  Bytes rest() const { return rest_; }

 private:
  Bytes rest_;
};

using Target = void (*)(Bytes);
// For replay.cpp, which has all targets in one program.
bool add_target(const char* name, Target target);

}  // namespace spillway::fuzz

// Begins the function of a target: SPILLWAY_FUZZ_TARGET(trace) { ... input ... }
#ifdef SPILLWAY_LIBFUZZER
#define SPILLWAY_FUZZ_ENTRY(name)                                                     \
  extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);  \
  extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) { \
    fuzz_##name({data, size});                                                        \
    return 0;                                                                         \
  }
#else
#define SPILLWAY_FUZZ_ENTRY(name) \
  static const bool added_##name = spillway::fuzz::add_target(#name, fuzz_##name);
#endif
#define SPILLWAY_FUZZ_TARGET(name)                \
  static void fuzz_##name(spillway::fuzz::Bytes); \
  SPILLWAY_FUZZ_ENTRY(name)                       \
  static void fuzz_##name(spillway::fuzz::Bytes input)
