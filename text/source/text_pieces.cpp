#include "text/source/text_pieces.hpp"

#include <algorithm>
#include <string>
#include <utility>

namespace spillway {

namespace {

constexpr std::size_t longest_search = std::size_t{64} << 10;  // for a line end

bool begins_character(char byte) { return (static_cast<unsigned char>(byte) & 0xc0) != 0x80; }

// Where a piece that should end at `nominal` ends in `text`: behind the first line break at or
// after nominal - 1, or where a character begins.
std::size_t find_cut(std::string_view text, std::size_t nominal) {
  if (nominal == 0 || nominal >= text.size()) return std::min(nominal, text.size());
  const std::size_t line_end = text.substr(nominal - 1, longest_search).find('\n');
  if (line_end != std::string_view::npos) return nominal + line_end;
  constexpr std::size_t longest_character = 4;
  for (std::size_t i = 0; i < longest_character && nominal + i < text.size(); ++i)
    if (begins_character(text[nominal + i])) return nominal + i;
  return nominal;
}

std::uint64_t find_cut(const TextFile& file, std::uint64_t nominal) {
  if (nominal == 0 || nominal >= file.bytes()) return std::min(nominal, file.bytes());
  ByteStream stream(file, false, nominal - 1);
  std::string text;
  while (text.size() < longest_search && stream.read(text, longest_search - text.size())) continue;
  return nominal - 1 + find_cut(text, 1);
}

bool is_line_break(char character) { return character == '\n' || character == '\r'; }

// Reads a file from a byte on, and hands out what is between separators.
class Separated {
 public:
  Separated(const TextFile& file, bool gzip, std::string_view separator, std::uint64_t from,
            std::size_t piece_bytes)
      : stream_(file, gzip, from), separator_(separator), piece_bytes_(piece_bytes), base_(from) {}

  // Of the file: what comes next.
  std::uint64_t position() const { return base_ + at_; }

  // Goes to the next separator; false: there is none.
  bool skip_to_separator() {
    while (true) {
      const std::size_t found = buffer_.find(separator_, at_);
      if (found != std::string::npos) {
        at_ = found;
        return true;
      }
      if (ended_) return false;
      at_ = certain_end();
      forget();
      more();
    }
  }

  // Goes behind the separators that begin here, overlap or touch each other.
  void skip_separators() {
    if (separator_.empty()) return;
    std::size_t covered = at_, from = at_;
    while (true) {
      while (!ended_ && buffer_.size() < covered + separator_.size()) more();
      const std::string_view reach =
          std::string_view(buffer_).substr(0, covered + separator_.size());
      const std::size_t next = reach.find(separator_, from);
      if (next == std::string_view::npos) break;
      covered = next + separator_.size();
      from = next + 1;
      if (covered - at_ > ByteStream::block_bytes) {
        at_ = next;
        forget();
        covered = separator_.size();
        from = 1;
      }
    }
    at_ = covered;
    forget();
  }

  // Hands out the document that begins here, and goes behind the separators after it; false: the
  // file ends with it.
  bool read_document(const TakeText& take) {
    bool begins = true;
    for (std::size_t searched = at_;;) {
      const std::size_t found =
          separator_.empty() ? std::string::npos : buffer_.find(separator_, searched);
      const bool complete = found != std::string::npos || ended_;
      const std::size_t end = found != std::string::npos ? found : certain_end();
      const bool is_long = end - at_ > piece_bytes_ + longest_search;
      if (is_long) {
        const std::string_view text = std::string_view(buffer_).substr(at_, end - at_);
        const std::size_t cut = at_ + find_cut(text, piece_bytes_);
        hand_out(cut, begins, false, take);
        begins = false;
        at_ = cut;
        forget();
        searched = at_;
      } else if (complete) {
        hand_out(end, begins, true, take);
        at_ = end;
        if (found == std::string::npos) return false;
        skip_separators();
        return true;
      } else {
        searched = end;
        more();
      }
    }
  }

 private:
  // No separator that is not yet found begins before this.
  std::size_t certain_end() const {
    const std::size_t may_begin = ended_ || separator_.empty() ? 0 : separator_.size() - 1;
    return std::max(at_, buffer_.size() - std::min(buffer_.size(), may_begin));
  }

  void more() { ended_ = !stream_.read(buffer_); }

  void forget() {
    buffer_.erase(0, at_);
    base_ += at_;
    at_ = 0;
  }

  void hand_out(std::size_t end, bool begins, bool ends, const TakeText& take) {
    std::size_t first = at_;
    if (!separator_.empty()) {
      while (begins && first < end && is_line_break(buffer_[first])) ++first;
      while (ends && first < end && is_line_break(buffer_[end - 1])) --end;
    }
    if (begins && ends && first == end) return;
    take({buffer_.substr(first, end - first), begins, ends}, base_ + first);
  }

  ByteStream stream_;
  std::string_view separator_;
  std::size_t piece_bytes_;
  std::string buffer_;
  std::uint64_t base_;  // of the file: where the buffer begins
  std::size_t at_ = 0;  // in the buffer: what comes next
  bool ended_ = false;  // all the rest of the file is in the buffer
};

}  // namespace

void read_piece(const TextFile& file, std::uint64_t begin, std::uint64_t end,
                const TakeText& take) {
  const std::uint64_t first = find_cut(file, begin), last = find_cut(file, end);
  if (first == last) return;
  ByteStream stream(file, false, first);
  std::string text;
  while (text.size() < last - first) {
    if (!stream.read(text, last - first - text.size())) break;
  }
  take({std::move(text), first == 0, last == file.bytes()}, first);
}

void read_separated(const TextFile& file, bool gzip, std::string_view separator,
                    std::uint64_t begin, std::uint64_t end, std::size_t piece_bytes,
                    const TakeText& take) {
  const std::uint64_t from = begin - std::min<std::uint64_t>(begin, separator.size());
  Separated reader(file, gzip, separator, from, piece_bytes);
  if (begin > 0 && !reader.skip_to_separator()) return;
  reader.skip_separators();
  while (reader.position() < end && reader.read_document(take)) continue;
}

}  // namespace spillway
