#include "text/chat/encode_chat.hpp"

#include <algorithm>
#include <string_view>

namespace spillway {

void add_trained(Document& document, std::size_t first, std::size_t end) {
  if (first == end) return;
  if (!document.trained.empty() && document.trained.back().end == first)
    document.trained.back().end = end;
  else
    document.trained.push_back({first, end});
}

ChatEncoder::ChatEncoder(const Tokenizer& tokenizer, const SpecialNames& names)
    : tokenizer_(tokenizer), names_(names) {
  std::vector<Token> alone, behind;
  tokenizer.encode("a", SpecialTokens::as_text, alone);
  puts_blank_ = append_behind("\n", "a", SpecialTokens::as_text, behind) && alone != behind;
}

// By what is encoded of `context` and `text` together; false: a token reaches over both.
bool ChatEncoder::append_behind(std::string_view context, std::string_view text,
                                SpecialTokens special, std::vector<Token>& tokens) const {
  std::vector<Token> first, both;
  tokenizer_.encode(context, special, first);
  tokenizer_.encode(std::string(context) + std::string(text), special, both);
  if (both.size() < first.size() || !std::equal(first.begin(), first.end(), both.begin()))
    return false;
  tokens.insert(tokens.end(), both.begin() + static_cast<std::ptrdiff_t>(first.size()), both.end());
  return true;
}

void ChatEncoder::append(std::string_view before, std::string_view text, SpecialTokens special,
                         std::vector<Token>& tokens) const {
  if (puts_blank_ && !before.empty()) {
    // Behind a special token a tokenizer may have a rule of its own.
    for (const std::string& name : names_.names()) {
      if (special == SpecialTokens::parsed && before.ends_with(name) &&
          append_behind(name, text, special, tokens))
        return;
    }
    if (append_behind("\n", text, special, tokens)) return;
  }
  tokenizer_.encode(text, special, tokens);
}

Document ChatEncoder::encode(const RenderedChat& chat) const {
  std::vector<std::size_t> cuts = {0, chat.text.size()};
  for (const auto* ranges : {&chat.plain, &chat.trained})
    for (const TextRange& range : *ranges) cuts.insert(cuts.end(), {range.first, range.end});
  std::sort(cuts.begin(), cuts.end());
  const auto covers = [](const std::vector<TextRange>& ranges, std::size_t at) {
    return std::any_of(ranges.begin(), ranges.end(),
                       [&](const TextRange& range) { return range.first <= at && at < range.end; });
  };
  const std::string_view text = chat.text;
  Document document;
  for (std::size_t i = 0; i + 1 < cuts.size(); ++i) {
    if (cuts[i] == cuts[i + 1]) continue;
    const std::size_t first = document.tokens.size();
    append(text.substr(0, cuts[i]), text.substr(cuts[i], cuts[i + 1] - cuts[i]),
           covers(chat.plain, cuts[i]) ? SpecialTokens::as_text : SpecialTokens::parsed,
           document.tokens);
    if (covers(chat.trained, cuts[i])) add_trained(document, first, document.tokens.size());
  }
  return document;
}

std::vector<Token> stop_tokens(const Tokenizer& tokenizer, const SpecialNames& names,
                               ChatTemplate* chat_template) {
  std::vector<Token> stops;
  if (const auto end = tokenizer.end_of_text()) stops.push_back(*end);
  if (chat_template == nullptr) return stops;
  const ChatRecord turn{{{"user", "1", {}}, {"assistant", "2", {}}}, {}};
  const RenderedChat rendered =
      chat_template->render(std::span(&turn, 1), RenderFor::training).front();
  if (!rendered.refused.empty()) return stops;
  const Document document = ChatEncoder(tokenizer, names).encode(rendered);
  if (document.trained.empty() || document.trained.back().end == 0) return stops;
  const Token last = document.tokens[document.trained.back().end - 1];
  if (names.is_special(last) && std::find(stops.begin(), stops.end(), last) == stops.end())
    stops.push_back(last);
  return stops;
}

}  // namespace spillway
