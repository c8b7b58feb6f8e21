// tokenizer.json: any text up to a zero byte; then a text to tokenize.
#include <algorithm>

#include "tests/fuzz/fuzz.hpp"
#include "text/tokenizer/model_files.hpp"

using namespace spillway;

SPILLWAY_FUZZ_TARGET(tokenizer_json) {
  const std::string all = fuzz::text_of(input);
  const std::size_t end = std::min(all.find('\0'), all.size());
  std::unique_ptr<Tokenizer> tokenizer;
  const bool read = fuzz::accepted([&] {
    tokenizer = make_bpe_tokenizer(read_tokenizer_json(all.substr(0, end), "tokenizer.json"));
  });
  if (!read) return;
  const std::string text =
      "ab, abc 123 \xc3\xa9\xff<|end|>\n" + all.substr(std::min(end + 1, all.size()));
  for (const SpecialTokens special : {SpecialTokens::as_text, SpecialTokens::parsed}) {
    std::vector<Token> tokens, again;
    if (!fuzz::accepted([&] { tokenizer->encode(text, special, tokens); })) return;
    tokenizer->encode(text, special, again);
    fuzz::require(tokens == again, "a text has the same tokens again");
    for (const Token token : tokens)
      fuzz::require(token >= 0 && token < tokenizer->size(), "tokens are of the tokenizer");
    const bool decoded =
        fuzz::accepted([&] { static_cast<void>(tokenizer->decode(tokens, false)); });
    fuzz::require(decoded, "tokens of a text can be decoded");
  }
}
