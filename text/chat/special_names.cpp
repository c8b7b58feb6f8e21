#include "text/chat/special_names.hpp"

#include <algorithm>

#include "base/errors.hpp"

namespace spillway {

SpecialNames::SpecialNames(const Tokenizer& tokenizer) {
  const auto name_of = [&](Token token) { return tokenizer.decode({&token, 1}, true); };
  for (std::int64_t i = 0; i < tokenizer.size(); ++i) {
    const auto token = static_cast<Token>(i);
    std::string name;
    try {
      if (!tokenizer.decode({&token, 1}, false).empty()) continue;
      name = name_of(token);
    } catch (const InputError&) {
      continue;  // numbers may be left out
    }
    if (name.empty() || tokenizer.find(name) != token) continue;
    tokens_.push_back(token);
    names_.push_back(name);
    auto& same_first = names_of_[static_cast<unsigned char>(name[0])];
    if (same_first.empty()) first_bytes_ += name[0];
    same_first.push_back(name);
  }
  for (auto& same_first : names_of_)
    std::stable_sort(same_first.begin(), same_first.end(),
                     [](const auto& a, const auto& b) { return a.size() > b.size(); });
  if (const auto token = tokenizer.begin_of_text()) begin_ = name_of(*token);
  if (const auto token = tokenizer.end_of_text()) end_ = name_of(*token);
}

bool SpecialNames::has(std::string_view name) const {
  return std::find(names_.begin(), names_.end(), name) != names_.end();
}

bool SpecialNames::is_special(Token token) const {
  return std::binary_search(tokens_.begin(), tokens_.end(), token);
}

std::optional<TextRange> SpecialNames::find(std::string_view text, std::size_t from) const {
  if (names_.empty()) return {};
  for (std::size_t at = text.find_first_of(first_bytes_, from); at != std::string_view::npos;
       at = text.find_first_of(first_bytes_, at + 1)) {
    for (const std::string& name : names_of_[static_cast<unsigned char>(text[at])])
      if (text.substr(at).starts_with(name)) return TextRange{at, at + name.size()};
  }
  return {};
}

}  // namespace spillway
