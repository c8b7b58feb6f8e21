// One fixed run of host memory, taken at start-up and given back at the end: nothing allocates in
// between.
//
// Anonymous memory (not a file, not cudaHostAlloc), because that is what both cudaHostRegister and
// io_uring accept. Every page is touched at construction, so that a machine without the memory says
// so before the first step. Fresh memory holds a pattern that reads as NaN in bf16 and in fp32: a
// value used before it was written poisons the loss instead of passing for a zero.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "exec/run/memory_pieces.hpp"

namespace spillway {

class Arena {
 public:
  Arena() = default;  // empty
  // `bytes` is rounded up to 4096; `purpose` is named in errors ("host memory"). Throws
  // MachineError when the machine cannot give it. The start is aligned to 2 MiB, and huge pages are
  // asked for. `progress` is told how much has been touched.
  explicit Arena(std::uint64_t bytes, const std::string& purpose = "memory",
                 const MemoryProgress& progress = {});
  Arena(Arena&& other) noexcept;
  Arena& operator=(Arena&& other) noexcept;
  ~Arena();

  std::byte* data() const { return data_; }
  std::uint64_t size() const { return bytes_; }
  std::span<std::byte> span() const { return {data_, bytes_}; }

  // One past the last byte that no longer holds the pattern; 0 when all do. Reads from the end. A
  // byte written with its own pattern value cannot be told from an unwritten one.
  std::uint64_t highest_written() const;

  // The pattern: byte i of a fresh arena is poison(i). 0xffe5 as bf16 and 0xffe5ffe5 as fp32 are
  // quiet NaNs.
  static constexpr std::byte poison(std::uint64_t i) { return std::byte(i % 2 == 0 ? 0xe5 : 0xff); }

 private:
  std::byte* data_ = nullptr;
  std::uint64_t bytes_ = 0;
};

}  // namespace spillway
