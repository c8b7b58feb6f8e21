// Text that a parser walks through, with word of how far it got, so that an error can name its
// line.
#pragma once

#include <algorithm>
#include <iterator>
#include <string>

namespace spillway::trace_format {

struct TrackedIterator {
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;

  const char* at;
  const char** reached;

  reference operator*() const { return *at; }
  TrackedIterator& operator++() {
    *reached = ++at;
    return *this;
  }
  bool operator==(const TrackedIterator& other) const { return at == other.at; }
  bool operator!=(const TrackedIterator& other) const { return at != other.at; }
};

// The line on which a parser is that has read up to `reached`: a number is known to be over only at
// the character after it.
inline int line_of(const std::string& text, const char* reached) {
  const char* const last = reached > text.data() ? reached - 1 : reached;
  return static_cast<int>(1 + std::count(text.data(), last, '\n'));
}

}  // namespace spillway::trace_format
