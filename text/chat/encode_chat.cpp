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

Document encode_chat(const RenderedChat& chat, const Tokenizer& tokenizer) {
  std::vector<std::size_t> cuts = {0, chat.text.size()};
  for (const auto* ranges : {&chat.plain, &chat.trained})
    for (const TextRange& range : *ranges) cuts.insert(cuts.end(), {range.first, range.end});
  std::sort(cuts.begin(), cuts.end());
  const auto covers = [](const std::vector<TextRange>& ranges, std::size_t at) {
    return std::any_of(ranges.begin(), ranges.end(),
                       [&](const TextRange& range) { return range.first <= at && at < range.end; });
  };
  Document document;
  for (std::size_t i = 0; i + 1 < cuts.size(); ++i) {
    if (cuts[i] == cuts[i + 1]) continue;
    const std::size_t first = document.tokens.size();
    tokenizer.encode(std::string_view(chat.text).substr(cuts[i], cuts[i + 1] - cuts[i]),
                     covers(chat.plain, cuts[i]) ? SpecialTokens::as_text : SpecialTokens::parsed,
                     document.tokens);
    if (covers(chat.trained, cuts[i])) add_trained(document, first, document.tokens.size());
  }
  return document;
}

}  // namespace spillway
