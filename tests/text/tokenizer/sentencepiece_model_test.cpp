#include <catch2/catch.hpp>
#include <fstream>
#include <iterator>
#include <random>

#include "base/errors.hpp"
#include "test_paths.hpp"
#include "text/tokenizer/model_files.hpp"
#include "text/tokenizer/read_tokenizer.hpp"

using namespace spillway;

namespace {

std::string model_of(const std::string& name) {
  std::ifstream file(std::filesystem::path(SPILLWAY_SOURCE_DIR) / "tests/reference/tokenizers" /
                         name / "tokenizer.model",
                     std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace

TEST_CASE("SentencePiece: special tokens by name, bytes as they are", "[tokenizer]") {
  const auto tokenizer = make_sentencepiece_tokenizer(model_of("sentencepiece_bpe"), "model");
  CHECK(tokenizer->begin_of_text() == tokenizer->find("<s>"));
  CHECK(tokenizer->end_of_text() == tokenizer->find("</s>"));
  CHECK(tokenizer->adds_begin_of_text());
  const auto tokens_of = [&](const std::string& text, SpecialTokens special) {
    std::vector<Token> tokens;
    tokenizer->encode(text, special, tokens);
    return tokens;
  };
  const auto parsed = tokens_of("<s>a</s>", SpecialTokens::parsed);
  REQUIRE(parsed.size() >= 3);
  CHECK(parsed.front() == tokenizer->begin_of_text());
  CHECK(parsed.back() == tokenizer->end_of_text());
  CHECK(tokens_of("<s>", SpecialTokens::as_text).size() > 1);
  for (const std::string text :
       {"a b", " two  blanks ", "\xff\xfe", "a\xff\x62 c", "\xe2\x82", "漢\n\t"})
    CHECK(tokenizer->decode(tokens_of(text, SpecialTokens::as_text)) == text);
  CHECK(tokenizer->decode(parsed, false) == "a");
  CHECK_THROWS_AS(tokenizer->decode(std::vector<Token>{-1}), InputError);
}

TEST_CASE("SentencePiece: what is no model is refused, with a message", "[tokenizer]") {
  for (const std::string& bytes :
       {std::string(), std::string("hello"), std::string(100, '\0'), std::string(100, '\xff'),
        std::string("\x0a\x05\x0a\x03"
                    "abc")})
    CHECK_THROWS_AS(make_sentencepiece_tokenizer(bytes, "model"), InputError);
  const std::string model = model_of("sentencepiece_unigram");
  for (const std::size_t length : {std::size_t{1}, model.size() / 3, model.size() - 1})
    CHECK_THROWS_AS(make_sentencepiece_tokenizer(model.substr(0, length), "model"), InputError);
}

TEST_CASE("SentencePiece: a damaged model is refused, or works", "[tokenizer]") {
  const std::string model = model_of("sentencepiece_bpe");
  std::mt19937 random(17);
  int refused = 0;
  for (int round = 0; round < 60; ++round) {
    std::string damaged = model;
    for (int change = 0; change < 4; ++change)
      damaged[random() % damaged.size()] = static_cast<char>(random() % 256);
    INFO("round " << round);
    try {
      std::vector<Token> tokens;
      const auto tokenizer = make_sentencepiece_tokenizer(damaged, "model");
      tokenizer->encode("some text \xff", SpecialTokens::parsed, tokens);
      CHECK_NOTHROW(tokenizer->decode(tokens));
    } catch (const InputError&) {
      ++refused;
    }
  }
  CHECK(refused > 0);
}
