// Rendered chats as tokens.
#pragma once

#include "text/chat/chat_template.hpp"
#include "text/source/document.hpp"

namespace spillway {

class ChatEncoder {
 public:
  // Keeps the references.
  ChatEncoder(const Tokenizer& tokenizer, const SpecialNames& names);

  // The tokens of the text, and those of what is trained on. A text is cut where training begins
  // and ends, and around names that are letters: no token reaches over a cut, so the tokens before
  // an answer are those that a model is asked with.
  Document encode(const RenderedChat& chat) const;

  // Appends the tokens of `text` as it follows `before`: tokenizers that put a blank before a text
  // (SentencePiece) put none into its middle.
  void append(std::string_view before, std::string_view text, SpecialTokens special,
              std::vector<Token>& tokens) const;

 private:
  bool append_behind(std::string_view context, std::string_view text, SpecialTokens special,
                     std::vector<Token>& tokens) const;

  const Tokenizer& tokenizer_;
  const SpecialNames& names_;
  bool puts_blank_ = false;  // before a text
};

// Tokens that end an answer: what ends a text, and what ends the assistant's turn in training where
// chats are written by `chat_template` (null: a text is gone on with).
std::vector<Token> stop_tokens(const Tokenizer& tokenizer, const SpecialNames& names,
                               ChatTemplate* chat_template);

// Adds a run of tokens that are trained on, behind those that are there.
void add_trained(Document& document, std::size_t first, std::size_t end);

}  // namespace spillway
