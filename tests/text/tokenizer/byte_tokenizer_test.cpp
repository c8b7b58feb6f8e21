#include <catch2/catch.hpp>

#include "base/errors.hpp"
#include "text/tokenizer/tokenizer.hpp"

using namespace spillway;

TEST_CASE("bytes are tokens and come back, whatever they are", "[tokenizer]") {
  std::string all;
  for (int byte = 255; byte >= 0; --byte) all.push_back(static_cast<char>(byte));
  const auto tokenizer = make_byte_tokenizer();
  std::vector<Token> tokens = {7};
  tokenizer->encode(all, SpecialTokens::parsed, tokens);
  REQUIRE(tokens.size() == 257);
  CHECK(tokens[1] == 255);
  CHECK(tokenizer->decode(std::span(tokens).subspan(1)) == all);
  CHECK_THROWS_AS(tokenizer->decode(std::vector<Token>{256}), InputError);
  CHECK_THROWS_AS(tokenizer->decode(std::vector<Token>{-1}), InputError);
}
