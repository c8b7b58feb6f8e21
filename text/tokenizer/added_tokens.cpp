#include "text/tokenizer/added_tokens.hpp"

#include <algorithm>
#include <cstdint>

#include "text/tokenizer/utf8.hpp"

namespace spillway {

namespace {

constexpr const char* origin = "added tokens";

// What regular expressions of Rust call \w.
bool is_of_word(std::string_view character) {
  static const SplitPattern pattern(R"([\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\p{Join_Control}])", origin);
  SplitPattern::Match match;
  return SplitPattern::Matcher(pattern).find(character, 0, match);
}

// Unicode's property White_Space.
bool is_white_space(std::string_view character) {
  const char32_t code = utf8_character(character);
  return (code >= 0x09 && code <= 0x0d) || code == 0x20 || code == 0x85 || code == 0xa0 ||
         code == 0x1680 || (code >= 0x2000 && code <= 0x200a) || code == 0x2028 || code == 0x2029 ||
         code == 0x202f || code == 0x205f || code == 0x3000;
}

std::size_t white_space_begins(std::string_view text) {
  while (!text.empty()) {
    const std::size_t last = last_utf8_character(text);
    if (!is_white_space(text.substr(last))) break;
    text = text.substr(0, last);
  }
  return text.size();
}

std::size_t white_space_ends(std::string_view text, std::size_t at) {
  while (at < text.size() && is_white_space(text.substr(at, utf8_length(text[at]))))
    at += utf8_length(text[at]);
  return at;
}

unsigned byte_at(std::string_view text, std::size_t at) {
  return static_cast<unsigned char>(text[at]);
}

}  // namespace

AddedTokenFinder::AddedTokenFinder(std::vector<Entry> entries) : entries_(std::move(entries)) {
  std::erase_if(entries_, [](const Entry& entry) { return entry.text.empty(); });
  std::stable_sort(entries_.begin(), entries_.end(), [](const Entry& a, const Entry& b) {
    const unsigned first = byte_at(a.text, 0), second = byte_at(b.text, 0);
    return first == second ? a.text.size() > b.text.size() : first < second;
  });
  begin_of_byte_.assign(257, static_cast<std::uint32_t>(entries_.size()));
  for (std::size_t i = entries_.size(); i-- > 0;) {
    const unsigned first = byte_at(entries_[i].text, 0);
    begin_of_byte_[first] = static_cast<std::uint32_t>(i);
    first_bytes_.set(first);
    if (entries_[i].text.size() > 1) {
      first_two_bytes_.set(first << 8 | byte_at(entries_[i].text, 1));
    } else {
      for (unsigned second = 0; second < 256; ++second) first_two_bytes_.set(first << 8 | second);
    }
  }
}

// The longest token at this place.
const AddedTokenFinder::Entry* AddedTokenFinder::at(std::string_view text,
                                                    std::size_t place) const {
  const unsigned first = byte_at(text, place);
  const unsigned second = place + 1 < text.size() ? byte_at(text, place + 1) : 0;
  if (!first_two_bytes_[first << 8 | second]) return nullptr;
  for (std::size_t i = begin_of_byte_[first];
       i < entries_.size() && byte_at(entries_[i].text, 0) == first; ++i) {
    if (text.substr(place).starts_with(entries_[i].text)) return &entries_[i];
  }
  return nullptr;
}

std::optional<AddedTokenFinder::Found> AddedTokenFinder::find(std::string_view text,
                                                              std::size_t from,
                                                              SpecialTokens special) const {
  for (std::size_t place = from; place < text.size(); ++place) {
    if (!first_bytes_[byte_at(text, place)]) continue;
    const Entry* const entry = at(text, place);
    if (entry == nullptr) continue;
    const AddedToken& token = entry->token;
    Found found{place, place + entry->text.size(), token.token};
    place = found.end - 1;
    if (token.special && special == SpecialTokens::as_text) continue;
    if (token.single_word) {
      const std::string_view before = text.substr(0, found.begin);
      const bool word_before =
          !before.empty() && is_of_word(before.substr(last_utf8_character(before)));
      const bool word_after = found.end < text.size() &&
                              is_of_word(text.substr(found.end, utf8_length(text[found.end])));
      if (word_before || word_after) continue;
    }
    if (token.lstrip)
      found.begin = from + white_space_begins(text.substr(from, found.begin - from));
    if (token.rstrip) found.end = white_space_ends(text, found.end);
    return found;
  }
  return {};
}

}  // namespace spillway
