// A hash of values in order: the same on every machine.
#pragma once

#include <concepts>
#include <cstdint>
#include <memory>
#include <string_view>

namespace spillway {

class ContentHash {
 public:
  ContentHash();
  ~ContentHash();

  void text(std::string_view bytes);  // with its length
  void number(std::integral auto value) { add(static_cast<std::uint64_t>(value)); }
  std::uint64_t value() const;

 private:
  void add(std::uint64_t value);

  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace spillway
