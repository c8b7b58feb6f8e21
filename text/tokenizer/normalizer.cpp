#include "text/tokenizer/normalizer.hpp"

#include <utf8proc.h>

#include <new>
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

void append_composed(std::string_view text, std::string& result) {
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
    append_composed(text.substr(begin, at - begin), result);
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
