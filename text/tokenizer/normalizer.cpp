#include "text/tokenizer/normalizer.hpp"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <utility>

#include "text/tokenizer/utf8.hpp"

namespace spillway {

namespace {

// Characters that are composed, begin a combination and never end one: normal forms on both sides
// of the place before such a character do not depend on each other. Not all that are: those of
// scripts that are common, and only whole blocks.
bool stands_alone(char32_t character) {
  return character < 0x300 || (character >= 0x400 && character < 0x483) ||
         (character >= 0x3400 && character < 0xa000) ||
         (character >= 0xac00 && character < 0xd7a4) ||
         (character >= 0x1f000 && character < 0x1fb00);
}

// Characters that combine with others since a version of Unicode after 9.0, up to 14.0. Hugging
// Face's tokenizers compose by Unicode 9.0, in which nothing combines with them: models have learnt
// from texts in which they stay where they are, and the characters on both sides apart.
bool is_left_in_place(char32_t character) {
  struct Range {
    char32_t first, last;
  };
  static constexpr std::array<Range, 33> ranges = {
      {{0x07fd, 0x07fd},   {0x0898, 0x089f},   {0x08ca, 0x08d3},   {0x09fe, 0x09fe},
       {0x0c3c, 0x0c3c},   {0x0d3b, 0x0d3c},   {0x0eba, 0x0eba},   {0x1715, 0x1715},
       {0x1abf, 0x1ace},   {0x1df6, 0x1dfa},   {0xa82c, 0xa82c},   {0x10d24, 0x10d27},
       {0x10eab, 0x10eac}, {0x10f46, 0x10f50}, {0x10f82, 0x10f85}, {0x11070, 0x11070},
       {0x1133b, 0x1133b}, {0x1145e, 0x1145e}, {0x11839, 0x1183a}, {0x11930, 0x11930},
       {0x1193d, 0x1193e}, {0x11943, 0x11943}, {0x119e0, 0x119e0}, {0x11a34, 0x11a34},
       {0x11a47, 0x11a47}, {0x11a99, 0x11a99}, {0x11d42, 0x11d42}, {0x11d44, 0x11d45},
       {0x11d97, 0x11d97}, {0x16ff0, 0x16ff1}, {0x1e130, 0x1e136}, {0x1e2ae, 0x1e2ae},
       {0x1e2ec, 0x1e2ef}}};
  return character >= ranges.front().first &&
         std::any_of(ranges.begin(), ranges.end(), [&](const Range& range) {
           return character >= range.first && character <= range.last;
         });
}

void append_composed(std::string_view text, std::string& result) {
  if (text.empty()) return;
  constexpr auto options = static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE);
  const auto bytes = reinterpret_cast<const utf8proc_uint8_t*>(text.data());
  const auto length = static_cast<utf8proc_ssize_t>(text.size());
  std::vector<utf8proc_int32_t> characters(text.size() + 4);
  while (true) {
    const utf8proc_ssize_t needed =
        utf8proc_decompose(bytes, length, characters.data(),
                           static_cast<utf8proc_ssize_t>(characters.size()) - 1, options);
    if (needed < 0) {  // a character that this version of Unicode refuses stays as it is
      result += text;
      return;
    }
    if (static_cast<std::size_t>(needed) < characters.size()) {
      const utf8proc_ssize_t count = utf8proc_normalize_utf32(characters.data(), needed, options);
      for (utf8proc_ssize_t i = 0; i < count; ++i)
        append_utf8(static_cast<char32_t>(characters[static_cast<std::size_t>(i)]), result);
      return;
    }
    characters.resize(static_cast<std::size_t>(needed) + 2);
  }
}

// Composes what lies between characters that are left in place.
void append_parts(std::string_view text, std::string& result) {
  std::size_t begin = 0;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t length = utf8_length(text[at]);
    if (is_left_in_place(utf8_character(text.substr(at)))) {
      append_composed(text.substr(begin, at - begin), result);
      result += text.substr(at, length);
      begin = at + length;
    }
    at += length;
  }
  append_composed(text.substr(begin), result);
}

void replace_all(const std::string& pattern, const std::string& content, std::string& text) {
  std::size_t at = text.find(pattern);
  if (at == std::string::npos) return;
  std::string result;
  result.reserve(text.size() + text.size() / 4);
  std::size_t done = 0;
  for (; at != std::string::npos; at = text.find(pattern, done)) {
    result.append(text, done, at - done);
    result += content;
    done = at + pattern.size();
  }
  result.append(text, done);
  text = std::move(result);
}

}  // namespace

void append_nfc(std::string_view text, std::string& result) {
  std::size_t plain = 0;  // from here on nothing has been appended
  std::size_t alone = 0;  // the last character that stands alone
  std::size_t at = 0;
  const auto skip_alone = [&] {
    while (at < text.size() && stands_alone(utf8_character(text.substr(at)))) {
      alone = at;
      at += utf8_length(text[at]);
    }
  };
  while (true) {
    skip_alone();
    if (at == text.size()) break;
    const std::size_t begin = std::max(alone, plain);
    while (at < text.size() && !stands_alone(utf8_character(text.substr(at))))
      at += utf8_length(text[at]);
    result += text.substr(plain, begin - plain);
    append_parts(text.substr(begin, at - begin), result);
    plain = alone = at;
  }
  result += text.substr(plain);
}

void normalize(const std::vector<NormalizerStep>& steps, bool prepend, std::string& text) {
  for (const NormalizerStep& step : steps) {
    switch (step.kind) {
      case NormalizerStep::Kind::nfc: {
        std::string result;
        result.reserve(text.size());
        append_nfc(text, result);
        text = std::move(result);
        break;
      }
      case NormalizerStep::Kind::prepend:
        if (prepend && !text.empty()) text.insert(0, step.content);
        break;
      case NormalizerStep::Kind::replace:
        replace_all(step.pattern, step.content, text);
        break;
    }
  }
}

}  // namespace spillway
