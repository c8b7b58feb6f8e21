#include "base/text.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cstdint>

namespace spillway {

namespace {

// One character of UTF-8 at the start of `text`; `bytes` 1 and not valid where there is none.
struct Character {
  std::uint32_t code = 0;
  std::size_t bytes = 1;
  bool valid = false;
};

Character first_character(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = byte(0);
  if (lead < 0x80) return {lead, 1, true};
  const std::size_t bytes = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
  if (lead < 0xc2 || lead > 0xf4 || bytes > text.size()) return {};
  std::uint32_t code = lead & (0xffu >> (bytes + 1));
  for (std::size_t i = 1; i < bytes; ++i) {
    if ((byte(i) & 0xc0u) != 0x80u) return {};
    code = (code << 6) | (byte(i) & 0x3fu);
  }
  const bool overlong = (bytes == 3 && code < 0x800) || (bytes == 4 && code < 0x10000);
  const bool surrogate = code >= 0xd800 && code <= 0xdfff;
  if (overlong || surrogate || code > 0x10ffff) return {};
  return {code, bytes, true};
}

bool is_control(std::uint32_t code) { return code < 0x20 || (code >= 0x7f && code < 0xa0); }

// Characters that turn the writing direction, break lines, take no room or are no characters:
// Unicode's Cf, Zl, Zp and noncharacters, the fillers that look like a blank, variation selectors.
bool is_invisible(std::uint32_t code) {
  struct Range {
    std::uint32_t first, last;
  };
  static constexpr std::array<Range, 20> ranges = {
      {{0x00ad, 0x00ad}, {0x034f, 0x034f}, {0x0600, 0x0605},   {0x061c, 0x061c},
       {0x06dd, 0x06dd}, {0x070f, 0x070f}, {0x115f, 0x1160},   {0x17b4, 0x17b5},
       {0x180b, 0x180f}, {0x200b, 0x200f}, {0x2028, 0x202e},   {0x2060, 0x206f},
       {0x3164, 0x3164}, {0xfdd0, 0xfdef}, {0xfe00, 0xfe0f},   {0xfeff, 0xfeff},
       {0xffa0, 0xffa0}, {0xfff0, 0xfffb}, {0x1d173, 0x1d17a}, {0xe0000, 0xe0fff}}};
  if ((code & 0xfffeu) == 0xfffeu) return true;
  return std::any_of(ranges.begin(), ranges.end(), [code](const Range& range) {
    return code >= range.first && code <= range.last;
  });
}

std::string spelled_out(std::string_view text, bool keep_line_breaks) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const Character next = first_character(text);
    const bool kept = next.valid && ((keep_line_breaks && next.code == '\n') ||
                                     (!is_control(next.code) && !is_invisible(next.code)));
    if (kept) {
      out += text.substr(0, next.bytes);
    } else if (!next.valid) {
      out += fmt::format("\\x{:02x}", static_cast<unsigned char>(text[0]));
    } else if (next.code < 0x10000) {
      out += fmt::format("\\u{:04x}", next.code);
    } else {  // a surrogate pair, as in JSON
      const std::uint32_t above = next.code - 0x10000;
      out += fmt::format("\\u{:04x}\\u{:04x}", 0xd800 + (above >> 10), 0xdc00 + (above & 0x3ff));
    }
    text.remove_prefix(next.bytes);
  }
  return out;
}

}  // namespace

std::optional<std::string> find_unprintable(std::string_view text) {
  while (!text.empty()) {
    const Character next = first_character(text);
    if (!next.valid) return "bytes that are not UTF-8";
    if (is_control(next.code)) return fmt::format("the control character U+{:04X}", next.code);
    if (is_invisible(next.code)) return fmt::format("the invisible character U+{:04X}", next.code);
    text.remove_prefix(next.bytes);
  }
  return std::nullopt;
}

std::string printable(std::string_view text) { return spelled_out(text, false); }

std::string printable_lines(std::string_view text) { return spelled_out(text, true); }

std::string file_name_from(std::string_view name) {
  constexpr std::size_t longest = 80;
  std::string out;
  for (const char c : name) {
    const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    const bool kept = letter || (c >= '0' && c <= '9') || c == '-' || c == '_' || c == '.';
    const char next = kept ? c : '-';
    // A hidden file, an option of a command, or a folder above: none begins a name.
    if (out.empty() && (next == '.' || next == '-')) continue;
    if (next == '-' && out.back() == '-') continue;
    out += next;
    if (out.size() == longest) break;
  }
  while (!out.empty() && (out.back() == '-' || out.back() == '.')) out.pop_back();
  return out.empty() ? "unnamed" : out;
}

bool nested_deeper(std::string_view json, int most) {
  int depth = 0;
  bool in_string = false;
  for (std::size_t i = 0; i < json.size(); ++i) {
    const char c = json[i];
    if (in_string && c == '\\') {
      ++i;
    } else if (c == '"') {
      in_string = !in_string;
    } else if (!in_string && (c == '[' || c == '{')) {
      if (++depth > most) return true;
    } else if (!in_string && (c == ']' || c == '}')) {
      --depth;
    }
  }
  return false;
}

}  // namespace spillway
