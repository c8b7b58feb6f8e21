// What a tokenizer changes in a text before it looks at it.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace spillway {

struct NormalizerStep {
  enum class Kind {
    nfc,      // the composed normal form, of Unicode 9.0 as in Hugging Face's tokenizers
    prepend,  // `content` before a text that is not empty
    replace,  // each `pattern` by `content`
  };
  Kind kind = Kind::nfc;
  std::string pattern = {}, content = {};
};

// Applies the steps to valid UTF-8, in place. `prepend` false: leaves steps of that kind out.
void normalize(const std::vector<NormalizerStep>& steps, bool prepend, std::string& text);

// Appends the composed normal form of `text`, valid UTF-8.
void append_nfc(std::string_view text, std::string& result);

}  // namespace spillway
