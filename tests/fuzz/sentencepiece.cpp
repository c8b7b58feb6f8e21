// tokenizer.model of SentencePiece: any bytes.
#include <algorithm>

#include "tests/fuzz/fuzz.hpp"
#include "text/tokenizer/model_files.hpp"

using namespace spillway;

SPILLWAY_FUZZ_TARGET(sentencepiece) {
  std::unique_ptr<Tokenizer> tokenizer;
  const bool read = fuzz::accepted(
      [&] { tokenizer = make_sentencepiece_tokenizer(fuzz::text_of(input), "tokenizer.model"); });
  if (!read) return;
  const std::string text = "the cat\tsat on  the mat \xef\xac\x81 \xff<s>123\n";
  for (const SpecialTokens special : {SpecialTokens::as_text, SpecialTokens::parsed}) {
    std::vector<Token> tokens;
    if (!fuzz::accepted([&] { tokenizer->encode(text, special, tokens); })) return;
    for (const Token token : tokens)
      fuzz::require(token >= 0 && token < tokenizer->size(), "tokens are of the tokenizer");
    const bool decoded =
        fuzz::accepted([&] { static_cast<void>(tokenizer->decode(tokens, false)); });
    fuzz::require(decoded, "tokens of a text can be decoded");
  }
}
