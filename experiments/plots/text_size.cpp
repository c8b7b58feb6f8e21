#include "experiments/plots/text_size.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <utility>

namespace spillway {

namespace {

// Advance widths of the characters U+0020 to U+007E in DejaVu Sans 2.37 and DejaVu Sans Bold, in
// 1/2048 of the font's size: the table hmtx of DejaVuSans.ttf and DejaVuSans-Bold.ttf.
constexpr std::array<std::uint16_t, 95> regular_widths = {
    651,  821,  942,  1716, 1303, 1946, 1597, 563,  799,  799,  1024, 1716, 651,  739,  651,  690,
    1303, 1303, 1303, 1303, 1303, 1303, 1303, 1303, 1303, 1303, 690,  690,  1716, 1716, 1716, 1087,
    2048, 1401, 1405, 1430, 1577, 1294, 1178, 1587, 1540, 604,  604,  1343, 1141, 1767, 1532, 1612,
    1235, 1612, 1423, 1300, 1251, 1499, 1401, 2025, 1403, 1251, 1403, 799,  690,  799,  1716, 1024,
    1024, 1255, 1300, 1126, 1300, 1260, 721,  1300, 1298, 569,  569,  1186, 569,  1995, 1298, 1253,
    1300, 1300, 842,  1067, 803,  1298, 1212, 1675, 1212, 1212, 1075, 1303, 690,  1303, 1716};
constexpr std::array<std::uint16_t, 95> bold_widths = {
    713,  934,  1067, 1716, 1425, 2052, 1786, 627,  936,  936,  1071, 1716, 778,  850,  778,  748,
    1425, 1425, 1425, 1425, 1425, 1425, 1425, 1425, 1425, 1425, 819,  819,  1716, 1716, 1716, 1188,
    2048, 1585, 1561, 1503, 1700, 1399, 1399, 1681, 1714, 762,  762,  1587, 1305, 2038, 1714, 1741,
    1501, 1741, 1577, 1475, 1397, 1663, 1585, 2259, 1579, 1483, 1485, 936,  748,  936,  1716, 1024,
    1024, 1382, 1466, 1214, 1466, 1389, 891,  1466, 1458, 702,  702,  1362, 702,  2134, 1458, 1407,
    1466, 1466, 1010, 1219, 979,  1458, 1335, 1892, 1321, 1335, 1192, 1458, 748,  1458, 1716};
constexpr double units_per_size = 2048;
// Of any other character: as wide as the widest letters, and twice that from the scripts of East
// Asia on.
constexpr double other_width = 2048, wide_width = 2 * 2048;
constexpr std::uint32_t first_wide = 0x1100;

// One character of UTF-8 text, which is taken off; a byte that begins none is a character.
struct Character {
  std::uint32_t code = 0;
  std::size_t bytes = 1;
};

Character first_of(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = byte(0);
  const std::size_t bytes = lead < 0xC0 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  if (bytes == 1 || bytes > text.size()) return {lead, 1};
  std::uint32_t code = lead & (0xFFu >> (bytes + 1));
  for (std::size_t i = 1; i < bytes; ++i) code = code << 6 | (byte(i) & 0x3Fu);
  return {code, bytes};
}

double width_of(std::uint32_t code, bool bold) {
  if (code >= 0x20 && code < 0x7F) return (bold ? bold_widths : regular_widths)[code - 0x20];
  const bool is_sign = code >= 0x2000 && code < 0x2E80;  // dashes, arrows, mathematical signs
  return code >= first_wide && !is_sign ? wide_width : other_width;
}

bool ends_part(char c) { return std::string_view(",/=:+-").find(c) != std::string_view::npos; }

// How many bytes of a word that is wider than a line stand on it: at least one character.
std::size_t fitting(std::string_view word, double width, double font_size, bool bold) {
  std::size_t bytes = 0, part = 0;
  while (bytes < word.size()) {
    const std::size_t next = bytes + first_of(word.substr(bytes)).bytes;
    if (bytes > 0 && text_width(word.substr(0, next), font_size, bold) > width) break;
    bytes = next;
    if (ends_part(word[bytes - 1])) part = bytes;
  }
  return part > 0 ? part : bytes;
}

// Adds the words of one paragraph to `lines`, from a new line on.
void wrap_paragraph(std::string_view text, double width, double font_size, bool bold,
                    std::vector<std::string>& lines) {
  std::string line;
  bool has_word = false;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find(' '), text.size());
    std::string_view word = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (word.empty()) continue;
    const std::string longer = has_word ? line + " " + std::string(word) : std::string(word);
    if (text_width(longer, font_size, bold) <= width) {
      line = longer;
      has_word = true;
      continue;
    }
    if (has_word) lines.push_back(std::exchange(line, ""));
    while (text_width(word, font_size, bold) > width) {
      const std::size_t bytes = fitting(word, width, font_size, bold);
      if (bytes >= word.size()) break;
      lines.emplace_back(word.substr(0, bytes));
      word.remove_prefix(bytes);
    }
    line = word;
    has_word = true;
  }
  lines.push_back(line);
}

}  // namespace

double text_width(std::string_view text, double font_size, bool bold) {
  double units = 0;
  while (!text.empty()) {
    const Character character = first_of(text);
    units += width_of(character.code, bold);
    text.remove_prefix(character.bytes);
  }
  return units / units_per_size * font_size;
}

std::vector<std::string> wrapped(const std::string& text, double width, double font_size,
                                 bool bold) {
  std::vector<std::string> lines;
  std::size_t begin = 0;
  while (begin <= text.size()) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    wrap_paragraph(std::string_view(text).substr(begin, end - begin), width, font_size, bold,
                   lines);
    begin = end + 1;
  }
  return lines;
}

}  // namespace spillway
