#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "tests/cli/program.hpp"

using namespace spillway::test;

TEST_CASE("tokenizer: trained, shown, and texts go there and back", "[tokenizer]") {
  const TemporaryFolder folder;
  std::string text;
  for (int i = 0; i < 300; ++i)
    text += "the cat sat on the mat, it's number " + std::to_string(i) + "\n";
  const std::string corpus = folder.write("corpus.txt", text);
  const std::string out = folder / "tokenizer";
  const auto trained = run({"tokenizer", "train", corpus, "--vocabulary", "300", "--out", out,
                            "--special", "<|im_end|>", "--json"});
  REQUIRE(trained.exit_code == 0);
  CHECK(trained.json()["tokens"] == 300);
  // What is there is not written over.
  CHECK(run({"tokenizer", "train", corpus, "--vocabulary", "300", "--out", out}).exit_code == 2);

  const auto shown =
      run({"tokenizer", "show", "--tokenizer", out, "the cat<|im_end|>", "--special", "--json"});
  REQUIRE(shown.exit_code == 0);
  const auto what = shown.json();
  CHECK(what["size"] == 300);
  CHECK(what["end_of_text"] == 0);
  CHECK(what["tokens"].back()["text"] == "<|im_end|>");
  std::string joined;
  for (const auto& token : what["tokens"]) joined += token["text"].get<std::string>();
  CHECK(joined == "the cat<|im_end|>");

  const std::string sample = folder.write("sample.txt", "the \xff mat\x1b");
  const auto encoded = run({"tokenizer", "encode", "--tokenizer", out, sample});
  REQUIRE(encoded.exit_code == 0);
  const std::string tokens = folder.write("tokens", encoded.out);
  const std::string again = folder / "again";
  REQUIRE(run({"tokenizer", "decode", "--tokenizer", out, tokens, "--out", again}).exit_code == 0);
  CHECK(read_file(again) == "the \xff mat\x1b");
  // A terminal is shown what it can show.
  CHECK(run({"tokenizer", "decode", "--tokenizer", out, tokens}).out.find('\x1b') ==
        std::string::npos);
}

TEST_CASE("tokenizer: what cannot be is refused with a hint", "[tokenizer]") {
  const TemporaryFolder folder;
  const std::string corpus = folder.write("corpus.txt", "text");
  for (const std::vector<std::string>& arguments :
       {std::vector<std::string>{"show", "--tokenizer", folder / "nothing"},
        {"show", "--tokenizer", corpus},
        {"train", corpus, "--vocabulary", "100", "--out", folder / "out"},
        {"train", corpus, "--vocabulary", "300", "--out", folder / "out", "--pattern", "gpt9"},
        {"train", corpus, "--out", folder / "out"},
        {"turn"}}) {
    std::vector<std::string> all = {"tokenizer"};
    all.insert(all.end(), arguments.begin(), arguments.end());
    const auto refused = run(all);
    CHECK(refused.exit_code == 2);
    CHECK(refused.err.find("hint: ") != std::string::npos);
  }
  CHECK(folder.listing() == std::vector<std::string>{"corpus.txt"});
}
