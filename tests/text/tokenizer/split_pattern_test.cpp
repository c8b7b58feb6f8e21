#include <catch2/catch.hpp>

#include "base/errors.hpp"
#include "text/tokenizer/pre_tokenizer.hpp"

using namespace spillway;

namespace {

std::vector<std::string> words_of(const std::vector<PreTokenizerStep>& steps,
                                  const std::string& text) {
  const PreTokenizer pre_tokenizer(steps, "steps");
  PreTokenizer::Cutter cutter(pre_tokenizer);
  std::vector<std::string> words;
  const auto add = [&](std::string_view word) { words.emplace_back(word); };
  cutter.cut({.text = text, .first = true}, add);
  return words;
}

std::vector<std::string> by_pattern(std::string_view pattern, const std::string& text) {
  return words_of({{.pattern = std::string(pattern)}}, text);
}

using Words = std::vector<std::string>;

}  // namespace

TEST_CASE("texts are cut as the models of the patterns do", "[tokenizer]") {
  CHECK(by_pattern(gpt2_pattern, "it's 1234  x\n") == Words{"it", "'s", " 1234", " ", " x", "\n"});
  CHECK(by_pattern(llama3_pattern, "IT'S 1234\r\n\r\n x") ==
        Words{"IT", "'S", " ", "123", "4", "\r\n\r\n", " x"});
  CHECK(by_pattern(qwen2_pattern, "a12!!\n") == Words{"a", "1", "2", "!!\n"});
  // U+180E is no white space for Oniguruma, and one for \s of PCRE2.
  CHECK(by_pattern(gpt2_pattern, "a\u180e\u180e") == Words{"a", "\u180e\u180e"});
}

TEST_CASE("what becomes of matches follows the behaviour", "[tokenizer]") {
  const auto cut = [](SplitBehavior behavior, bool invert = false) {
    return words_of({{.pattern = "-", .literal = true, .behavior = behavior, .invert = invert}},
                    "the-final--countdown");
  };
  CHECK(cut(SplitBehavior::removed) == Words{"the", "final", "countdown"});
  CHECK(cut(SplitBehavior::isolated) == Words{"the", "-", "final", "-", "-", "countdown"});
  CHECK(cut(SplitBehavior::merged_with_previous) == Words{"the-", "final-", "-", "countdown"});
  CHECK(cut(SplitBehavior::merged_with_next) == Words{"the", "-final", "-", "-countdown"});
  CHECK(cut(SplitBehavior::contiguous) == Words{"the", "-", "final", "--", "countdown"});
  CHECK(cut(SplitBehavior::removed, true) == Words{"-", "-", "-"});
}

TEST_CASE("steps follow each other, and may put something before pieces", "[tokenizer]") {
  const PreTokenizerStep digits = {.pattern = R"(\p{N})"};
  PreTokenizerStep blank;
  blank.prefix_text = " ";
  blank.prefix = PreTokenizerStep::Prefix::always;
  CHECK(words_of({digits, blank}, "a1 b") == Words{" a", " 1", " b"});
  blank.prefix = PreTokenizerStep::Prefix::first;
  CHECK(words_of({digits, blank}, "a1b") == Words{" a", "1", "b"});
}

TEST_CASE("patterns that mean something else in PCRE2 are refused", "[tokenizer]") {
  for (const char* pattern :
       {R"(\w+)", R"(\h)",    "a^",     "a$",     "(?<name>a)", "(*UTF)a",
        "(?R)",   R"((a)\1)", "[a[b]]", "[a&&b]", "a{1,3}+",    "a*",
        "a|",     "(",        "[a",     "\\",     R"(\x41)",    R"(\p{Nonsense})",
        R"(\Ca)", R"(a\K)",   R"(\u00)"}) {
    INFO(pattern);
    CHECK_THROWS_AS(SplitPattern(pattern, "file"), InputError);
  }
  CHECK_THROWS_AS(SplitPattern(std::string(100000, 'a'), "file"), InputError);
  CHECK(by_pattern(R"(\u0041|\x{42})", "xABy") == Words{"x", "A", "B", "y"});
}

TEST_CASE("a pattern that backtracks without end is given up", "[tokenizer]") {
  CHECK_THROWS_AS(by_pattern("(?:a+)+[bc]", std::string(60, 'a')), InputError);
}

TEST_CASE("long runs of anything are one word", "[tokenizer]") {
  for (const std::string& sign : std::vector<std::string>{" ", "a", "\n", "!", "1", "漢"}) {
    std::string text;
    for (int i = 0; i < 300000; ++i) text += sign;
    CHECK(by_pattern(gpt2_pattern, text).size() == 1);
  }
}
