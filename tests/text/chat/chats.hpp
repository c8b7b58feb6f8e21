// Chats for tests, and what a template makes of them as one line of text.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "text/chat/chat_template.hpp"
#include "text/source/json_record.hpp"

namespace spillway::test {

using Turns = std::vector<std::pair<std::string, std::string>>;

inline ChatRecord chat(const Turns& turns) {
  ChatRecord record;
  for (const auto& [role, content] : turns) record.messages.push_back(make_message(role, content));
  return record;
}

// The text with {} around what is trained on and [] around names that are letters; or why not.
inline std::string marked(const RenderedChat& chat) {
  if (!chat.refused.empty()) return "refused: " + chat.refused;
  std::string text;
  const auto at_edge = [&](std::size_t at, bool first) {
    for (const TextRange& range : chat.trained)
      if ((first ? range.first : range.end) == at) text += first ? "{" : "}";
  };
  const auto at_name = [&](std::size_t at, bool first) {
    for (const TextRange& range : chat.plain)
      if ((first ? range.first : range.end) == at) text += first ? "[" : "]";
  };
  for (std::size_t at = 0; at <= chat.text.size(); ++at) {
    at_name(at, false);
    at_edge(at, false);
    at_edge(at, true);
    at_name(at, true);
    if (at < chat.text.size()) text += chat.text[at];
  }
  return text;
}

}  // namespace spillway::test
