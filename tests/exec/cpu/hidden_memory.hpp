// Memory that only a device can reach, on a machine without one: the same pages at two addresses,
// of which the one that is given out faults when it is read or written.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace spillway::test {

class HiddenMemory {
 public:
  // Filled with the pattern of a fresh Arena. Throws MachineError.
  explicit HiddenMemory(std::uint64_t bytes);
  ~HiddenMemory();
  HiddenMemory(const HiddenMemory&) = delete;
  HiddenMemory& operator=(const HiddenMemory&) = delete;

  // The address to give out: no byte of it may be touched.
  std::span<std::byte> span() const { return {hidden_, bytes_}; }
  // What a device uses: an address given out becomes one that can be touched, all others (null
  // among them) stay what they are.
  template <class Byte>
  Byte* reach(Byte* address) const {
    const bool inside = address >= hidden_ && address < hidden_ + bytes_;
    return inside ? open_ + (address - hidden_) : address;
  }
  // One past the last byte that no longer holds the pattern.
  std::uint64_t highest_written() const;

 private:
  std::byte* map(int file, int protection) const;

  std::uint64_t bytes_;
  std::byte* hidden_ = nullptr;
  std::byte* open_ = nullptr;
};

}  // namespace spillway::test
