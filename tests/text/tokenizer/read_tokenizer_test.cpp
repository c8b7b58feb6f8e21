#include <catch2/catch.hpp>
#include <cstdlib>
#include <fstream>

#include "base/errors.hpp"
#include "tests/temporary_folder.hpp"
#include "text/tokenizer/normalizer.hpp"
#include "text/tokenizer/read_tokenizer.hpp"
#include "text/tokenizer/vocabulary.hpp"

using namespace spillway;
using spillway::test::TemporaryFolder;

namespace {

// GPT-2's two files, in small: the bytes, "ab" and <|endoftext|>.
void write_gpt2_files(const std::filesystem::path& folder, const std::string& vocabulary,
                      const std::string& merges) {
  std::ofstream table(folder / vocabulary);
  table << "{";
  for (int byte = 0; byte < 256; ++byte) {
    const char sign = static_cast<char>(byte);
    std::string name = byte_level_name({&sign, 1});
    if (name == "\"" || name == "\\") name = "\\" + name;
    table << "\"" << name << "\": " << byte << ", ";
  }
  table << "\"ab\": 256, \"<|endoftext|>\": 257}";
  std::ofstream(folder / merges) << "#version: 0.2\na b\n";
}

}  // namespace

TEST_CASE("GPT-2's files are read by either name, and end texts", "[tokenizer]") {
  for (const auto& [vocabulary, merges] :
       {std::pair("vocab.json", "merges.txt"), std::pair("encoder.json", "vocab.bpe")}) {
    const TemporaryFolder folder;
    write_gpt2_files(folder.path(), vocabulary, merges);
    for (const auto& path : {folder.path(), folder.path() / vocabulary, folder.path() / merges}) {
      const auto tokenizer = read_tokenizer(path);
      CHECK(tokenizer->size() == 258);
      CHECK(tokenizer->end_of_text() == 257);
      CHECK_FALSE(tokenizer->adds_begin_of_text());
      std::vector<Token> tokens;
      tokenizer->encode("ab\"<|endoftext|>", SpecialTokens::parsed, tokens);
      CHECK(tokens == std::vector<Token>{256, '"', 257});
    }
    std::ofstream(folder.path() / "tokenizer_config.json")
        << R"({"eos_token": {"content": "ab", "lstrip": false}, "bos_token": null, "pad_token": "<|endoftext|>"})";
    const auto tokenizer = read_tokenizer(folder.path());
    CHECK(tokenizer->end_of_text() == 256);
    CHECK_FALSE(tokenizer->begin_of_text());
    CHECK(tokenizer->padding() == 257);
  }
}

TEST_CASE("a path without a tokenizer is refused with what would do", "[tokenizer]") {
  const TemporaryFolder folder;
  CHECK_THROWS_AS(read_tokenizer(folder.path()), InputError);
  CHECK_THROWS_AS(read_tokenizer(folder.path() / "tokenizer.json"), InputError);
  std::ofstream(folder.path() / "notes.txt") << "text";
  CHECK_THROWS_AS(read_tokenizer(folder.path() / "notes.txt"), InputError);
  std::ofstream(folder.path() / "vocab.json") << "{}";
  CHECK_THROWS_AS(read_tokenizer(folder.path()), InputError);  // no merges.txt
}

TEST_CASE("texts are composed as Unicode 9.0 has it", "[tokenizer]") {
  const auto nfc = [](const std::string& text) {
    std::string result;
    append_nfc(text, result);
    return result;
  };
  CHECK(nfc("e\u0301 x") == "\u00e9 x");
  CHECK(nfc("plain, \u4e2d\u6587") == "plain, \u4e2d\u6587");
  CHECK(nfc("\u1112\u1161\u11ab") == "\ud55c");
  CHECK(nfc("\ud558\u11ab") == "\ud55c");  // Hangul that is composed in part
  CHECK(nfc("\u212b\u2126") == "\u00c5\u03a9");
  CHECK(nfc("a\u0301\u0323") == "\u1ea1\u0301");
  CHECK(nfc("a\u0301\u0898\u0323") == "\u00e1\u0898\u0323");  // U+0898 is of Unicode 14
}

TEST_CASE("GPT-2's own files give its tokens", "[tokenizer]") {
  const char* const folder = std::getenv("SPILLWAY_GPT2");
  if (folder == nullptr) {
    WARN("skipped: SPILLWAY_GPT2 does not name a folder with encoder.json and vocab.bpe");
    return;
  }
  const auto tokenizer = read_tokenizer(folder);
  CHECK(tokenizer->size() == 50257);
  CHECK(tokenizer->end_of_text() == 50256);
  std::vector<Token> tokens;
  tokenizer->encode("Hello world, it's GPT-2!<|endoftext|>", SpecialTokens::parsed, tokens);
  CHECK(tokens == std::vector<Token>{15496, 995, 11, 340, 338, 402, 11571, 12, 17, 0, 50256});
}
