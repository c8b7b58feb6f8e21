// Values as bytes, one after the other, little-endian: what records and headers on the drive are
// written with, and read back from bytes that may be anything.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <type_traits>

#include "base/errors.hpp"

namespace spillway {

static_assert(std::endian::native == std::endian::little, "what is on the drive is little-endian");

// Appends to `to`, or only counts where that is empty.
class ByteWriter {
 public:
  explicit ByteWriter(std::span<std::byte> to) : to_(to) {}
  template <typename T>
  void put(const T& value) {
    static_assert(std::is_trivially_copyable_v<T>);
    bytes(&value, sizeof(value));
  }
  void text(const std::string& value) {
    put(std::uint64_t{value.size()});
    bytes(value.data(), value.size());
  }
  std::size_t size() const { return size_; }

 private:
  void bytes(const void* from, std::size_t count) {
    if (!to_.empty() && count > 0) {
      SPILLWAY_ASSERT(size_ + count <= to_.size(), "the bytes outgrew their place");
      std::memcpy(to_.data() + size_, from, count);
    }
    size_ += count;
  }
  std::span<std::byte> to_;
  std::size_t size_ = 0;
};

// Reads what a ByteWriter wrote. Past the end everything is zero or empty, and good() is false.
class ByteReader {
 public:
  explicit ByteReader(std::span<const std::byte> from) : from_(from) {}
  template <typename T>
  T get() {
    static_assert(std::is_trivially_copyable_v<T>);
    T value{};
    if (take(sizeof(value))) std::memcpy(&value, from_.data() + at_ - sizeof(value), sizeof(value));
    return value;
  }
  std::string text() {
    const auto size = static_cast<std::size_t>(get<std::uint64_t>());
    if (!take(size)) return {};
    return {reinterpret_cast<const char*>(from_.data()) + at_ - size, size};
  }
  // The count of values that follow, of at least `bytes_each`: none where they cannot all be there.
  std::size_t count(std::size_t bytes_each) {
    const auto count = get<std::uint64_t>();
    if (count > (from_.size() - at_) / bytes_each) good_ = false;
    return good_ ? static_cast<std::size_t>(count) : 0;
  }
  bool good() const { return good_; }

 private:
  bool take(std::size_t bytes) {
    good_ = good_ && bytes <= from_.size() - at_;
    if (good_) at_ += bytes;
    return good_;
  }
  std::span<const std::byte> from_;
  std::size_t at_ = 0;
  bool good_ = true;
};

}  // namespace spillway
