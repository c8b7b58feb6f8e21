#include <catch2/catch.hpp>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "base/errors.hpp"
#include "tests/temporary_folder.hpp"
#include "text/tokenizer/bpe_training.hpp"
#include "text/tokenizer/read_tokenizer.hpp"
#include "text/tokenizer/train_tokenizer.hpp"

using namespace spillway;
using spillway::test::TemporaryFolder;

namespace {

std::string contents(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace

TEST_CASE("the most frequent pair becomes a token, of equal ones that of the lowest numbers",
          "[tokenizer]") {
  // hug 10, pug 5, pun 12, bun 4, hugs 5: "ug" 20, then "un" 16, then "hug" 15; then "pun" 12.
  const TrainedBpe bpe =
      train_bpe({{"bun", 4}, {"hug", 10}, {"hugs", 5}, {"pug", 5}, {"pun", 12}}, 256 + 4, {});
  const std::vector<std::string> made(bpe.tokens.begin() + 256, bpe.tokens.end());
  CHECK(made == std::vector<std::string>{"ug", "un", "hug", "pun"});
  REQUIRE(bpe.merges.size() == 4);
  CHECK(bpe.tokens[static_cast<std::size_t>(bpe.merges[2].left)] == "h");
  CHECK(bpe.tokens[static_cast<std::size_t>(bpe.merges[2].right)] == "ug");
  // "ab" and "cd" are as frequent: "a" has a lower number than "c".
  const TrainedBpe even = train_bpe({{"cd", 3}, {"ab", 3}}, 257, {});
  CHECK(even.tokens.back() == "ab");
  // What is there once is no token.
  CHECK(train_bpe({{"xyz", 1}}, 300, {}).tokens.size() == 256);
  // Overlapping: aaaa is (aa)(aa), not three pairs.
  const TrainedBpe runs = train_bpe({{"aaaa", 2}}, 300, {});
  CHECK(std::vector<std::string>(runs.tokens.begin() + 256, runs.tokens.end()) ==
        std::vector<std::string>{"aa", "aaaa"});
}

TEST_CASE("a trained tokenizer is the same from any number of threads, and is read again",
          "[tokenizer]") {
  const TemporaryFolder folder;
  const std::filesystem::path text = folder.path() / "text";
  std::filesystem::create_directory(text);
  for (int file = 0; file < 5; ++file) {
    std::ofstream out(text / (std::to_string(file) + ".txt"));
    for (int line = 0; line < 2000; ++line)
      out << "line " << line * line % 977 << " of some text, isn't it? Größe \xff 漢字<|im_end|>\n";
  }
  TokenizerTraining how;
  how.source.paths = {text};
  how.vocabulary = 285;
  how.pattern = "qwen2";
  how.special = {"<|im_start|>", "<|im_end|>"};
  how.begin = "<|begin|>";
  how.threads = 1;
  CHECK(train_tokenizer(how, folder.path() / "one").tokens == 285);
  how.threads = 4;
  train_tokenizer(how, folder.path() / "four");
  for (const char* file : {"tokenizer.json", "tokenizer_config.json"})
    CHECK(contents(folder.path() / "one" / file) == contents(folder.path() / "four" / file));

  const auto tokenizer = read_tokenizer(folder.path() / "one");
  CHECK(tokenizer->size() == 285);
  CHECK(tokenizer->begin_of_text() == tokenizer->find("<|begin|>"));
  CHECK(tokenizer->adds_begin_of_text());
  CHECK(tokenizer->end_of_text() == tokenizer->find("<|endoftext|>"));
  CHECK(tokenizer->padding() == tokenizer->end_of_text());
  std::vector<Token> tokens;
  const std::string sample = "some text, isn't it? Größe \xff<|im_end|>\n";
  tokenizer->encode(sample, SpecialTokens::parsed, tokens);
  CHECK(tokens.size() < sample.size() / 2);
  CHECK(tokenizer->decode(tokens) == sample);
  // No token is made of the name of a special one.
  CHECK_FALSE(tokenizer->find("im"));
}

TEST_CASE("of records a tokenizer learns the texts, not what JSON puts around them",
          "[tokenizer]") {
  const TemporaryFolder folder;
  {
    std::ofstream records(folder.path() / "records.jsonl"), text(folder.path() / "text.txt");
    for (int i = 0; i < 50; ++i) {
      records << R"({"messages":[{"role":"user","content":"say it"},)"
              << R"({"role":"assistant","content":"Gr\u00f6\u00dfe it is"}]})"
              << "\n"
              << R"({"prompt":"who","completion":"the miller"})"
              << "\n";
      text << "user\nsay it\nassistant\nGröße it is\nwho\nthe miller\n";
    }
  }
  TokenizerTraining how;
  how.vocabulary = 320;
  how.source.paths = {folder.path() / "records.jsonl"};
  train_tokenizer(how, folder.path() / "of-records");
  const auto tokenizer = read_tokenizer(folder.path() / "of-records");
  const auto length = [&](const std::string& sample) {
    std::vector<Token> tokens;
    tokenizer->encode(sample, SpecialTokens::parsed, tokens);
    return tokens.size();
  };
  CHECK(length("Größe") == 1);
  CHECK(length("miller") <= 2);
  CHECK(length("{\"messages\":[{\"role\":") > 15);

  std::ofstream(folder.path() / "records.jsonl", std::ios::app) << "{\"text\": \n";
  CHECK_THROWS_AS(train_tokenizer(how, folder.path() / "out"), InputError);
  how.source.skip_malformed = true;
  const TokenizerTrained skipped = train_tokenizer(how, folder.path() / "out");
  CHECK(skipped.malformed == 1);
  CHECK(contents(folder.path() / "out/tokenizer.json") ==
        contents(folder.path() / "of-records/tokenizer.json"));
}

TEST_CASE("what cannot be trained is refused before any text is read", "[tokenizer]") {
  const TemporaryFolder folder;
  const std::filesystem::path text = folder.path() / "a.txt";
  std::ofstream(text) << "text";
  TokenizerTraining how;
  how.source.paths = {text};
  how.vocabulary = 256;
  CHECK_THROWS_AS(train_tokenizer(how, folder.path() / "out"), InputError);
  how.vocabulary = 300;
  how.pattern = "gpt3";
  CHECK_THROWS_AS(train_tokenizer(how, folder.path() / "out"), InputError);
  how.pattern = "gpt2";
  how.special = {"\x1b[31m"};
  CHECK_THROWS_AS(train_tokenizer(how, folder.path() / "out"), InputError);
  how.special = {};
  CHECK_THROWS_AS(train_tokenizer(how, folder.path()), InputError);
  how.source.paths = {folder.path() / "missing.txt"};
  CHECK_THROWS_AS(train_tokenizer(how, folder.path() / "out"), InputError);
  CHECK_FALSE(std::filesystem::exists(folder.path() / "out"));
}
