// Where one record ends and the next begins, without parsing them.
#include <algorithm>
#include <optional>

#include "base/errors.hpp"
#include "text/source/json_record.hpp"

namespace spillway {

namespace {

[[noreturn]] void refuse_length() {
  throw MalformedRecord("a record is longer than 64 MiB",
                        "is this JSONL, one object a line? Cut longer records");
}

bool is_blank(char character) {
  return character == ' ' || character == '\t' || character == '\r' || character == '\n';
}

class Lines : public JsonRecords {
 public:
  Lines(const TextFile& file, bool gzip, std::uint64_t begin, std::uint64_t end)
      : stream_(file, gzip, begin == 0 ? 0 : begin - 1),
        start_(begin == 0 ? 0 : begin - 1),
        end_(end) {
    if (begin > 0) skip_line();  // whose first byte is before the part
  }

  bool next(std::string_view& text, std::uint64_t& offset) override {
    while (start_ < end_) {
      offset = start_;
      const std::size_t line_end = find_end();
      if (line_end == at_ && at_ == buffer_.size()) return false;
      text = std::string_view(buffer_).substr(at_, line_end - at_);
      advance(line_end);
      if (offset == 0 && text.starts_with("\xef\xbb\xbf")) text.remove_prefix(3);
      if (!std::all_of(text.begin(), text.end(), is_blank)) return true;
    }
    return false;
  }

 private:
  // Index in the buffer of the end of the line that begins at at_: of its line break, or of the
  // file. Where the line is too long, goes to the next one and throws.
  std::size_t find_end() {
    std::size_t from = at_;
    while (true) {
      const std::size_t found = buffer_.find('\n', from);
      if (found != std::string::npos) return found;
      if (buffer_.size() - at_ > most_record_bytes) {
        skip_line();
        refuse_length();
      }
      buffer_.erase(0, at_);
      at_ = 0;
      from = buffer_.size();
      if (!stream_.read(buffer_)) return buffer_.size();
    }
  }

  void advance(std::size_t line_end) {
    const std::size_t next = std::min(line_end + 1, buffer_.size());
    start_ += next - at_;
    at_ = next;
  }

  void skip_line() {
    while (true) {
      const std::size_t found = buffer_.find('\n', at_);
      if (found != std::string::npos) return advance(found);
      start_ += buffer_.size() - at_;
      buffer_.clear();
      at_ = 0;
      if (!stream_.read(buffer_)) return;
    }
  }

  ByteStream stream_;
  std::string buffer_;
  std::size_t at_ = 0;         // in the buffer: begin of the next line
  std::uint64_t start_, end_;  // of the file: begin of the next line, end of the part
};

class Elements : public JsonRecords {
 public:
  Elements(const TextFile& file, bool gzip) : stream_(file, gzip) {}

  bool next(std::string_view& text, std::uint64_t& offset) override {
    if (over_) return false;
    forget();
    offset = base_;
    over_ = true;  // unless an element is found
    if (!begun_) {
      constexpr std::string_view mark = "\xef\xbb\xbf";
      if (fill(mark.size() - 1) && buffer_.starts_with(mark)) at_ = mark.size();
      if (peek() != '[') fail("the file does not begin with [");
      ++at_;
      begun_ = true;
      if (peek() == ']') return end_of_array();
    } else {
      if (peek() == ']') return end_of_array();
      if (peek() != ',') fail("an element of the list is not followed by , or ]");
      ++at_;
    }
    peek();
    offset = base_ + at_;
    const std::size_t first = at_;
    find_end(first);
    if (at_ == first) fail("the list holds nothing where an element should be");
    text = std::string_view(buffer_).substr(first, at_ - first);
    over_ = false;
    return true;
  }

 private:
  [[noreturn]] static void fail(const char* what) {
    throw MalformedRecord(what, "the file is one JSON list of objects: [{...}, {...}]");
  }

  // Makes buffer_[index] be there; false: the file ends before it.
  bool fill(std::size_t index) {
    while (index >= buffer_.size()) {
      if (!stream_.read(buffer_)) return false;
    }
    return true;
  }

  // The next character that is not blank; nothing: the file ends. What is before it is forgotten.
  std::optional<char> next_character() {
    while (true) {
      if (at_ >= buffer_.size()) forget();
      if (!fill(at_)) return {};
      if (!is_blank(buffer_[at_])) return buffer_[at_];
      ++at_;
    }
  }

  char peek() {
    const std::optional<char> character = next_character();
    if (!character) fail("the list has no end: the file is cut off");
    return *character;
  }

  void forget() {
    buffer_.erase(0, at_);
    base_ += at_;
    at_ = 0;
  }

  // Moves at_ to the end of the element that begins at `first`.
  void find_end(std::size_t first) {
    int depth = 0;
    bool in_string = false;
    for (at_ = first; fill(at_); ++at_) {
      if (at_ - first > most_record_bytes) refuse_length();
      const char character = buffer_[at_];
      if (in_string) {
        if (character == '\\')
          ++at_;
        else if (character == '"')
          in_string = false;
      } else if (character == '"') {
        in_string = true;
      } else if (character == '{' || character == '[') {
        ++depth;
      } else if (depth > 0 && (character == '}' || character == ']')) {
        --depth;
      } else if (depth == 0 && (character == ',' || character == ']')) {
        return;
      }
    }
    fail("the list has no end: the file is cut off");
  }

  bool end_of_array() {
    ++at_;
    if (next_character()) fail("something follows the list");
    return false;
  }

  ByteStream stream_;
  std::string buffer_;
  std::size_t at_ = 0;      // in the buffer: what is read next
  std::uint64_t base_ = 0;  // of the file: where the buffer begins
  bool begun_ = false, over_ = false;
};

}  // namespace

std::unique_ptr<JsonRecords> lines_of(const TextFile& file, bool gzip, std::uint64_t begin,
                                      std::uint64_t end) {
  return std::make_unique<Lines>(file, gzip, begin, end);
}

std::unique_ptr<JsonRecords> elements_of(const TextFile& file, bool gzip) {
  return std::make_unique<Elements>(file, gzip);
}

}  // namespace spillway
