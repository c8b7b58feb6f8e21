// Tokenizers that Hugging Face's tokenizers and SentencePiece have trained, and the tokens they
// gave: tests/reference/make_tokenizers.py.
#include <catch2/catch.hpp>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <thread>

#include "test_paths.hpp"
#include "text/tokenizer/read_tokenizer.hpp"
#include "text/tokenizer/utf8.hpp"

using namespace spillway;

namespace {

std::string from_base64(const std::string& text) {
  const std::string digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string bytes;
  unsigned bits = 0, count = 0;
  for (const char digit : text) {
    if (digit == '=') break;
    bits = bits << 6 | static_cast<unsigned>(digits.find(digit));
    count += 6;
    if (count < 8) continue;
    count -= 8;
    bytes.push_back(static_cast<char>(bits >> count & 0xffu));
  }
  return bytes;
}

std::vector<Token> encoded(const Tokenizer& tokenizer, const std::string& text,
                           SpecialTokens special) {
  std::vector<Token> tokens;
  tokenizer.encode(text, special, tokens);
  return tokens;
}

// Those whose tokens are bytes of the text and nothing else.
const std::set<std::string> exact = {"gpt2_like", "llama3_like", "smollm_like"};

}  // namespace

TEST_CASE("tokens are those of the libraries that made the tokenizers", "[tokenizer]") {
  const std::filesystem::path folder =
      std::filesystem::path(SPILLWAY_SOURCE_DIR) / "tests/reference/tokenizers";
  std::set<std::uint64_t> hashes;
  std::size_t count = 0, invalid = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    INFO(name);
    const auto tokenizer = read_tokenizer(entry.path());
    hashes.insert(tokenizer->hash());
    const auto cases = nlohmann::json::parse(std::ifstream(entry.path() / "expected.json"));
    REQUIRE(cases.size() >= 8);
    for (const auto& one : cases) {
      const std::string text = from_base64(one["text"].get<std::string>());
      const auto expected = one["as_text"].get<std::vector<Token>>();
      const std::vector<Token> tokens = encoded(*tokenizer, text, SpecialTokens::as_text);
      CHECK(tokens == expected);
      if (one.contains("parsed"))
        CHECK(encoded(*tokenizer, text, SpecialTokens::parsed) ==
              one["parsed"].get<std::vector<Token>>());
      if (exact.count(name) > 0) CHECK(tokenizer->decode(tokens) == text);
      if (valid_utf8(text) < text.size()) ++invalid;
      ++count;
    }
  }
  CHECK(hashes.size() == 13);
  CHECK(count > 100);
  CHECK(invalid > 10);
}

TEST_CASE("a tokenizer is used by many threads at once", "[tokenizer]") {
  const auto tokenizer = read_tokenizer(std::filesystem::path(SPILLWAY_SOURCE_DIR) /
                                        "tests/reference/tokenizers/llama3_like");
  const std::string text = "Ein Satz, 12345 words; don't, it's\n\n  mixed \xff bytes";
  const std::vector<Token> expected = encoded(*tokenizer, text, SpecialTokens::as_text);
  std::vector<std::vector<Token>> results(8);
  {
    std::vector<std::jthread> threads;
    for (auto& result : results) {
      threads.emplace_back([&] {
        for (int round = 0; round < 50; ++round)
          result = encoded(*tokenizer, text + std::to_string(round), SpecialTokens::as_text);
        result = encoded(*tokenizer, text, SpecialTokens::as_text);
      });
    }
  }
  for (const auto& result : results) CHECK(result == expected);
  CHECK(tokenizer->decode(expected) == text);
}
