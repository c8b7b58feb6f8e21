// What the model will see of a document, for people.
#pragma once

#include <string>

#include "text/source/document.hpp"
#include "text/tokenizer/tokenizer.hpp"

namespace spillway {

struct PreviewStyle {
  bool colour = false;          // else what is not trained on is marked by signs
  std::size_t most_tokens = 0;  // of a document, 0: all
};

// The tokens as text, with what is trained on marked, special tokens by name, and a line of counts.
std::string preview(const Document& document, const Tokenizer& tokenizer,
                    const PreviewStyle& style);

}  // namespace spillway
