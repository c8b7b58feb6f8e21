// A rendered chat as tokens.
#pragma once

#include "text/chat/chat_template.hpp"
#include "text/source/document.hpp"

namespace spillway {

// The tokens of the text, and those of what is trained on. A text is cut where training begins and
// ends, and around names that are letters: no token reaches over a cut, so the tokens before an
// answer are those that a model is asked with.
Document encode_chat(const RenderedChat& chat, const Tokenizer& tokenizer);

// Adds a run of tokens that are trained on, behind those that are there.
void add_trained(Document& document, std::size_t first, std::size_t end);

}  // namespace spillway
